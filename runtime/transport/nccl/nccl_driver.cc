#include "runtime/transport/nccl/nccl_driver.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

using namespace std::chrono_literals;

constexpr Duration kShortest = 5us, kLongest = 200us;  // between two looks at NCCL and the device, while operations are pending
constexpr Duration kIdle = 1s;                         // between two looks, without pending operations
constexpr auto kCheckInterval = 25ms;                  // between two looks at time limits and lost ranks
constexpr auto kLonely = 100ms;                        // how long data of a rank that is gone may still be on the way
constexpr auto kSignals = 50ms;                        // between two looks at signals in a wait
constexpr auto kGrace = 250ms;                         // for the watching thread to end what is late
constexpr auto kLeaving = 1s;                          // for a thread that issues to see a failure; after that it counts as stuck in NCCL
constexpr auto kClosing = 1s, kDraining = 5s;
// After so many looks at a call, some milliseconds, it counts as one for which NCCL connects ranks. A call that needs no other rank is on
// its stream by then. NCCL also connects later than with a communicator's first call: for another algorithm, and for an all_to_all.
constexpr int kConnectingPolls = 32;

}  // namespace

NcclDriver::NcclDriver(Parts parts, NcclChannel channel)
    : parts_(std::move(parts)), order_(NcclIssueOrder::of(*parts_.device)), channel_(std::move(channel)), agreement_(parts_.control) {
  thread_ = std::make_unique<SideThread>([this] { run(); });
}

NcclDriver::~NcclDriver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_all();
  thread_.reset();
}

Duration NcclDriver::timeout_of(const NcclOperation& operation) const {
  return operation.call().timeout > Duration{} ? operation.call().timeout : parts_.timeout;
}

// ---- any thread --------------------------------------------------------------------------------------------------------------------

Result<Event> NcclDriver::take_event() {
  if (events_.empty()) return parts_.device->make_event();
  Event out = std::move(events_.back());
  events_.pop_back();
  return out;
}

std::optional<Error> NcclDriver::prepare(NcclOperation& operation, std::optional<CudaStream> after) {
  auto end = take_event();
  if (!end) return std::move(end).error();
  operation.end = std::move(*end);
  if (!after) return std::nullopt;
  auto ready = take_event();
  if (!ready) return std::move(ready).error();
  operation.ready = std::move(*ready);
  if (auto recorded = parts_.device->record(operation.ready, *after); !recorded) return std::move(recorded).error();
  return std::nullopt;
}

Result<NcclDriver::OperationPtr> NcclDriver::submit(const MakeCollective& make, std::optional<CudaStream> after, Duration timeout) {
  SHOAL_TRY(auto turns, take_turns(timeout > Duration{} ? timeout : parts_.timeout));
  CollectivePtr operation;
  {
    const std::lock_guard lock(mutex_);
    operation = make(sequence_ + 1);
    operation->by_caller = turns.device.has_value();
    if (auto error = prepare(*operation, after)) return fail(*std::move(error));
    ++sequence_;
    new_collectives_.push_back(operation);
  }
  submitted_.notify_all();  // the watching thread compares the ranks' calls meanwhile
  if (operation->by_caller) issue(*operation, channel_, turns);
  return operation;
}

Result<NcclDriver::OperationPtr> NcclDriver::submit(std::shared_ptr<NcclMessage> message, std::optional<CudaStream> after) {
  SHOAL_TRY(auto turns, take_turns(timeout_of(*message)));
  NcclChannel* channel = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (auto error = prepare(*message, after)) return fail(*std::move(error));
    auto* const lane = find_lane(*message);
    if (turns.device && lane != nullptr && lane->open) channel = lane->channel();
    message->by_caller = channel != nullptr;
    new_messages_.push_back(message);
  }
  submitted_.notify_all();
  if (channel != nullptr) issue(*message, *channel, turns);
  return message;
}

