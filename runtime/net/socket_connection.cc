#include "runtime/net/socket_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>

#include "runtime/core/check.h"
#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kCoalesceBytes = 32 << 10;  // frames up to this size share a chunk
constexpr int kReadsPerWake = 8;                  // then others have their turn
constexpr std::size_t kMaxIov = 16;
constexpr std::size_t kMaxLoose = 2;  // sets of descriptors: those of the frame that is arriving come with its first byte

// A process that ends with bytes unread resets its connections instead of closing them: the same to whoever waits.
Error broken(int error) { return from_errno(error, "the connection broke").with_reason("Disconnected"); }

// Parses a stream of bytes into frames. Large payloads are read straight to their place.
class FrameReader {
 public:
  explicit FrameReader(const FrameLimits& limits) : limits_(limits) {}

  // Where the next bytes go, at least one.
  std::span<std::byte> room() {
    if (current_ && current_->missing_in_place() >= kReadBytes) return current_->place();
    return {buffer_.data() + end_, buffer_.size() - end_};
  }

  // n bytes have arrived in room(), with these descriptors among them. Appends finished frames to `out`.
  Result<void> arrived(std::size_t n, std::vector<Frame>& out) {
    if (current_ && current_->missing_in_place() >= kReadBytes) {
      current_->filled += n;
      return finish_if_complete(out);
    }
    end_ += n;
    while (true) {
      if (!current_) {
        if (end_ - begin_ < FrameHeader::kBytes) break;
        SHOAL_TRY(const FrameHeader header, decode_header(buffer_.data() + begin_, limits_));
        begin_ += FrameHeader::kBytes;
        current_.emplace(header);
      }
      const std::size_t take = std::min(end_ - begin_, current_->total() - current_->filled);
      current_->put(buffer_.data() + begin_, take);
      begin_ += take;
      if (current_->filled < current_->total()) break;
      SHOAL_OK(finish_if_complete(out));
    }
    if (begin_ == end_) {
      begin_ = end_ = 0;
    } else if (buffer_.size() - end_ < kReadBytes / 4) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return {};
  }

  // The descriptors that came with some bytes: those of one frame, all that there are.
  struct Descriptors {
    std::vector<Fd> fds;
    bool lost = false;  // the kernel could not open all of them here
  };
  void add(Descriptors descriptors) { descriptors_.push_back(std::move(descriptors)); }
  std::size_t num_loose() const { return descriptors_.size(); }

 private:
  struct Partial {
    explicit Partial(const FrameHeader& header) : header(header), body(header.body_bytes), payload(header.payload_bytes) {}
    std::size_t total() const { return body.size() + payload.size(); }
    void put(const std::byte* data, std::size_t n) {
      const std::size_t to_body = filled < body.size() ? std::min(n, body.size() - filled) : 0;
      if (to_body) std::memcpy(body.data() + filled, data, to_body);
      if (n > to_body) std::memcpy(payload.data() + (filled + to_body - body.size()), data + to_body, n - to_body);
      filled += n;
    }
    // Of the payload, once the body is there.
    std::size_t missing_in_place() const { return filled >= body.size() ? total() - filled : 0; }
    std::span<std::byte> place() { return {payload.data() + (filled - body.size()), total() - filled}; }

    FrameHeader header;
    Bytes body, payload;
    std::size_t filled = 0;
  };

  Result<void> finish_if_complete(std::vector<Frame>& out) {
    if (current_->filled < current_->total()) return {};
    Frame frame{current_->header.kind,
                current_->header.method,
                current_->header.id,
                std::move(current_->body),
                std::move(current_->payload),
                {},
                false};
    if (const std::size_t announced = current_->header.num_fds; announced > 0) {
      if (descriptors_.empty() || (!descriptors_.front().lost && descriptors_.front().fds.size() != announced)) {
        return fail(invalid_argument("a frame announces descriptors that did not come with it"));
      }
      frame.fds_lost = descriptors_.front().lost;
      if (!frame.fds_lost) frame.fds = std::move(descriptors_.front().fds);
      descriptors_.pop_front();
    }
    current_.reset();
    out.push_back(std::move(frame));
    return {};
  }

  const FrameLimits limits_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReadBytes + kReadBytes / 4);
  std::size_t begin_ = 0, end_ = 0;
  std::optional<Partial> current_;
  std::deque<Descriptors> descriptors_;
};

