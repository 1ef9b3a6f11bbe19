#include "scheduler/etcd/candidacy.h"

#include <gtest/gtest.h>

#include "scheduler/etcd/etcd_fixture.h"
#include "scheduler/etcd/etcd_proxy.h"

namespace shoal::scheduler::etcd {
namespace {

TEST_F(CandidacyTest, OneLeadsAndTheOtherFollowsWhenItLeaves) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2"));
  until([&] { return b.leader == "h:1" && a.heads.size() == 2 && b.heads.size() == 2; });
  EXPECT_EQ(a.heads, (std::vector<std::string>{"h:1", "h:2"}));
  EXPECT_TRUE(a.candidacy->leads());
  EXPECT_FALSE(b.candidacy->leads());
  auto old = open(*a.leadership, address());
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a")));
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  EXPECT_TRUE(b.candidacy->leads());
  EXPECT_EQ(commit_rows(*old, row(TableName::kJobs, 1, "b")).error().reason(), "Fenced");
  EXPECT_EQ(all(*open(*b.leadership, address())), "jobs/1=a ");
}

TEST_F(CandidacyTest, AFollowerContinuesAfterACompaction) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  auto old = open(*a.leadership, address(), 60s, 60s, 10ms);
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a")));
  const auto before = revision();
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "b")));
  until([&] { return is_forgotten(before); });
  until([&] { return a.heads.size() == 2 && b.heads.size() == 2; });
  EXPECT_TRUE(a.candidacy->leads());
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  auto next = open(*b.leadership, address());
  EXPECT_EQ(all(*next), "jobs/1=b ");
  EXPECT_TRUE(commit_rows(*next, row(TableName::kJobs, 1, "c")));
}

// A leads throughout the test. B loses its lease while etcd takes no puts from it, so its registration fails at least once.
class RegistrationTest : public CandidacyTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(stand(a_, "h:1", "f", address(), 600));
    until([&] { return a_.leadership.has_value(); });
    ASSERT_TRUE(stand(b_, "h:2", "f", proxy_.address(name()), 600));
    until([&] { return a_.heads.size() == 2 && b_.heads.size() == 2 && b_.leader == "h:1"; });
    proxy_.die_after(0);
    const auto leader = Client::open(address(), 60s).value()->range(leader_key(address()), leader_key(address()) + '\0', 1).value().at(0);
    const auto keeps = nlohmann::json::parse(leader.value)["lease"].get<std::string>();
    const auto there = ask("lease/leases", nlohmann::json::object());
    for (const auto& lease : there.at("leases")) {
      if (lease["ID"] != keeps) (void)ask("lease/revoke", lease);
    }
    until([&] { return proxy_.dropped_puts() > 0; });
    ASSERT_EQ(num_keys("heads/"), 1u);
  }
  Proxy proxy_{server_->port()};
  Head a_, b_;
};

TEST_F(RegistrationTest, AHeadThatCouldNotRegisterAgainDoesSoAsSoonAsItCan) {
  proxy_.next(Proxy::kNone);
  until([&] { return num_keys("heads/") == 2 && a_.heads.size() == 2 && b_.heads.size() == 2; });
  a_.candidacy.reset();
  until([&] { return b_.leadership.has_value(); });
}

TEST_F(RegistrationTest, AnEndAnnouncedMeanwhileEndsIt) {
  (void)Client::open(address(), 60s).value()->txn(nlohmann::json::array(), nlohmann::json::array({put(address().key("ended"), "a")}));
  proxy_.next(Proxy::kNone);
  until([&] { return b_.ended; });
  EXPECT_FALSE(b_.leadership.has_value());
}

TEST_F(CandidacyTest, ACandidateWithoutItsKeyRegistersAgain) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  const auto client = Client::open(address(), 60s).value();
  const auto put_at = [&]() -> std::int64_t {
    const auto heads = client->range(address().key("heads/"), end_of(address().key("heads/")), 10).value();
    for (const auto& kv : heads) {
      if (kv.value == "h:2") return kv.create_revision;
    }
    return 0;
  };
  const auto first = put_at();
  ASSERT_NE(first, 0);
  (void)client->txn(nlohmann::json::array(), nlohmann::json::array({erase_below(address().key("heads/"))}));
  until([&] { return put_at() > first; });
}

TEST_F(CandidacyTest, AHeadWithoutAProvenLeaseDoesNotLead) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value() && a.candidacy->leads(); });
  server_->stop();
  until([&] { return !a.candidacy->leads(); });
  server_->go_on();
  ASSERT_TRUE(stand(b, "h:2"));
  until([&] { return a.candidacy->leads() || b.leadership.has_value(); });  // the lease survived, or the next head leads
  EXPECT_NE(a.candidacy->leads(), b.leadership.has_value());
}

TEST_F(CandidacyTest, AnotherTokenIsRefusedAndTheEndReachesAllHeads) {
  Head a, b, c;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2"));
  const auto refused = stand(c, "h:3", "other");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "TokenRefused");
  const auto since = b.candidacy->since();
  ASSERT_TRUE(a.candidacy->end_cluster());
  until([&] { return b.ended; });
  EXPECT_FALSE(a.ended);
  a.candidacy.reset();
  b.candidacy.reset();
  ASSERT_TRUE(stand(c, "h:3"));  // the end does not concern a later head
  until([&] { return c.leadership.has_value(); });
  EXPECT_FALSE(c.ended);
  Head again;
  again.since = since;  // a head of a session that the end concerns, which is started again
  ASSERT_TRUE(stand(again, "h:2"));
  EXPECT_EQ(again.candidacy->since(), since);
  until([&] { return again.ended; });
  EXPECT_FALSE(again.leadership.has_value());
}

}  // namespace
}  // namespace shoal::scheduler::etcd