Result<NcclDriver::Turns> NcclDriver::take_turns(Duration timeout) {
  const NcclIssueOrder::Limits limits{parts_.clock.get(), timeout, parts_.interrupted, [this] { return parts_.control->failed(); }};
  SHOAL_TRY(auto group, issuing_.take(limits));
  if (auto cause = parts_.control->failed()) return fail(*std::move(cause));
  if (parts_.api->issues_in_polls) return Turns{std::move(group), std::nullopt};
  SHOAL_TRY(auto device, order_->take(limits));
  return Turns{std::move(group), std::move(device)};
}

void NcclDriver::issue(NcclOperation& operation, NcclChannel& channel, Turns& turns) {
  // After a failure of the group, the watching thread ends the operation with its cause.
  if (auto put = put_on_stream(operation, channel, turns); !put) parts_.control->abort(put.error());
  submitted_.notify_all();
}

Result<void> NcclDriver::put_on_stream(NcclOperation& operation, NcclChannel& channel, Turns& turns) {
  using Stage = NcclOperation::Stage;
  auto signals_at = parts_.clock->now() + kSignals;
  Duration pause = kShortest;
  for (int num_polls = 0;; ++num_polls) {
    SHOAL_TRY(const bool moved, operation.advance(*parts_.api, *parts_.device, channel));
    if (operation.stage() >= Stage::kOnStream) break;  // the watching thread may already have seen it pass
    if (moved) continue;
    if (parts_.control->failed()) return {};
    if (num_polls >= kConnectingPolls && operation.stage() == Stage::kBegun) turns.device.reset();
    if (!signals(signals_at)) {
      // The buffers are in use, and the caller drops the operation. So the group ends, and the cause names this rank to the other ranks.
      return fail(cancelled(fmt::format("rank {} was interrupted by a signal while NCCL had only some of the calls for {}",
                                        parts_.control->rank(), operation.what()))
                      .with_reason("RankInterrupted")
                      .with_hint("the ranks can form the group again; NCCL connects the devices with a group's first operation"));
    }
    const auto waited = parts_.clock->now() - operation.began();
    if (waited > timeout_of(operation)) {
      return fail(deadline_exceeded(fmt::format("rank {} waited {} ms for the other ranks' part in {}", parts_.control->rank(),
                                                std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), operation.what()))
                      .with_reason("Late")
                      .with_hint("NCCL connects the devices with a group's first operation; NCCL_DEBUG=INFO prints the connections"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + pause / 4, kLongest);
  }
  mark_on_stream(operation);
  return {};
}

Result<void> NcclDriver::signals(TimePoint& at) const {
  if (!parts_.interrupted || parts_.clock->now() < at) return {};
  const bool stop = parts_.interrupted();
  at = parts_.clock->now() + kSignals;
  return stop ? fail(cancelled("interrupted by a signal").with_reason("Interrupted")) : Result<void>();
}

void NcclDriver::mark_on_stream(NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  operation.on_stream = true;
  changed_.notify_all();
}

Result<void> NcclDriver::wait(const NcclOperation& operation) {
  std::unique_lock lock(mutex_);
  auto signals_at = parts_.clock->now() + kSignals;
  while (!operation.ended()) {
    changed_.wait_for(lock, kSignals);
    if (operation.ended()) break;
    lock.unlock();
    const auto stop = signals(signals_at);
    lock.lock();
    if (!stop && !operation.ended()) return stop;
  }
  if (operation.error) return fail(*operation.error);
  return {};
}

Result<void> NcclDriver::order_after(const NcclOperation& operation, CudaStream stream) {
  std::unique_lock lock(mutex_);
  const auto began = parts_.clock->now();
  auto signals_at = began + kSignals;
  while (!operation.ended() && !operation.on_stream) {
    changed_.wait_for(lock, kSignals);
    if (operation.ended() || operation.on_stream) break;
    lock.unlock();
    const auto stop = signals(signals_at);
    const auto waited = parts_.clock->now() - began;
    lock.lock();
    if (operation.ended() || operation.on_stream) break;
    if (!stop) return stop;
    if (waited <= timeout_of(operation) + kGrace) continue;
    return fail(
        deadline_exceeded(fmt::format("rank {} waited {} ms for {} to be on its stream", parts_.control->rank(),
                                      std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), operation.what()))
            .with_reason("Late")
            .with_hint("the thread that watches the group is stuck in the driver or in NCCL; NCCL_DEBUG=INFO prints what NCCL does"));
  }
  if (operation.error) return fail(*operation.error);
  return operation.ended() ? Result<void>() : parts_.device->wait(stream, operation.end);
}