// Unsent bytes. Small frames are copied one behind the other into a chunk; large payloads and frames with descriptors
// are chunks of their own.
class SendQueue {
 public:
  std::size_t bytes() const { return bytes_; }
  bool empty() const { return chunks_.empty(); }

  void push(Frame frame) {
    const auto header = FrameHeader::of(frame).encode();
    bytes_ += frame.wire_bytes();
    const bool small = frame.wire_bytes() <= kCoalesceBytes;
    if (!frame.fds.empty() || chunks_.empty() || !chunks_.back().open || chunks_.back().text.size() > kReadBytes) {
      chunks_.emplace_back();
      chunks_.back().fds = std::move(frame.fds);
    }
    auto& text = chunks_.back().text;
    append(text, header.data(), header.size());
    append(text, frame.body.data(), frame.body.size());
    if (small) {
      append(text, frame.payload.data(), frame.payload.size());
      return;
    }
    chunks_.back().open = false;
    if (frame.payload.size() == 0) return;  // it was the body that is large: a chunk of nothing would never be sent
    chunks_.emplace_back();
    chunks_.back().whole = std::move(frame.payload);
    chunks_.back().open = false;
  }

  // As much as the kernel takes. EAGAIN is success; otherwise errno.
  int write(int fd) {
    while (!chunks_.empty()) {
      iovec iov[kMaxIov];
      std::size_t count = 0;
      for (auto it = chunks_.begin(); it != chunks_.end() && count < kMaxIov; ++it) {
        if (count > 0 && !it->fds.empty()) break;  // descriptors go with the first byte of their chunk
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

 private:
  struct Chunk {
    std::vector<std::byte> text;
    Bytes whole;  // instead of text
    std::vector<Fd> fds;
    std::size_t sent = 0;
    bool open = true;  // further frames may be appended
    std::span<const std::byte> data() const { return whole.empty() ? std::span<const std::byte>(text) : whole.span(); }
  };

  static void append(std::vector<std::byte>& text, const std::byte* data, std::size_t n) {
    if (n) text.insert(text.end(), data, data + n);
  }

  void consume(std::size_t n) {
    bytes_ -= n;
    while (n > 0) {
      auto& c = chunks_.front();
      const std::size_t take = std::min(n, c.data().size() - c.sent);
      c.sent += take;
      n -= take;
      if (c.sent < c.data().size()) {
        c.open = false;  // a vector that grows while half of it is sent would move the rest each time
        return;
      }
      chunks_.pop_front();
    }
  }

  std::deque<Chunk> chunks_;
  std::size_t bytes_ = 0;
};

// Shared with the handlers that wait for the socket, so that they survive the Connection for one turn of the loop.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Loop& loop, Fd socket, PeerIdentity identity, const SocketOptions& options, std::shared_ptr<Traffic> traffic)
      : loop_(loop),
        options_(options),
        identity_(identity),
        traffic_(std::move(traffic)),
        descriptor_(loop.io(), socket.release()),
        reader_(options.limits) {
    loop_.track(descriptor_.native_handle());
  }

  void start(ConnectionHandler& handler) {
    SHOAL_CHECK(handler_ == nullptr, "a connection is started twice");
    handler_ = &handler;
    wait_read();
  }

  void send(Frame frame, Flush flush) {
    if (closed_) return;
    SHOAL_CHECK(identity_.local || frame.fds.empty(), "descriptors only travel on unix sockets");
    SHOAL_CHECK(check_size(frame, options_.limits).has_value(), "a frame beyond the limits");
    queue_.push(std::move(frame));
    ++traffic_->sent;
    if (queue_.bytes() > options_.max_queued_bytes) {
      return close_later(
          resource_exhausted("a peer does not read: more than " + std::to_string(options_.max_queued_bytes) + " bytes wait for it"));
    }
    if (waiting_write_) return;
    if (flush == Flush::kNow || queue_.bytes() > kReadBytes) return write();
    if (flush_posted_) return;
    flush_posted_ = true;
    loop_.post([self = shared_from_this()] {
      self->flush_posted_ = false;
      if (!self->waiting_write_) self->write_on();
    });
  }

  std::size_t queued_bytes() const { return queue_.bytes(); }

  // By the owner: no on_closed.
  void abandon() {
    if (!closed_ && !waiting_write_) queue_.write(descriptor_.native_handle());  // what was sent Flush::kLater
    handler_ = nullptr;
    shut();
  }

  const PeerIdentity& identity() const { return identity_; }
  const FrameLimits& limits() const { return options_.limits; }

 private:
  using Wait = asio::posix::stream_descriptor;

  void wait_read() {
    descriptor_.async_wait(Wait::wait_read, [self = shared_from_this()](std::error_code error) {
      if (!error) self->read();
    });
  }

  void read() {
    for (int i = 0; i < kReadsPerWake && !closed_; ++i) {
      const auto room = reader_.room();
      iovec iov{room.data(), room.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FrameLimits::kMaxFds)];
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      if (identity_.local) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
      }
      const ssize_t n = recvmsg(descriptor_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return wait_read();
        return close(broken(errno));
      }
      FrameReader::Descriptors descriptors{{}, (message.msg_flags & MSG_CTRUNC) != 0};
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (std::size_t k = 0; k < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++k) {
          int raw = -1;
          std::memcpy(&raw, CMSG_DATA(c) + k * sizeof(int), sizeof raw);
          descriptors.fds.emplace_back(raw);
        }
      }
      if (n == 0) return close(unavailable("the other side closed the connection").with_reason("Disconnected"));
      if (descriptors.lost || !descriptors.fds.empty()) reader_.add(std::move(descriptors));
      if (reader_.num_loose() > kMaxLoose) return close(invalid_argument("descriptors that belong to no frame"));
      std::vector<Frame> frames;
      const auto parsed = reader_.arrived(static_cast<std::size_t>(n), frames);
      for (auto& frame : frames) {
        if (handler_ == nullptr || closed_) return;
        ++traffic_->received;
        handler_->on_frame(std::move(frame));
      }
      if (!parsed) return close(parsed.error());
      if (static_cast<std::size_t>(n) < room.size() && i > 0) break;  // the kernel has no more
    }
    if (!closed_) wait_read();
  }

  void write() {
    if (const int error = queue_.write(descriptor_.native_handle())) return close_later(broken(error));
    if (queue_.empty()) return;
    waiting_write_ = true;
    descriptor_.async_wait(Wait::wait_write, [self = shared_from_this()](std::error_code error) {
      self->waiting_write_ = false;
      if (!error) self->write_on();
    });
  }

  // What had to wait.
  void write_on() {
    if (closed_) return;
    write();
    if (queue_.empty() && !closed_ && handler_ != nullptr) handler_->on_drained();
  }

  // Never from inside send(): its caller may be in the middle of something.
  void close_later(Error why) {
    shut();
    loop_.post([self = shared_from_this(), why = std::move(why)] { self->tell(why); });
  }

  void close(Error why) {
    if (closed_) return;
    shut();
    tell(why);
  }

  void tell(const Error& why) {
    if (handler_ != nullptr) std::exchange(handler_, nullptr)->on_closed(why);
  }

  void shut() {
    if (std::exchange(closed_, true)) return;
    loop_.untrack(descriptor_.native_handle());
    std::error_code ignored;
    descriptor_.close(ignored);
  }

  Loop& loop_;
  const SocketOptions options_;
  const PeerIdentity identity_;
  const std::shared_ptr<Traffic> traffic_;
  asio::posix::stream_descriptor descriptor_;
  FrameReader reader_;
  SendQueue queue_;
  ConnectionHandler* handler_ = nullptr;
  bool waiting_write_ = false;
  bool flush_posted_ = false;
  bool closed_ = false;
};

class SocketConnection final : public Connection {
 public:
  explicit SocketConnection(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~SocketConnection() override { stream_->abandon(); }
  void start(ConnectionHandler& handler) override { stream_->start(handler); }
  void send(Frame frame, Flush flush) override { stream_->send(std::move(frame), flush); }
  std::size_t queued_bytes() const override { return stream_->queued_bytes(); }
  const PeerIdentity& identity() const override { return stream_->identity(); }
  const FrameLimits& limits() const override { return stream_->limits(); }

 private:
  std::shared_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Connection> make_socket_connection(Loop& loop, Fd socket, PeerIdentity identity, const SocketOptions& options,
                                                   std::shared_ptr<Traffic> traffic) {
  return std::make_unique<SocketConnection>(std::make_shared<Stream>(loop, std::move(socket), identity, options, std::move(traffic)));
}

}  // namespace shoal::runtime
