#include "runtime/transport/messages/message_communicator.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "runtime/transport/messages/message_operation.h"

namespace shoal::runtime {

namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);  // interval at which a sleeping wait calls check_wait()
constexpr auto kInFlight = std::chrono::milliseconds(20);       // how long messages that were sent before a failure may still arrive

}  // namespace

class MessageCommunicator::MessageWork final : public Work {
 public:
  MessageWork(std::shared_ptr<MessageCommunicator> communicator, OperationPtr operation)
      : communicator_(std::move(communicator)), operation_(std::move(operation)) {}
  // Also after a failure, ended() implies that the operation uses its buffers no more.
  bool ended() const override {
    return operation_->ended() || communicator_->pending_.forked() ||
           (communicator_->failed() && communicator_->pending_.settle(operation_));
  }
  Result<void> wait() override { return communicator_->pending_.wait(operation_); }

 private:
  const std::shared_ptr<MessageCommunicator> communicator_;
  const OperationPtr operation_;
};

// ---- setup and leaving -------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Communicator>> MessageCommunicator::make(CommunicatorRequest request, std::shared_ptr<Clock> clock) {
  if (request.messages->chunk_bytes < 16 || request.messages->chunk_bytes % 16 != 0)
    return fail(invalid_argument(fmt::format("chunks of {} bytes are no multiple of 16", request.messages->chunk_bytes)));
  SHOAL_TRY(auto layer, request.messages->open());
  std::vector<int> ranks(static_cast<std::size_t>(request.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int rank = request.rank;
  return std::shared_ptr<Communicator>(
      new MessageCommunicator(std::move(request), std::move(clock), std::move(layer), std::move(ranks), rank, 1));
}

MessageCommunicator::MessageCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<MessageLayer> layer,
                                         std::vector<int> ranks, int rank, std::uint64_t generation)
    : request_(std::move(request)),
      clock_(std::move(clock)),
      generation_(generation),
      pending_(static_cast<int>(ranks.size()), *this, request_.interrupted),
      group_(std::move(layer), std::move(ranks), rank, *clock_, request_) {}

MessageCommunicator::~MessageCommunicator() {
  if (pending_.forked()) return;  // the parent remains a rank
  pending_.stop();
  leave();
}

template <class F>
void MessageCommunicator::in_turn(PendingOperations::Lock& lock, F&& act) const {
  ++wanted_;
  while (pending_.driven(lock)) {
    group_.layer()->wake();
    pending_.await_turn(lock);
  }
  (void)pending_.take_turn(lock, [&]() -> Result<void> {
    --wanted_;
    act();
    return {};
  });
}

void MessageCommunicator::leave() {
  if (pending_.forked() || left_.exchange(true)) return;
  auto lock = pending_.lock();
  in_turn(lock, [this] { group_.leave(); });
}

std::optional<Error> MessageCommunicator::unusable() const {
  if (pending_.forked()) return forked_child_error();
  if (left_) return unavailable("this communicator was left").with_reason("Closed");
  return std::nullopt;
}

void MessageCommunicator::abort(const Error& cause) {
  if (pending_.forked()) return;
  group_.fail(cause);
  auto lock = pending_.lock();
  in_turn(lock, [this] { group_.close(); });
}

std::optional<Error> MessageCommunicator::failed() const { return pending_.forked() ? unusable() : group_.failure(); }

std::vector<int> MessageCommunicator::lost() const {
  if (pending_.forked()) return {};
  if (group_.closed()) return group_.lost();  // does not drive the layer, which may belong to the next generation
  std::vector<int> out;
  auto lock = pending_.lock();
  in_turn(lock, [&] {
    group_.progress();
    out = group_.lost();
  });
  return out;
}

Result<std::shared_ptr<Communicator>> MessageCommunicator::reform() {
  if (auto error = unusable()) return fail(*std::move(error));
  abort(unavailable(fmt::format("rank {} forms the group again, without the ranks that are lost", rank())).with_reason("Reformed"));
  Result<std::vector<int>> ranks = std::vector<int>();
  {
    auto lock = pending_.lock();
    in_turn(lock, [&] { ranks = group_.agree_on_survivors(request_.timeout); });
  }
  if (!ranks) return fail(std::move(ranks).error());
  const auto own = std::find(ranks->begin(), ranks->end(), rank());
  if (own == ranks->end())
    return fail(unavailable(fmt::format("the group was formed again without rank {}", rank())).with_reason("Reformed"));
  left_ = true;  // the layer belongs to the next generation
  return std::shared_ptr<Communicator>(new MessageCommunicator(request_, clock_, group_.layer(), group_.layer_ranks(*ranks),
                                                               static_cast<int>(own - ranks->begin()), generation_ + 1));
}

Result<std::shared_ptr<Window>> MessageCommunicator::window(std::size_t, Call) {
  return fail(unimplemented("ranks that share no memory have no windows to read from yet").with_hint("send and receive instead"));
}

Result<void> MessageCommunicator::read(Window&, int, std::size_t, MutableBytes) {
  return fail(unimplemented("ranks that share no memory cannot read each other's").with_hint("send and receive instead"));
}

// ---- submitting --------------------------------------------------------------------------------------------------------------------

WorkPtr MessageCommunicator::submitted(PendingOperations::Lock lock, OperationPtr operation) {
  pending_.submitted(std::move(lock), *operation);
  return std::make_shared<MessageWork>(shared_from_this(), std::move(operation));
}

WorkPtr MessageCommunicator::start_collective(CollectiveSpec spec, Call call) {
  if (pending_.forked()) return failed_work(*unusable());
  auto lock = pending_.lock();
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto operation =
      std::make_shared<MessageCollective>(group_, pending_.next_sequence(lock), std::move(spec), std::move(call), clock_->now());
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_collective(lock, operation);
  return submitted(std::move(lock), std::move(operation));
}