Result<void> NcclDriver::wait_until_closed() {
  std::unique_lock lock(mutex_);
  auto signals_at = parts_.clock->now() + kSignals;
  nudged_ = true;
  submitted_.notify_all();
  while (!changed_.wait_for(lock, kSignals, [&] { return closed_; })) {
    lock.unlock();
    SHOAL_OK(signals(signals_at));
    lock.lock();
  }
  return {};
}

// ---- the thread --------------------------------------------------------------------------------------------------------------------

void NcclDriver::run() {
  Duration pause = kShortest;
  check_at_ = parts_.clock->now() + kCheckInterval;
  while (true) {
    take_submitted();
    pause = step() ? kShortest : std::min(pause + pause / 4, kLongest);
    std::unique_lock lock(mutex_);
    const auto more = [&] { return stopping_ || nudged_ || !new_collectives_.empty() || !new_messages_.empty(); };
    if (pause > kShortest && submitted_.wait_for(lock, idle() ? Duration(kIdle) : pause, more)) pause = kShortest;
    nudged_ = false;
    if (stopping_) break;
  }
  take_submitted();
  if (closed_) return;
  if (!idle()) return close(unavailable("the communicator has ended").with_reason("Closed"));
  const auto until = parts_.clock->now() + kClosing;
  const auto in_time = [&] {
    rest();
    return parts_.clock->now() < until && !parts_.control->failed();
  };
  channel_.close(in_time);
  for (auto& [key, lane] : lanes_) {
    if (lane.channel() != nullptr) lane.channel()->close(in_time);
  }
}

bool NcclDriver::idle() const {
  return collectives_.empty() && std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane.second.head() == nullptr; });
}

void NcclDriver::rest() {
  std::unique_lock lock(mutex_);
  rested_.wait_for(lock, kLongest);
}

void NcclDriver::take_submitted() {
  const std::lock_guard lock(mutex_);
  for (auto& operation : new_collectives_) collectives_.push_back(std::move(operation));
  for (auto& message : new_messages_) lane_of(*message).add(std::move(message));
  new_collectives_.clear();
  new_messages_.clear();
}

NcclMessageLane* NcclDriver::find_lane(const NcclMessage& message) {
  const auto found = lanes_.find({message.way(), message.other()});
  return found == lanes_.end() ? nullptr : &found->second;
}

NcclMessageLane& NcclDriver::lane_of(const NcclMessage& message) {
  return lanes_
      .try_emplace({message.way(), message.other()}, *parts_.api, parts_.device, parts_.control, *order_, message.way(), message.other())
      .first->second;
}

// Called before the program learns of its first message's end: a program that waits for this then issues its next message itself.
void NcclDriver::open_if_through(NcclMessageLane& lane) {
  if (parts_.api->issues_in_polls || !lane.can_open()) return;
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const auto& message) { return !message->by_caller && find_lane(*message) == &lane; };
  lane.open = lane.open || std::none_of(new_messages_.begin(), new_messages_.end(), waits);
}

bool NcclDriver::step() {
  auto moved = parts_.control->failed() ? Result<bool>(true) : advance_all();
  if (moved && !*moved) {
    if (auto checked = check(); !checked) moved = fail(std::move(checked).error());
  }
  if (!moved) parts_.control->abort(moved.error());
  if (const auto cause = parts_.control->failed()) {
    close(*cause);
    return false;
  }
  return moved && *moved;
}

Result<bool> NcclDriver::advance_all() {
  SHOAL_TRY(bool moved, advance_collectives());
  for (auto& [key, lane] : lanes_) {
    SHOAL_TRY(const bool lane_moved, advance_lane(lane));
    moved |= lane_moved;
  }
  return moved;
}

