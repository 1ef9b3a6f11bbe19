#include "runtime/transport/shm/shm_progress.h"

#include <algorithm>

#include "runtime/transport/shm/shm_operation.h"

namespace shoal::runtime {

namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);  // how often a wait that makes no progress calls check_wait()
constexpr auto kBackground = std::chrono::microseconds(20);     // longest polling before a sleep while the program computes

}  // namespace

Result<void> ShmProgress::drive(const OperationPtr& until) {
  return drive_until([&] { return until->ended(); }, until);
}

Result<void> ShmProgress::drive_background() {
  return drive_until([&] { return pending_.background_is_over(); }, nullptr);
}

template <class Over>
Result<void> ShmProgress::drive_until(const Over& over, const OperationPtr& until) {
  watch_.begin();
  Result<void> out;
  while (!over() && !group_.has_failed()) {
    if (advance_all()) {
      group_.notify_all();
      continue;
    }
    bool moved = false;
    const auto due = [&] { return group_.has_failed() || (moved = advance_all()) || over(); };
    const bool found = polls(due, until != nullptr) || group_.wait_until(due, kCheckInterval);
    if (moved) group_.notify_all();
    if (found) continue;
    if (until && request_.interrupted && request_.interrupted()) {
      out = fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
      break;
    }
    check_wait(until);
  }
  // Operations whose inputs were all there before the failure still complete.
  if (out && group_.ledger().failure()) {
    while (!over() && advance_all()) group_.notify_all();
  }
  watch_.end();
  return out;
}

Spin ShmProgress::spin_of(const CommunicatorRequest& request) {
  Spin::Options options;
  if (request.memory->shares_cores) options.alone = {};
  return Spin(options);
}

template <class Due>
bool ShmProgress::polls(const Due& due, bool program_waits) {
  if (!request_.memory->spins || !spin_.should_spin()) return false;
  return program_waits ? spin_.run(due) : spin_.run(due, kBackground);
}

bool ShmProgress::advance_all() {
  if (!group_.meet()) return false;
  bool moved = false;
  for (;;) {
    pending_.collect_heads(heads_);
    if (heads_.empty()) break;
    bool finished = false;
    for (const auto& head : std::vector<OperationPtr>(heads_)) {
      start(head);
      auto advanced = head->advance();
      if (!advanced) {
        group_.ledger().fail(advanced.error());
        return false;  // has_failed() then ends the wait
      }
      moved |= *advanced;
      if (!head->complete()) continue;
      finish(head);
      moved = finished = true;
    }
    if (!finished) break;
  }
  return moved;
}

void ShmProgress::start(const OperationPtr& operation) {
  auto* const collective = dynamic_cast<ShmCollective*>(operation.get());
  if (collective == nullptr || started_ == operation) return;
  started_ = operation;
  collective->start(round_);
}

void ShmProgress::finish(const OperationPtr& operation) {
  if (const auto* collective = dynamic_cast<const ShmCollective*>(operation.get())) {
    round_ = collective->end();
    started_ = nullptr;
  }
  pending_.finish(operation);
}

void ShmProgress::check_wait(const OperationPtr& until) {
  pending_.collect_heads(heads_);
  if (heads_.empty()) return;
  // The operation that blocks the program is `until`, if that is at the head of a queue, else the collective at the head.
  const bool at_head = until && std::find(heads_.begin(), heads_.end(), until) != heads_.end();
  watch_.check(heads_, at_head ? *until : *heads_.front(), pending_.program_is_blocked());
}

}  // namespace shoal::runtime
