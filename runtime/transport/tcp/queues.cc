#include "runtime/transport/tcp/queues.h"

#include <algorithm>

namespace shoal::runtime {

namespace {

Error contradiction() { return data_loss("pieces of a message contradict each other").with_reason("MalformedFrame"); }

void end(Transfer*& transfer, Transfer::State state, std::size_t bytes) {
  if (transfer == nullptr) return;
  transfer->state = state;
  transfer->bytes = bytes;
  transfer = nullptr;
}

}  // namespace

void PostedReceives::post(std::span<std::byte> data, Transfer& transfer) {
  transfer.state = Transfer::State::kPending;
  posted_.push_back({data, &transfer, std::nullopt});
}

Result<std::optional<std::span<std::byte>>> PostedReceives::room(const Frame& frame) {
  if (frame.sequence < first_) return fail(contradiction());
  if (frame.sequence - first_ >= posted_.size()) return std::nullopt;
  Posted& posted = posted_[frame.sequence - first_];
  if (posted.total.value_or(frame.total) != frame.total || posted.claimed + frame.bytes > frame.total) return fail(contradiction());
  posted.total = frame.total;
  posted.claimed += frame.bytes;
  if (frame.total > posted.data.size()) {
    end(posted.transfer, Transfer::State::kFailed, frame.total);
    return std::optional(posted.data.first(0));
  }
  return std::optional(posted.data.subspan(frame.offset, frame.bytes));
}

bool PostedReceives::arrived(const Frame& frame) {
  Posted& posted = posted_[frame.sequence - first_];
  posted.arrived += frame.bytes;
  if (posted.arrived < frame.total) return false;
  end(posted.transfer, Transfer::State::kComplete, frame.total);
  for (; !posted_.empty() && posted_.front().total && posted_.front().arrived == *posted_.front().total; ++first_) posted_.pop_front();
  return true;
}

void PostedReceives::clear() {
  for (auto& posted : posted_) end(posted.transfer, Transfer::State::kFailed, 0);
  posted_.clear();
  first_ = 0;
}

void QueuedSends::push(std::span<const std::byte> data, Transfer& transfer) {
  transfer.state = Transfer::State::kPending;
  queued_.push_back({data, &transfer});
}

QueuedSends::Piece QueuedSends::take(std::uint32_t epoch, std::size_t limit) {
  Queued& message = queued_[taken_];
  Piece out;
  out.data = message.data.subspan(message.taken, std::min(limit, message.data.size() - message.taken));
  out.frame.channel = channel_;
  out.frame.epoch = epoch;
  out.frame.bytes = static_cast<std::uint32_t>(out.data.size());
  out.frame.sequence = first_ + taken_;
  out.frame.offset = message.taken;
  out.frame.total = message.data.size();
  message.taken += out.data.size();
  if (message.taken == message.data.size()) ++taken_;
  return out;
}

bool QueuedSends::written(const Frame& frame) {
  Queued& message = queued_[frame.sequence - first_];
  message.written += frame.bytes;
  if (message.written < frame.total) return false;
  end(message.transfer, Transfer::State::kComplete, 0);
  for (; taken_ > 0 && queued_.front().transfer == nullptr; ++first_, --taken_) queued_.pop_front();
  return true;
}

void QueuedSends::clear() {
  for (auto& message : queued_) end(message.transfer, Transfer::State::kFailed, 0);
  queued_.clear();
  first_ = taken_ = 0;
}

}  // namespace shoal::runtime