Result<bool> NcclDriver::advance(NcclOperation& operation, NcclChannel& channel) {
  SHOAL_TRY(const bool moved, operation.advance(*parts_.api, *parts_.device, channel));
  if (moved && operation.stage() == NcclOperation::Stage::kOnStream) mark_on_stream(operation);
  return moved;
}

Result<bool> NcclDriver::advance_collectives() {
  bool moved = false;
  if (num_on_stream_ < collectives_.size()) {
    auto& next = *collectives_[num_on_stream_];
    if (!next.by_caller) {
      SHOAL_TRY(const bool advanced, advance(next, channel_));
      moved |= advanced;
    }
    if (next.stage() >= NcclOperation::Stage::kOnStream) {
      ++num_on_stream_;
      moved = true;
    }
  }
  if (!agreement_.busy() && num_agreed_ < collectives_.size()) {
    agreement_.begin(collectives_[num_agreed_], timeout_of(*collectives_[num_agreed_]));
    moved = true;
  }
  if (agreement_.busy()) {
    SHOAL_TRY(const bool advanced, agreement_.advance());
    moved |= advanced;
    if (collectives_[num_agreed_]->agreed()) ++num_agreed_;
  }
  while (num_on_stream_ > 0 && num_agreed_ > 0) {
    auto& front = *collectives_.front();
    SHOAL_OK(advance(front, channel_));
    if (front.stage() != NcclOperation::Stage::kPassed) break;
    const auto ended = std::move(collectives_.front());
    collectives_.pop_front();
    --num_on_stream_;
    --num_agreed_;
    finish(*ended, std::nullopt);
    moved = true;
  }
  return moved;
}

Result<bool> NcclDriver::advance_lane(NcclMessageLane& lane) {
  if (lane.head() == nullptr) return false;
  const auto head = lane.head();
  SHOAL_TRY(const bool moved, lane.advance(timeout_of(*head)));
  if (moved) open_if_through(lane);  // before the program learns that the message is on the stream
  if (moved && head->stage() == NcclOperation::Stage::kOnStream) mark_on_stream(*head);
  if (head->stage() == NcclOperation::Stage::kPassed) finish(*lane.take(), std::nullopt);
  return moved;
}

void NcclDriver::finish(NcclOperation& operation, std::optional<Error> error, Events events) {
  const std::lock_guard lock(mutex_);
  for (auto* const event : {&operation.ready, &operation.end}) {
    if (*event && events == Events::kReuse) events_.push_back(std::move(*event));
  }
  operation.error = std::move(error);
  operation.set_ended();
  changed_.notify_all();
}

// ---- failures ----------------------------------------------------------------------------------------------------------------------

Result<void> NcclDriver::check() {
  const auto now = parts_.clock->now();
  if (now < check_at_) return {};
  check_at_ = now + kCheckInterval;
  const bool stuck = num_agreed_ > 0;  // else the agreement is pending, and the control communicator watches over that
  const bool any_lane =
      std::any_of(lanes_.begin(), lanes_.end(), [](auto& l) { return l.second.head() != nullptr && l.second.described(); });
  if (!stuck && !any_lane) return {};
  const auto lost = parts_.control->lost();
  if (stuck) {
    SHOAL_OK(channel_.ready());  // returns an error that NCCL itself has found
    SHOAL_OK(check_operation(*collectives_.front(), lost, -1, now));
  }
  for (auto& [key, lane] : lanes_) {
    if (lane.head() == nullptr || !lane.described()) continue;
    SHOAL_OK(lane.channel()->ready());
    SHOAL_OK(check_operation(*lane.head(), lost, lane.other(), now));
  }
  return {};
}

