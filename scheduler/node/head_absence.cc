#include "scheduler/node/head_absence.h"

#include <fmt/format.h>

namespace shoal::scheduler {

namespace {

auto seconds(runtime::Duration time) { return std::chrono::duration_cast<std::chrono::seconds>(time).count(); }

}  // namespace

void HeadAbsence::answered(runtime::TimePoint now) {
  since_ = now;
  refused_since_.reset();
}

std::optional<std::string> HeadAbsence::failed(const std::string& heads, const Error& why, runtime::TimePoint now) {
  const bool refused = why.reason() == "TokenRefused" || why.reason() == "CertificateRefused";
  if (!refused) refused_since_.reset();
  if (refused && !refused_since_) refused_since_ = now;
  if (refused_since_ && now - *refused_since_ >= limits_.refused) {
    return fmt::format("another cluster answers at {}, and has refused this node for {} s: {}", heads, seconds(now - *refused_since_),
                       why.message());
  }
  if (limits_.unreached && now - since_ >= *limits_.unreached) {
    return fmt::format("no head has answered at {} for {} s: {}", heads, seconds(now - since_), why.message());
  }
  return std::nullopt;
}

}  // namespace shoal::scheduler