WorkPtr MessageCommunicator::start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) {
  if (pending_.forked()) return failed_work(*unusable());
  auto lock = pending_.lock();
  if (auto error = unusable()) return failed_work(*std::move(error));
  // The const_cast is safe: a send only reads. MessageToRank has one span type for both directions.
  const MutableBytes bytes(const_cast<std::byte*>(data.data()), data.size());
  auto operation =
      std::make_shared<MessageToRank>(group_, MessageToRank::Way::kSend, to, bytes, dtype, tag, std::move(call), clock_->now());
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_send(lock, to, operation);
  return submitted(std::move(lock), std::move(operation));
}

WorkPtr MessageCommunicator::start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) {
  if (pending_.forked()) return failed_work(*unusable());
  auto lock = pending_.lock();
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto operation =
      std::make_shared<MessageToRank>(group_, MessageToRank::Way::kReceive, from, data, dtype, tag, std::move(call), clock_->now());
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_receive(lock, from, operation);
  return submitted(std::move(lock), std::move(operation));
}

// ---- driving -----------------------------------------------------------------------------------------------------------------------

Result<void> MessageCommunicator::drive(const OperationPtr& until) {
  return until ? drive([&] { return until->ended(); }, until) : drive([this] { return pending_.background_is_over(); }, until);
}

void MessageCommunicator::wake() { group_.layer()->wake(); }

bool MessageCommunicator::has_failed() const { return failed().has_value(); }

bool MessageCommunicator::over(bool) const { return has_failed() && group_.closed(); }

Error MessageCommunicator::failure_in(const std::string& what) const { return group_.failure_in(what); }

template <class Over>
Result<void> MessageCommunicator::drive(const Over& over, const OperationPtr& until) {
  Result<void> out;
  auto check_at = clock_->now() + kCheckInterval, moved_at = clock_->now();
  while (!over() && wanted_ == 0 && !group_.has_failed()) {
    const bool moved = group_.progress();
    if (group_.failure()) break;
    const bool advanced = advance_all(Start::kAllowed) || moved;
    if (over()) continue;
    if (!advanced) group_.layer()->wait(kCheckInterval);
    const auto now = clock_->now();
    if (advanced) moved_at = now;
    if (now < check_at) continue;
    check_at = now + kCheckInterval;
    if (until && request_.interrupted && request_.interrupted()) {
      out = fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
      break;
    }
    check_wait(until, now - moved_at >= kCheckInterval);
  }
  late_ = nullptr;
  if (!out || !group_.failure()) return out;
  // Completes operations to which all ranks had contributed before the failure: their data may be on the way.
  if (!group_.closed()) {
    for (const auto until_then = clock_->now() + kInFlight; !over() && clock_->now() < until_then;) {
      if (!(group_.progress() | advance_all(Start::kRefused))) group_.layer()->wait(kInFlight / 4);
    }
    group_.close();
  }
  return out;
}

bool MessageCommunicator::advance_all(Start start) {
  bool moved = false;
  for (bool finished = true; finished;) {
    finished = false;
    pending_.collect_heads(heads_);
    for (const auto& head : std::vector<OperationPtr>(heads_)) {
      if (start == Start::kRefused && !dynamic_cast<const MessageOperation&>(*head).started()) continue;
      auto advanced = head->advance();
      if (!advanced) {
        group_.fail(advanced.error());
        return false;
      }
      moved |= *advanced;
      if (!head->complete()) continue;
      pending_.finish(head);
      moved = finished = true;
    }
  }
  return moved;
}

std::string MessageCommunicator::describe(int rank) const {
  return rank < 0 ? "its data are on the way" : fmt::format("rank {} has not come to it, or its data are on the way", rank);
}

void MessageCommunicator::check_wait(const OperationPtr& until, bool idle) {
  pending_.collect_heads(heads_);
  if (heads_.empty()) return;
  const bool at_head = until && std::find(heads_.begin(), heads_.end(), until) != heads_.end();
  const Operation& at = at_head ? *until : *heads_.front();
  const int missing = at.missing();
  const auto now = clock_->now();
  if (idle && missing >= 0 && group_.has_left(missing)) {
    const auto waits = fmt::format("rank {} waits for it in {}", rank(), at.what());
    const auto death = group_.death(missing);
    group_.fail(unavailable(death ? fmt::format("rank {} is gone: {}; {}", missing, *death, waits)
                                  : fmt::format("rank {} has left, {}", missing, waits))
                    .with_reason("ActorDied")
                    .with_hint(fmt::format("look at the output of rank {}; every rank must make the same calls", missing)));
    return;
  }
  if (late_ != &at) {
    late_ = &at;
    warn_at_ = at.began() + request_.warn_after;
  }
  if (now >= warn_at_ && request_.warn) {
    warn_at_ = now + 6 * request_.warn_after;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - at.began()).count();
    request_.warn(fmt::format("rank {} waits in {} since {} s: {}", rank(), at.what(), seconds, describe(missing)));
  }
  for (const auto& head : heads_) check_limit(*head, now);
}

void MessageCommunicator::check_limit(const Operation& operation, TimePoint now) {
  const Duration limit = operation.call().timeout > Duration{} ? operation.call().timeout : request_.timeout;
  if (now - operation.began() <= limit) return;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - operation.began()).count();
  group_.fail(
      deadline_exceeded(fmt::format("rank {} waited {} ms in {}: {}", rank(), waited, operation.what(), describe(operation.missing())))
          .with_reason("Late")
          .with_hint("a rank made fewer calls, or is stuck outside the communicator"));
}

}  // namespace shoal::runtime
