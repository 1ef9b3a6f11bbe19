#include "runtime/transport/tcp/sockets/byte_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shoal::runtime {

namespace {

constexpr std::size_t kRecord = 16 << 10;  // bytes in a TLS record

Error broken(const char* what) { return from_errno(errno, what).with_reason("Disconnected"); }

}  // namespace

ByteStream::ByteStream(Fd socket, std::shared_ptr<const Tls> tls, TlsSession::Side side) : socket_(std::move(socket)) {
  if (tls) tls_.emplace(std::move(tls), socket_.get(), side);
}

Result<bool> ByteStream::handshake() {
  if (!tls_) return true;
  SHOAL_TRY(const auto step, tls_->handshake());
  return step == TlsSession::Step::kComplete;
}

Result<ByteStream::Moved> ByteStream::read(std::span<std::byte> first, std::span<std::byte> second, bool last) {
  if (tls_) return read_encrypted(first, second);
  iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  const ssize_t n = ::readv(socket_.get(), parts, 2);
  if (n > 0) return Moved{static_cast<std::size_t>(n), !last && static_cast<std::size_t>(n) < first.size() + second.size(), false};
  if (n == 0) return Moved{0, true, true};
  if (errno == EAGAIN || errno == EINTR) return Moved{0, errno == EAGAIN, false};
  return fail(broken("receiving"));
}

Result<ByteStream::Moved> ByteStream::write(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (tls_) return write_encrypted(first, second);
  iovec parts[] = {{const_cast<std::byte*>(first.data()), first.size()}, {const_cast<std::byte*>(second.data()), second.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return Moved{static_cast<std::size_t>(n), static_cast<std::size_t>(n) < first.size() + second.size(), false};
  if (errno == EAGAIN || errno == EINTR) return Moved{0, errno == EAGAIN, false};
  return fail(broken("sending"));
}

Result<ByteStream::Moved> ByteStream::read_encrypted(std::span<std::byte> first, std::span<std::byte> second) {
  Moved out;
  for (auto part : {first, second}) {
    while (!part.empty()) {
      auto step = tls_->read(part);
      if (!step && out.bytes > 0) return out;  // the next read returns the error
      SHOAL_TRY(const auto moved, std::move(step));
      out.bytes += moved.bytes;
      out.ended = moved.ended;
      out.blocked = moved.ended || moved.step != TlsSession::Step::kComplete;
      if (out.blocked) {
        if (moved.ended && out.bytes > 0) out.ended = out.blocked = false;  // the next read reports the end
        return out;
      }
      part = part.subspan(moved.bytes);
    }
  }
  return out;
}

Result<ByteStream::Moved> ByteStream::write_encrypted(std::span<const std::byte> first, std::span<const std::byte> second) {
  Moved out;
  if (!first.empty()) {
    record_.resize(kRecord);
    const std::size_t more = std::min(kRecord - std::min(kRecord, first.size()), second.size());
    const std::size_t size = first.size() + more;
    if (size > record_.size()) record_.resize(size);
    std::memcpy(record_.data(), first.data(), first.size());
    if (more > 0) std::memcpy(record_.data() + first.size(), second.data(), more);
    SHOAL_TRY(const auto moved, tls_->write(std::span(record_).first(size)));
    out.bytes = moved.bytes;
    out.blocked = moved.step != TlsSession::Step::kComplete;
    if (out.blocked || moved.bytes < size) return out;
    second = second.subspan(more);
  }
  while (!second.empty()) {
    SHOAL_TRY(const auto moved, tls_->write(second));
    out.bytes += moved.bytes;
    out.blocked = moved.step != TlsSession::Step::kComplete;
    if (out.blocked) return out;
    second = second.subspan(moved.bytes);
  }
  return out;
}

}  // namespace shoal::runtime
