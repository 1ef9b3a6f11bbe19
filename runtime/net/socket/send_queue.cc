#include "runtime/net/socket/send_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/net/socket/part.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kCoalesceBytes = 32 << 10;  // largest frame that shares a chunk
constexpr std::size_t kMostOpenBytes = 64 << 10;  // a chunk of more takes no further frame
constexpr std::size_t kMaxIov = 16;

void append(std::vector<std::byte>& text, std::span<const std::byte> bytes) { text.insert(text.end(), bytes.begin(), bytes.end()); }

}  // namespace

void SendQueue::push(Frame frame) {
  FrameHeader header = FrameHeader::for_frame(frame);
  newest_bytes_ = frame.wire_bytes();
  const bool small = newest_bytes_ <= kCoalesceBytes;
  if (small || frame.payload.empty()) return add(header, frame.body, frame.payload.span(), std::move(frame.fds), small);
  const auto payload = std::make_shared<const Bytes>(std::move(frame.payload));
  const PartOf announced{payload->size(), frame.method, frame.kind};
  std::size_t at = 0;
  for (; payload->size() - at > max_frame_payload_; at += max_frame_payload_) {
    const FrameHeader part{0,
                           static_cast<std::uint32_t>(max_frame_payload_),
                           announced.encode(version_),
                           static_cast<std::uint16_t>(LinkMethod::kPart),
                           FrameKind::kLink,
                           0};
    add(part, {}, {}, {}, false);
    add_whole({payload, at, max_frame_payload_});
  }
  header.payload_bytes = static_cast<std::uint32_t>(payload->size() - at);
  add(header, frame.body, {}, std::move(frame.fds), false);
  add_whole({payload, at, payload->size() - at});
}

std::span<const std::byte> SendQueue::front() const {
  return chunks_.empty() ? std::span<const std::byte>() : chunks_.front().data().subspan(chunks_.front().sent);
}

void SendQueue::consume(std::size_t n) {
  bytes_ -= n;
  sent_bytes_ += n;
  while (n > 0) {
    auto& c = chunks_.front();
    const std::size_t take = std::min(n, c.data().size() - c.sent);
    c.sent += take;
    n -= take;
    if (c.sent < c.data().size()) {
      c.open = false;  // appending to a half-sent vector would move the rest each time
      return;
    }
    chunks_.pop_front();
  }
}

int SendQueue::write(int fd) {
  while (!chunks_.empty()) {
    iovec iov[kMaxIov];
    std::size_t count = 0;
    for (auto it = chunks_.begin(); it != chunks_.end() && count < kMaxIov; ++it) {
      if (count > 0 && !it->fds.empty()) break;  // because descriptors go with the first byte of their chunk
      const auto data = it->data().subspan(it->sent);
      iov[count++] = {const_cast<std::byte*>(data.data()), data.size()};
    }
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = count;
    auto& first = chunks_.front();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FrameLimits::kMaxFds)];
    if (!first.fds.empty()) {
      const std::size_t n = first.fds.size();
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * n);
      for (std::size_t i = 0; i < n; ++i) {
        const int raw = first.fds[i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof(int), &raw, sizeof raw);
      }
    }
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
    }
    first.fds.clear();
    consume(static_cast<std::size_t>(n));
  }
  return 0;
}

void SendQueue::add(const FrameHeader& header, const Bytes& body, std::span<const std::byte> payload, std::vector<Fd> fds, bool open) {
  const auto head = header.encode();
  bytes_ += head.size() + body.size() + payload.size();
  if (!fds.empty() || chunks_.empty() || !chunks_.back().open || chunks_.back().text.size() > kMostOpenBytes) {
    chunks_.emplace_back();
    chunks_.back().fds = std::move(fds);
  }
  auto& text = chunks_.back().text;
  append(text, head);
  append(text, body.span());
  append(text, payload);
  chunks_.back().open = open;
}

void SendQueue::add_whole(Slice slice) {
  bytes_ += slice.size;
  chunks_.emplace_back();
  chunks_.back().whole = std::move(slice);
  chunks_.back().open = false;
}

}  // namespace shoal::runtime
