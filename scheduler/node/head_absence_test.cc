#include "scheduler/node/head_absence.h"

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;

class HeadAbsenceTest : public testing::Test {
 protected:
  // The reason to end after an attempt that failed at this time; "" to go on.
  std::string failed(const Error& why, runtime::Duration at) { return absence_.failed("10.0.0.1:7460", why, kStart + at).value_or(""); }

  static constexpr runtime::TimePoint kStart{1h};
  const Error gone_ = unavailable("connect: Connection refused");
  const Error other_token_ = invalid_argument("the cluster refused this token").with_reason("TokenRefused");
  const Error other_certificate_ = invalid_argument("it is not in the cluster").with_reason("CertificateRefused");
  HeadAbsence absence_{{.unreached = 10min, .refused = 30s}, kStart};
};

TEST_F(HeadAbsenceTest, ANodeThatReachesNoHeadEndsAfterAWhileAndSaysWhy) {
  EXPECT_EQ(failed(gone_, 1s), "");
  EXPECT_EQ(failed(gone_, 599s), "");
  EXPECT_EQ(failed(gone_, 600s), "no head has answered at 10.0.0.1:7460 for 600 s: connect: Connection refused");
}

TEST_F(HeadAbsenceTest, TheTimeCountsFromTheLastHead) {
  EXPECT_EQ(failed(gone_, 599s), "");
  absence_.answered(kStart + 599s);
  EXPECT_EQ(failed(gone_, 601s), "");
  EXPECT_NE(failed(gone_, 1199s), "");
}

TEST_F(HeadAbsenceTest, ANodeThatAnotherClusterRefusesEndsSooner) {
  EXPECT_EQ(failed(gone_, 100s), "");
  EXPECT_EQ(failed(other_certificate_, 101s), "");
  EXPECT_EQ(failed(other_token_, 130s), "");
  EXPECT_EQ(failed(other_token_, 131s),
            "another cluster answers at 10.0.0.1:7460, and has refused this node for 30 s: the cluster refused this token");
}

TEST_F(HeadAbsenceTest, AnExpiredCertificateMayBeRenewedUntilTheNodeEnds) {
  const Error expired = invalid_argument("certificate has expired").with_reason("CertificateExpired");
  EXPECT_EQ(failed(expired, 1s), "");
  EXPECT_EQ(failed(expired, 599s), "");
  EXPECT_EQ(failed(expired, 600s), "no head has answered at 10.0.0.1:7460 for 600 s: certificate has expired");
}

TEST_F(HeadAbsenceTest, OneOfSeveralHeadsThatRefusesIsNoReasonToEnd) {
  for (auto at = 0s; at < 500s; at += 1s) {
    EXPECT_EQ(failed(other_token_, at), "");
    EXPECT_EQ(failed(gone_, at), "");
  }
}

TEST_F(HeadAbsenceTest, ANodeThatRestartsItsHeadWaitsForEver) {
  HeadAbsence beside({.unreached = std::nullopt}, kStart);
  EXPECT_EQ(beside.failed("unix:@head", gone_, kStart + 24h), std::nullopt);
}

}  // namespace
}  // namespace shoal::scheduler