Result<void> NcclDriver::check_operation(NcclOperation& operation, const std::vector<int>& lost, int other, TimePoint now) const {
  const auto gone = other < 0 ? lost.begin() : std::find(lost.begin(), lost.end(), other);
  // A rank may leave once its own part is complete, while this rank's device is still busy with work before the operation.
  const auto ready = operation.ready ? parts_.device->passed(operation.ready) : Result<bool>(true);
  if (gone == lost.end() || !ready || !*ready) {
    operation.lonely_since.reset();
  } else if (!operation.lonely_since) {
    operation.lonely_since = now;
  } else if (now - *operation.lonely_since >= kLonely) {
    return fail(unavailable(fmt::format("rank {} has left or died, rank {} waits for its data in {}", *gone, parts_.control->rank(),
                                        operation.what()))
                    .with_reason("ActorDied")
                    .with_hint(fmt::format("look at the output of rank {}", *gone)));
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - operation.began());
  if (now - operation.began() <= timeout_of(operation)) return {};
  return fail(
      deadline_exceeded(
          fmt::format("rank {} waited {} ms in {}: its data are on the way", parts_.control->rank(), waited.count(), operation.what()))
          .with_reason("Late")
          .with_hint("a rank's device is stuck or busy, or the network between devices is; NCCL_DEBUG=INFO prints the connections"));
}

bool NcclDriver::complete_begun() {
  using Stage = NcclOperation::Stage;
  bool begun = false;
  while (!collectives_.empty() && collectives_.front()->agreed() && collectives_.front()->stage() != Stage::kQueued) {
    const auto front = collectives_.front();
    const auto advanced = advance(*front, channel_);
    if (!advanced) return false;
    if (front->stage() == Stage::kPassed) {
      collectives_.pop_front();
      finish(*front, std::nullopt);
    } else if (!*advanced) {
      begun = true;
      break;
    }
  }
  for (auto& [key, lane] : lanes_) {
    if (lane.head() == nullptr || lane.head()->stage() == Stage::kQueued || !lane.described()) continue;
    const auto advanced = lane.advance({});
    if (!advanced) continue;
    if (lane.head()->stage() == Stage::kPassed) {
      finish(*lane.take(), std::nullopt);
    } else {
      begun = true;
    }
  }
  return begun;
}

void NcclDriver::close(const Error& cause) {
  // A thread that issues leaves as soon as it sees the failure. If the thread is stuck in NCCL, only the abort can end its call.
  const auto turn = issuing_.take({parts_.clock.get(), kLeaving});
  if (!closed_) {
    // The agreement that is under way ends at once, since its communicator has failed. It may have succeeded before that.
    while (agreement_.busy() && agreement_.settle()) {
    }
    for (auto& [key, lane] : lanes_) lane.settle();
    const auto until = parts_.clock->now() + parts_.in_flight;
    while (complete_begun() && parts_.clock->now() < until) rest();
    abort_channels();
  }
  end_all(cause, !turn.has_value());
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void NcclDriver::end_all(const Error& cause, bool issuing) {
  const auto end = [&](NcclOperation& operation) {
    const bool in_use = issuing && operation.by_caller && operation.stage() < NcclOperation::Stage::kOnStream;
    finish(operation, Error(cause).in(operation.what()), in_use ? Events::kInUse : Events::kReuse);
  };
  for (const auto& operation : collectives_) end(*operation);
  collectives_.clear();
  for (auto& [key, lane] : lanes_) {
    while (lane.head() != nullptr) end(*lane.take());
  }
}

void NcclDriver::abort_channels() {
  std::vector<NcclChannel*> channels{&channel_};
  for (auto& [key, lane] : lanes_) {
    if (lane.channel() != nullptr) channels.push_back(lane.channel());
  }
  for (auto* const channel : channels) channel->abort();
  // The device may still read and write the buffers until its streams have passed the aborted work. So no operation ends before.
  const auto until = parts_.clock->now() + kDraining;
  const auto stopping = [&] {
    const std::lock_guard lock(mutex_);
    return stopping_;
  };
  for (auto* const channel : channels) {
    auto end = parts_.device->make_event();
    if (!end || !parts_.device->record(*end, channel->stream())) continue;
    for (auto passed = parts_.device->passed(*end); passed && !*passed; passed = parts_.device->passed(*end)) {
      const bool overdue = parts_.clock->now() >= until;
      if (overdue && stopping()) return;
      if (parts_.api->drain != nullptr) parts_.api->drain(overdue);
      rest();
    }
  }
}

}  // namespace shoal::runtime
