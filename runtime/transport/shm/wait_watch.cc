#include "runtime/transport/shm/wait_watch.h"

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

// How long to wait for the cause of death of a rank that has left.
constexpr auto kDepartureGrace = std::chrono::seconds(1);

}  // namespace

void WaitWatch::check(std::span<const OperationPtr> heads, const Operation& at, bool blocked) {
  const int absent = missing(at);
  const auto now = clock_.now();
  if (blocked) {
    group_.ledger().block(absent, at.what());
    if (auto ok = group_.ledger().check_circle(now); !ok) {
      group_.ledger().fail(ok.error());
      return;
    }
  } else {
    group_.ledger().unblock();
  }
  check_left(at, absent, now);
  warn_if_late(at, absent, now);
  for (const auto& head : heads) check_limit(*head, now);
}

void WaitWatch::end() {
  group_.ledger().unblock();
  late_ = nullptr;
}

int WaitWatch::missing(const Operation& operation) const { return group_.met() ? operation.missing() : group_.first_absent(); }

std::string WaitWatch::describe(int rank) const { return rank < 0 ? "nobody in particular" : group_.ledger().describe(rank); }

void WaitWatch::check_left(const Operation& operation, int missing, TimePoint now) {
  if (missing < 0 || !group_.ledger().has_left(missing)) {
    left_since_.reset();
    return;
  }
  // A rank that has left has completed its part of earlier operations. If its process has ended, the node records the cause soon.
  if (!left_since_) left_since_ = now;
  const auto death = group_.death(missing);
  if (!death && now - *left_since_ < kDepartureGrace) return;
  group_.ledger().fail(unavailable(fmt::format("rank {} has left, rank {} waits for it in {}: {}", missing, group_.rank(), operation.what(),
                                               death.value_or("it is done with the communicator")))
                           .with_reason("ActorDied")
                           .with_hint(fmt::format("look at the output of rank {}; every rank must make the same calls", missing)));
}

void WaitWatch::warn_if_late(const Operation& operation, int missing, TimePoint now) {
  if (late_ != &operation) {
    late_ = &operation;
    warn_at_ = operation.began() + request_.warn_after;
  }
  if (now < warn_at_ || !request_.warn) return;
  warn_at_ = now + 6 * request_.warn_after;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - operation.began()).count();
  request_.warn(fmt::format("rank {} waits in {} since {} s: {}", group_.rank(), operation.what(), seconds, describe(missing)));
}

void WaitWatch::check_limit(const Operation& operation, TimePoint now) {
  const Duration limit = operation.call().timeout > Duration{} ? operation.call().timeout : request_.timeout;
  if (now - operation.began() <= limit) return;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - operation.began()).count();
  group_.ledger().fail(deadline_exceeded(fmt::format("rank {} waited {} ms in {}: {}", group_.rank(), waited, operation.what(),
                                                     describe(missing(operation))))
                           .with_reason("Late")
                           .with_hint("a rank made fewer calls, or is stuck outside the communicator"));
}

}  // namespace shoal::runtime
