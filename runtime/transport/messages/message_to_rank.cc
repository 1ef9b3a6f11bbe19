#include <cstring>

#include <fmt/format.h>

#include "runtime/transport/messages/message_operation.h"

namespace shoal::runtime {

MessageToRank::MessageToRank(MessageGroup& group, Way way, int peer, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call,
                             TimePoint began)
    : MessageOperation(std::move(call), began),
      group_(group),
      way_(way),
      peer_(peer),
      data_(data),
      dtype_(dtype),
      tag_(tag),
      stream_(way, peer, MessageLayer::Channel::kMessageData, data, data.size() > kInlineBytes ? data.size() : 0, group.chunk_bytes(),
              ChunkStream::Gate::kOpen) {}

std::string MessageToRank::what() const {
  std::string out =
      fmt::format("{} rank {} (tag {}, {} bytes of {})", sends() ? "send to" : "recv from", peer_, tag_, data_.size(), dtype_name(dtype_));
  if (!call().label.empty()) out += fmt::format(" '{}'", call().label);
  return out + fmt::format(", step {}", call().step);
}

void MessageToRank::start() {
  started_ = true;
  if (!sends()) {
    header_.resize(sizeof(Header) + kInlineBytes);
    group_.receive(peer_, MessageLayer::Channel::kMessages, header_, header_moved_);
    return;
  }
  Header header;
  header.dtype = static_cast<std::uint8_t>(dtype_);
  header.sent = data_.size();
  header.tag = tag_;
  header_ = encode(header, data_.size() <= kInlineBytes ? std::span<const std::byte>(data_) : std::span<const std::byte>());
  group_.send(peer_, MessageLayer::Channel::kMessages, header_, header_moved_);
  matched_ = true;
}

Result<void> MessageToRank::meet() {
  SHOAL_TRY(const Header header, decode(std::span(header_).first(header_moved_.bytes)));
  if (header.sent != data_.size() || header.tag != tag_ || header.dtype != static_cast<std::uint8_t>(dtype_)) {
    return fail(invalid_argument(fmt::format("rank {} is in {}, but rank {} sends {} bytes of {} with tag {}", group_.rank(), what(), peer_,
                                             header.sent, dtype_name(static_cast<DType>(header.dtype)), header.tag))
                    .with_reason("Diverged")
                    .with_hint("messages between two ranks arrive in the order in which they were sent"));
  }
  if (header.inline_bytes > 0) std::memcpy(data_.data(), header_.data() + sizeof header, data_.size());
  matched_ = true;
  return {};
}

Result<bool> MessageToRank::advance() {
  bool moved = !started_;
  if (!started_) start();
  if (!matched_ && header_moved_.state == MessageLayer::Transfer::State::kFailed) return fail(wrong_size(peer_));
  if (!matched_ && header_moved_.complete()) {
    SHOAL_OK(meet());
    moved = true;
  }
  while (matched_ && stream_.has_room()) {
    stream_.begin_next(group_);
    moved = true;
  }
  SHOAL_TRY(const bool ended, stream_.collect());
  return moved || ended;
}

}  // namespace shoal::runtime
