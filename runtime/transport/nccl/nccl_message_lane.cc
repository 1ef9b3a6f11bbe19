#include "runtime/transport/nccl/nccl_message_lane.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::runtime {

const std::shared_ptr<NcclMessage>& NcclMessageLane::head() const {
  static const std::shared_ptr<NcclMessage> none;
  return messages_.empty() ? none : messages_.front();
}

std::shared_ptr<NcclMessage> NcclMessageLane::take() {
  auto out = std::move(messages_.front());
  messages_.pop_front();
  step_ = Step::kIdle;
  return out;
}

bool NcclMessageLane::can_open() const {
  return channel_ &&
         std::all_of(messages_.begin(), messages_.end(), [](const auto& m) { return m->stage() >= NcclOperation::Stage::kOnStream; });
}

void NcclMessageLane::settle() {
  turn_.reset();
  if (describing_ == nullptr) return;
  // The description may have arrived before the failure. Then the message counts as described, as if this rank had noticed
  // the description in time.
  const auto described = std::exchange(describing_, nullptr)->wait();
  step_ = Step::kIdle;
  if (described && channel_ && (way_ == Way::kSend || check_description())) step_ = Step::kMove;
}

Result<bool> NcclMessageLane::advance(Duration timeout) {
  if (messages_.empty()) return false;
  switch (step_) {
    case Step::kIdle:
      SHOAL_OK(describe(timeout));
      step_ = Step::kDescribe;
      return true;
    case Step::kDescribe:
      if (!describing_->ended()) return false;
      SHOAL_OK(std::exchange(describing_, nullptr)->wait());
      if (way_ == Way::kReceive) SHOAL_OK(check_description());
      if (description_.has_id != 0) SHOAL_OK(connect());
      step_ = Step::kConnect;
      return true;
    case Step::kConnect: {
      SHOAL_TRY(const bool ready, channel_->ready());
      if (ready) step_ = Step::kMove;
      return ready;
    }
    case Step::kMove:
      return advance_head();
  }
  return false;
}

Result<bool> NcclMessageLane::advance_head() {
  using Stage = NcclOperation::Stage;
  auto& head = *messages_.front();
  if (head.stage() >= Stage::kOnStream || api_.issues_in_polls) return head.advance(api_, *device_, *channel_);
  if (head.by_caller) return false;
  if (head.stage() == Stage::kQueued && !turn_) {
    auto turn = order_.try_take();
    if (!turn) return false;
    turn_.emplace(*std::move(turn));
  }
  const auto moved = head.advance(api_, *device_, *channel_);
  // With its first message NCCL connects the two devices, for which it needs the other rank's call. In a ring of messages, the other rank
  // may make that call only after this rank's next call. So no thread waits for this message.
  if (!used_ || head.stage() != Stage::kBegun) turn_.reset();
  used_ |= head.stage() == Stage::kOnStream;
  return moved;
}

Result<void> NcclMessageLane::describe(Duration timeout) {
  const auto& message = *messages_.front();
  description_ = {{}, message.bytes(), message.tag(), static_cast<std::uint8_t>(message.dtype()), std::uint8_t{!channel_}};
  Call call;
  call.label = fmt::format("for {}", message.what());
  call.step = message.call().step;
  call.timeout = timeout;
  call.background = true;
  const auto bytes = std::as_writable_bytes(std::span(&description_, 1));
  if (way_ == Way::kReceive) {
    describing_ = control_->receive(bytes, other_, DType::kUInt8, 0, call);
    return {};
  }
  if (description_.has_id != 0) {
    const auto status = api_.get_unique_id(&description_.id);
    if (status != nccl::kSuccess) return fail(from_nccl(api_, status, nullptr, "naming a communicator"));
  }
  describing_ = control_->send(bytes, other_, DType::kUInt8, 0, call);
  return {};
}

Result<void> NcclMessageLane::check_description() const {
  const auto& message = *messages_.front();
  const auto dtype = static_cast<DType>(description_.dtype);
  if (description_.bytes == message.bytes() && description_.tag == message.tag() && dtype == message.dtype()) return {};
  return fail(invalid_argument(fmt::format("rank {} sends {} bytes of {} with tag {} to rank {}, which expects {} bytes of {} with tag {}",
                                           other_, description_.bytes, dtype_name(dtype), description_.tag, control_->rank(),
                                           message.bytes(), dtype_name(message.dtype()), message.tag()))
                  .with_reason("Diverged")
                  .with_hint("the n-th send of a rank matches the n-th receive of the other"));
}

Result<void> NcclMessageLane::connect() {
  if (channel_) return {};
  SHOAL_TRY(auto channel, NcclChannel::make(api_, device_));
  const bool sends = way_ == Way::kSend;
  const int own = control_->rank();
  SHOAL_OK(
      channel.connect(description_.id, 2, sends ? 0 : 1, fmt::format("messages {} to {}", sends ? own : other_, sends ? other_ : own)));
  channel_.emplace(std::move(channel));
  return {};
}

}  // namespace shoal::runtime
