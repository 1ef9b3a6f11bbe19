#include "runtime/transport/tcp/connection.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr std::size_t kTurn = 1 << 20;        // bytes that a connection moves each way before others get their turn
constexpr std::size_t kSmallStage = 4 << 10;  // lets header and small message arrive in one system call
constexpr std::size_t kDiscardAtOnce = 64 << 10;

bool is_bulk(MessageLayer::Channel channel) {
  using enum MessageLayer::Channel;
  return channel == kData || channel == kResults || channel == kMessageData;
}

Error closed() { return unavailable("the other side closed the connection").with_reason("HungUp"); }

}  // namespace

Connection::Connection(Place place, ByteStream stream, MessageLayer::Channel channel, PostedReceives& receives, QueuedSends& sends,
                       std::uint32_t epoch, std::size_t piece_bytes)
    : place_(place),
      stream_(std::move(stream)),
      channel_(channel),
      receives_(receives),
      sends_(sends),
      epoch_(epoch),
      piece_bytes_(piece_bytes),
      staged_(is_bulk(channel) ? Frame::kBytes : kSmallStage) {
  readable = writable = true;  // also without an event: TLS may have read ahead
  place_.poller.add(stream_.socket(), *this);
  place_.poller.queue(*this);
}

void Connection::advance() {
  read();
  write();
}

void Connection::read() {
  std::size_t budget = kTurn;
  while (!broken_) {
    if (!frame_) {
      if (end_ - begin_ >= Frame::kBytes) {
        if (!begin_piece()) return;
      } else if (!fill()) {
        return;
      }
      continue;
    }
    if (const std::size_t n = std::min(rest_, end_ - begin_); n > 0) {
      if (into_ != nullptr) std::memcpy(into_, staged_.data() + begin_, n);
      begin_ += n;
      received(n);
    } else if (rest_ > 0 && budget == 0) {
      place_.poller.queue(*this);
      return;
    } else if (rest_ > 0) {
      const std::size_t before = rest_;
      if (!fill()) return;
      budget -= std::min(budget, before - rest_);
    }
    if (rest_ > 0) continue;
    if (into_ != nullptr || frame_->epoch == epoch_) {
      if (receives_.arrived(*frame_)) place_.events.transfer_ended();
    }
    frame_.reset();
  }
}

bool Connection::begin_piece() {
  auto frame = decode_frame(std::span<const std::byte, Frame::kBytes>(staged_.data() + begin_, Frame::kBytes));
  Result<std::optional<std::span<std::byte>>> room = std::optional(std::span<std::byte>());
  if (frame && (frame->departs || frame->channel != channel_))
    frame = fail(data_loss("a frame of another channel arrived").with_reason("MalformedFrame"));
  const bool waits = frame && static_cast<std::int32_t>(frame->epoch - epoch_) > 0;
  if (frame && frame->epoch == epoch_) room = receives_.room(*frame);
  if (!frame || !room) {
    broken_ = true;
    place_.events.broke(place_.rank, frame ? room.error() : frame.error());
    return false;
  }
  held_ = waits || !*room;
  if (held_) return false;
  begin_ += Frame::kBytes;
  frame_ = *frame;
  rest_ = frame->bytes;
  into_ = frame->epoch == epoch_ && (*room)->size() == rest_ ? (*room)->data() : nullptr;
  return true;
}

std::span<std::byte> Connection::discarded() {
  waste_.resize(kDiscardAtOnce);
  return std::span(waste_).first(std::min(rest_, waste_.size()));
}

void Connection::received(std::size_t bytes) {
  rest_ -= bytes;
  if (into_ != nullptr) into_ += bytes;
}

// Reads once: the rest of the piece into its memory, bytes behind the piece into staged_. Returns false if nothing came.
bool Connection::fill() {
  if (!readable) return false;
  if (begin_ > 0) {
    std::memmove(staged_.data(), staged_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t rest = frame_ ? rest_ : 0;
  const auto first = rest == 0 ? std::span<std::byte>() : into_ != nullptr ? std::span(into_, rest) : discarded();
  // Bytes behind the piece go to the stage, but only if `first` has room for the whole rest of the piece.
  const auto second = first.size() == rest ? std::span(staged_).subspan(end_) : std::span<std::byte>();
  const auto moved = stream_.read(first, second, hung_up);
  if (!moved || moved->ended) {
    readable = false;
    broken_ = true;
    place_.events.broke(place_.rank, moved ? closed() : moved.error());
    return false;
  }
  if (moved->blocked) readable = false;
  const std::size_t own = std::min(moved->bytes, first.size());
  if (own > 0) received(own);
  end_ += moved->bytes - own;
  return moved->bytes > 0;
}

void Connection::write() {
  std::size_t budget = kTurn;
  while (writable && !silent_) {
    if (!piece_) {
      if (!sends_.has_piece()) return;
      if (budget == 0) return place_.poller.queue(*this);
      piece_ = sends_.take(epoch_, piece_bytes_);
      encode(piece_->frame, header_);
      written_ = 0;
    }
    const auto header = std::span<const std::byte>(header_).subspan(std::min(written_, Frame::kBytes));
    const auto data = piece_->data.subspan(written_ - (Frame::kBytes - header.size()));
    const auto moved = stream_.write(header, data);
    if (!moved) {
      stop_writing();
      place_.events.broke(place_.rank, moved.error());
      return;
    }
    if (moved->blocked) writable = false;
    written_ += moved->bytes;
    budget -= std::min(budget, moved->bytes);
    if (written_ < Frame::kBytes + piece_->data.size()) continue;
    const Frame frame = piece_->frame;
    piece_.reset();
    if (sends_.written(frame)) place_.events.transfer_ended();
  }
}

void Connection::receive_posted() {
  if (std::exchange(held_, false)) place_.poller.queue(*this);
}

void Connection::begin_epoch(std::uint32_t epoch) {
  epoch_ = epoch;
  into_ = nullptr;  // the rest of a piece belongs to an earlier epoch
  receive_posted();
}

void Connection::stop_writing() {
  silent_ = true;
  piece_.reset();
}

// ---- Watch -------------------------------------------------------------------------------------------------------------------------

Watch::Watch(Connection::Place place, ByteStream stream) : place_(place), stream_(std::move(stream)) {
  readable = true;
  place_.poller.add(stream_.socket(), *this);
  place_.poller.queue(*this);
}

void Watch::advance() {
  while (readable && !over_) {
    const auto moved = stream_.read(std::span(received_).subspan(bytes_), {}, hung_up);
    if (!moved || moved->ended) {
      over_ = true;
      place_.events.ended(place_.rank, moved ? closed() : moved.error());
      return;
    }
    if (moved->blocked) readable = false;
    bytes_ += moved->bytes;
    if (bytes_ < received_.size()) continue;
    const auto frame = decode_frame(received_);
    over_ = true;
    if (frame && frame->departs) {
      place_.events.departed(place_.rank);
    } else {
      place_.events.ended(place_.rank, data_loss("a malformed frame arrived").with_reason("MalformedFrame"));
    }
  }
}

void Watch::depart(std::uint32_t epoch) {
  Frame frame;
  frame.departs = true;
  frame.epoch = epoch;
  std::array<std::byte, Frame::kBytes> bytes;
  encode(frame, bytes);
  (void)stream_.write(bytes, {});  // the connection carries nothing else, so that it takes these bytes
}

}  // namespace shoal::runtime
