#include "fsdp/link/stream.h"

#include <algorithm>
#include <cstring>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kSmall = 32 << 10;  // fragments below this size share a message

std::size_t bytes_of(const Message& message) {
  std::size_t out = 0;
  for (const Fragment& f : message) out += f.bytes;
  return out;
}

}  // namespace

std::vector<Message> messages_of(std::span<const std::size_t> piece_bytes) {
  std::vector<Message> out;
  Message small;
  std::size_t small_bytes = 0;
  const auto close = [&] {
    if (!small.empty()) out.push_back(std::move(small));
    small.clear();
    small_bytes = 0;
  };
  for (std::size_t p = 0; p < piece_bytes.size(); ++p) {
    for (std::size_t at = 0; at < piece_bytes[p]; at += StreamSender::kMessageBytes) {
      const Fragment f{p, at, std::min(StreamSender::kMessageBytes, piece_bytes[p] - at)};
      if (f.bytes >= kSmall) {
        out.push_back({f});
        continue;
      }
      if (small_bytes + f.bytes > StreamSender::kMessageBytes) close();
      small.push_back(f);
      small_bytes += f.bytes;
    }
  }
  close();
  return out;
}

// ---- sending ---------------------------------------------------------------------------------------------------------------------------

void StreamSender::begin(std::vector<std::byte> header, std::vector<OutgoingPiece> pieces) {
  header_ = std::move(header);
  pieces_ = std::move(pieces);
  std::vector<std::size_t> sizes;
  for (const auto& p : pieces_) sizes.push_back(p.bytes);
  messages_ = messages_of(sizes);
  begun_ = ended_ = 0;
  busy_ = true;
  header_sent_ = {};
  layer_.send(to_, channels_.headers, header_, header_sent_);
}

std::span<const std::byte> StreamSender::data_of(const Message& message, std::vector<std::byte>& buffer) {
  const Fragment& first = message.front();
  if (const auto* data = pieces_[first.piece].data; message.size() == 1 && data != nullptr) return {data + first.offset, first.bytes};
  buffer.resize(bytes_of(message));
  std::size_t at = 0;
  for (const Fragment& f : message) {
    const OutgoingPiece& piece = pieces_[f.piece];
    const std::span<std::byte> out(buffer.data() + at, f.bytes);
    if (piece.data != nullptr) {
      std::memcpy(out.data(), piece.data + f.offset, f.bytes);
    } else {
      piece.compute(f.offset, out);
    }
    at += f.bytes;
  }
  return buffer;
}

void StreamSender::send_next() {
  const std::size_t k = begun_ % kAtOnce;
  sent_[k] = {};
  layer_.send(to_, channels_.data, data_of(messages_[begun_], buffers_[k]), sent_[k]);
  ++begun_;
}

bool StreamSender::advance() {
  if (!busy_) return false;
  bool progress = false;
  while (begun_ < messages_.size() && begun_ - ended_ < kAtOnce) {
    send_next();
    progress = true;
  }
  const auto pending = [](const Transfer& t) { return t.state == Transfer::State::kPending; };
  while (ended_ < begun_ && !pending(sent_[ended_ % kAtOnce])) {
    if (!sent_[ended_ % kAtOnce].complete()) begun_ = messages_.size();  // the rank cannot be reached: begin no more
    ++ended_;
    progress = true;
  }
  const bool over = begun_ == messages_.size() && std::ranges::none_of(sent_, pending) && !pending(header_sent_);
  if (!over) return progress;
  busy_ = false;
  pieces_.clear();
  return true;
}

// ---- receiving -------------------------------------------------------------------------------------------------------------------------

void StreamReceiver::receive_header() {
  state_ = State::kHeader;
  header_received_ = {};
  layer_.receive(from_, channels_.headers, header_, header_received_);
}

void StreamReceiver::receive_next() {
  const std::size_t k = begun_ % received_.size();
  const Message& message = messages_[begun_];
  std::span<std::byte> memory;
  if (message.size() == 1) {
    memory = pieces_[message.front().piece].subspan(message.front().offset, message.front().bytes);
  } else {
    buffers_[k].resize(bytes_of(message));
    memory = buffers_[k];
  }
  received_[k] = {};
  layer_.receive(from_, channels_.data, memory, received_[k]);
  ++begun_;
}

void StreamReceiver::finish_message(const Message& message, const std::vector<std::byte>& buffer) {
  if (message.size() == 1) return;
  std::size_t at = 0;
  for (const Fragment& f : message) {
    std::memcpy(pieces_[f.piece].data() + f.offset, buffer.data() + at, f.bytes);
    at += f.bytes;
  }
}

bool StreamReceiver::take_header() {
  if (header_received_.state == Transfer::State::kPending) return false;
  auto pieces = header_received_.complete() ? handler_.on_header(std::span(header_).first(header_received_.bytes)) : std::nullopt;
  if (!pieces) {
    state_ = State::kEnded;
    return true;
  }
  pieces_ = *std::move(pieces);
  std::vector<std::size_t> sizes;
  for (const auto& p : pieces_) sizes.push_back(p.size());
  messages_ = messages_of(sizes);
  begun_ = ended_ = 0;
  state_ = State::kPieces;
  return true;
}

bool StreamReceiver::advance() {
  bool progress = false;
  while (state_ != State::kEnded) {
    if (state_ == State::kHeader) {
      if (!take_header()) return progress;
      progress = true;
      continue;
    }
    while (begun_ < messages_.size() && begun_ - ended_ < received_.size()) receive_next();
    if (ended_ < begun_) {
      const std::size_t k = ended_ % received_.size();
      if (received_[k].state == Transfer::State::kPending) return progress;
      progress = true;
      if (!received_[k].complete() || received_[k].bytes != bytes_of(messages_[ended_])) {
        state_ = State::kEnded;
        return progress;
      }
      finish_message(messages_[ended_++], buffers_[k]);
      continue;
    }
    handler_.on_record();
    progress = true;
    receive_header();
  }
  return progress;
}

}  // namespace shoal::fsdp
