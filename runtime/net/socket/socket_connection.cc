#include "runtime/net/socket/socket_connection.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/loop/busy_poller.h"
#include "runtime/loop/loop.h"
#include "runtime/net/socket/frame_reader.h"
#include "runtime/net/socket/host_watch.h"
#include "runtime/net/socket/send_queue.h"
#include "runtime/net/stream_connection.h"

namespace shoal::runtime {
namespace {

constexpr int kReadsPerWake = 8;                // limit per turn of the loop
constexpr std::size_t kWriteBytes = 512 << 10;  // limit per turn of the loop, through TLS
constexpr std::size_t kLaterBytes = 64 << 10;   // more unsent bytes than this are written at once, also with Flush::kLater
constexpr std::size_t kMaxLoose = 2;            // sets of descriptors without a frame; a frame's set comes with its first byte

// A process that exits with unread bytes resets its connections instead of closing them; both become Disconnected.
Error broken(int error) { return from_errno(error, "the connection broke").with_reason("Disconnected"); }

// Result of a read.
struct Arrived {
  std::size_t bytes = 0;
  FrameReader::Descriptors descriptors{};
  bool ended = false;
  TlsSession::Step step = TlsSession::Step::kComplete;  // or the socket's event to wait for
};

// Clear-text bytes, with descriptors if the peer is a process of this host.
class PlainSocket {
 public:
  using Step = TlsSession::Step;
  PlainSocket(int fd, bool passes_descriptors) : fd_(fd), passes_descriptors_(passes_descriptors) {}

  Result<Arrived> read(std::span<std::byte> room) {
    iovec iov{room.data(), room.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * FrameLimits::kMaxFds)];
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (passes_descriptors_) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
    }
    ssize_t n = -1;
    do {
      n = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Arrived{0, {}, false, Step::kReadable};
    if (n < 0) return fail(broken(errno));
    Arrived out{static_cast<std::size_t>(n), {{}, (message.msg_flags & MSG_CTRUNC) != 0}, n == 0, Step::kComplete};
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t k = 0; k < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++k) {
        int raw = -1;
        std::memcpy(&raw, CMSG_DATA(c) + k * sizeof(int), sizeof raw);
        out.descriptors.fds.emplace_back(raw);
      }
    }
    return out;
  }

  // Writes as much as the socket accepts.
  Result<Step> write(SendQueue& queue) {
    if (const int error = queue.write(fd_)) return fail(broken(error));
    return queue.empty() ? Step::kComplete : Step::kWritable;
  }

  bool has_buffered() const { return false; }
  bool drained() const { return false; }  // unknown: descriptors can end a read early

 private:
  const int fd_;
  const bool passes_descriptors_;
};

// The operations of PlainSocket, through TLS.
class TlsSocket {
 public:
  using Step = TlsSession::Step;
  explicit TlsSocket(TlsSession session) : session_(std::move(session)) {}

  Result<Arrived> read(std::span<std::byte> room) {
    SHOAL_TRY(const TlsSession::Moved moved, session_.read(room));
    return Arrived{moved.bytes, {}, moved.ended, moved.step};
  }

  Result<Step> write(SendQueue& queue) {
    for (std::size_t written = 0; !queue.empty();) {
      if (written >= kWriteBytes) return Step::kWritable;  // a peer that reads as fast as this end writes would keep the loop here
      SHOAL_TRY(const TlsSession::Moved moved, session_.write(queue.front()));
      if (moved.step != Step::kComplete) return moved.step;
      queue.consume(moved.bytes);
      written += moved.bytes;
    }
    return Step::kComplete;
  }

  bool has_buffered() const { return session_.has_buffered(); }
  bool drained() const { return session_.drained(); }

 private:
  TlsSession session_;
};

FrameLimits limits_of(const PeerIdentity& identity, const SocketOptions& options) {
  FrameLimits out = options.limits;
  if (identity.local) return out;
  out.max_fds = 0;
  out.max_payload_bytes = options.max_message_bytes;
  return out;
}

// Keeps the requests of a peer that does not read its answers.
class Pause {
 public:
  explicit Pause(Budget::Account& account) : account_(account) {}
  bool lasts() const { return lasts_; }
  bool keeps_frames() const { return !kept_.empty(); }
  // A message that has memory arrives whole also in a pause, since others may wait for that memory.
  bool stops_reading() const { return lasts_ && !account_.holds_memory(); }
  // Begins if so many bytes of answers are too many. Returns lasts().
  bool begin_if_beyond(std::size_t unsent) {
    if (!lasts_ && account_.is_beyond_allowance(unsent)) {
      lasts_ = true;
      account_.set_paused(true);
    }
    return lasts_;
  }
  void keep(std::span<Frame> frames) {
    kept_.insert(kept_.end(), std::make_move_iterator(frames.begin()), std::make_move_iterator(frames.end()));
  }
  // Returns the requests that have arrived meanwhile.
  std::vector<Frame> end() {
    lasts_ = false;
    account_.set_paused(false);
    return std::exchange(kept_, {});
  }

 private:
  Budget::Account& account_;
  bool lasts_ = false;
  std::vector<Frame> kept_;  // at most the frames of two reads, and a message that had its memory already
};

// Shared with the handlers that wait for the socket, which may outlive the Connection for one turn of the loop.
//
// epoll always watches the socket. Between hosts, an otherwise idle loop also polls it (BusyPoller) while it is in use. Data that arrives
// then costs neither a sleep nor an epoll call.
template <class Transport>
class Stream final : public PollSource, public Budget::Owner, public std::enable_shared_from_this<Stream<Transport>> {
 public:
  Stream(Loop& loop, Fd socket, Transport transport, PeerIdentity identity, const SocketOptions& options, Uses uses)
      : loop_(loop),
        max_queued_bytes_(options.max_queued_bytes),
        identity_(identity),
        limits_(limits_of(identity, options)),
        uses_(std::move(uses)),
        descriptor_(loop.io(), socket.release()),
        transport_(std::move(transport)),
        reader_({options.limits, limits_.max_payload_bytes, identity_.version,
                 !identity_.local || options.rings.bytes == 0},  // calls may go through rings, unseen by this stream
                *uses_.account),
        queue_(options.limits.max_payload_bytes, identity_.version, identity_.local),
        pause_(*uses_.account) {
    loop_.track(descriptor_.native_handle());
    if (!identity_.local) {
      host_.emplace(uses_.clock, descriptor_.native_handle(), options.unanswered, [this] { close_later(broken(ETIMEDOUT)); });
    }
    uses_.account->set_owner(*this);
  }

  void start(ConnectionHandler& handler) {
    SHOAL_CHECK(handler_ == nullptr, "a connection is started twice");
    handler_ = &handler;
    wait_to_read();
    read_buffered();
  }

  void send(Frame frame, Flush flush) {
    if (closed_ || unheard_) return;
    SHOAL_CHECK(check_size(frame, limits_).has_value(), "the frame exceeds the limits");
    if (frame.kind == FrameKind::kRequest) reader_.expect_answer();
    queue_.push(std::move(frame));
    ++uses_.traffic->sent;
    // A peer that lets more than max_queued_bytes wait is stalled, and its connection closes.
    if (queue_.waiting_bytes() > max_queued_bytes_) {
      return close_later(resource_exhausted("a peer does not read: more than " + std::to_string(max_queued_bytes_) + " bytes wait for it"));
    }
    start_polling();
    if (waiting_write_) return uses_.account->set_unsent(queue_.bytes());
    if (flush == Flush::kNow || queue_.bytes() > kLaterBytes) return write();
    if (flush_posted_) return;
    flush_posted_ = true;
    loop_.post([self = this->shared_from_this()] {
      self->flush_posted_ = false;
      if (!self->waiting_write_) self->write_on();
    });
  }

  std::size_t queued_bytes() const { return queue_.bytes(); }

  void read_arrived() {
    int waiting = 0;
    if (!identity_.local || closed_ || handler_ == nullptr || ioctl(descriptor_.native_handle(), FIONREAD, &waiting) != 0) return;
    const std::uint64_t until = read_bytes_ + static_cast<std::uint64_t>(std::max(waiting, 0));
    uses_.account->set_urgent(true);  // the peer may have died: nothing that it has sent may wait for memory
    if (!go_on()) return;
    while (!closed_ && read_bytes_ < until && read_some()) {
    }
    uses_.account->set_urgent(false);
    wait_to_read();
  }

  // Called when the owner destroys the Connection: no on_closed.
  void abandon() {
    if (!closed_ && !waiting_write_) (void)transport_.write(queue_);  // frames sent with Flush::kLater
    handler_ = nullptr;
    shut();
  }

  const PeerIdentity& identity() const { return identity_; }
  const FrameLimits& limits() const { return limits_; }

 private:
  using Wait = asio::posix::stream_descriptor;
  using Step = TlsSession::Step;

  // ---- PollSource

  bool poll() override { return !closed_ && handler_ != nullptr && read_some(); }

  bool prepare_to_sleep() override {
    polled_ = false;
    return true;
  }

  // Makes the loop poll the socket until it sleeps.
  void start_polling() {
    if (identity_.local || closed_ || std::exchange(polled_, true)) return;
    loop_.busy_poller().add_socket(this->shared_from_this());
  }

  // ---- Budget::Owner

  void on_room() override {
    loop_.post([self = this->shared_from_this()] {
      if (!self->closed_ && !self->pause_.lasts() && self->reader_.waits() && self->go_on()) self->read();
    });
  }
  // Defers on_closed, which must not run inside send(): its caller may be in an intermediate state.
  void close_later(Error why) override {
    shut();
    loop_.post([self = this->shared_from_this(), why = std::move(why)] { self->report_closed(why); });
  }
  std::uint64_t received_bytes() const override { return read_bytes_; }
  std::uint64_t taken_bytes() override {
    int in_kernel = 0;
    (void)ioctl(descriptor_.native_handle(), SIOCOUTQ, &in_kernel);
    return queue_.sent_bytes() - static_cast<std::uint64_t>(in_kernel);
  }

  // ---- reading

  // True while nothing is read: a message waits for memory, or the peer does not read the answers to its requests.
  bool blocked() const { return reader_.waits() || pause_.stops_reading(); }

  // Passes frames to the handler, and keeps the rest once the answers are beyond the allowance. Returns false if the connection is closed.
  bool deliver(std::vector<Frame> frames) {
    for (auto frame = frames.begin(); frame != frames.end(); ++frame) {
      if (handler_ == nullptr || closed_) return false;
      if (pause_.begin_if_beyond(queue_.bytes())) {
        pause_.keep({frame, frames.end()});
        return true;
      }
      ++uses_.traffic->received;
      handler_->on_frame(std::move(*frame));
    }
    if (handler_ == nullptr || closed_) return false;
    pause_.begin_if_beyond(queue_.bytes());
    return true;
  }

  // Continues after a pause or a wait for memory. Returns false if the connection is closed.
  bool go_on() {
    if (!deliver(pause_.end())) return false;
    if (pause_.keeps_frames() || !reader_.waits()) return true;
    std::vector<Frame> frames;
    auto parsed = reader_.go_on(frames);
    return take(std::move(parsed), std::move(frames));
  }

  // Delivers the frames that the reader returned. The reader stops behind a message whose memory counts; once that is delivered, the reader
  // goes on with the bytes after it. Returns false if the connection is closed.
  bool take(Result<void> parsed, std::vector<Frame> frames) {
    while (true) {
      if (!deliver(std::exchange(frames, {}))) return false;
      if (!parsed) {
        end(parsed.error());
        return false;
      }
      if (!reader_.has_message() || pause_.keeps_frames()) return true;
      parsed = reader_.go_on(frames);
    }
  }

  void wait_to_read() {
    if (closed_ || std::exchange(waiting_read_, true)) return;
    descriptor_.async_wait(Wait::wait_read, [self = this->shared_from_this()](std::error_code error) {
      self->waiting_read_ = false;
      if (!error) self->read();
    });
  }

  void wait_to_write_before_reading() {
    if (std::exchange(read_waits_to_write_, true)) return;
    descriptor_.async_wait(Wait::wait_write, [self = this->shared_from_this()](std::error_code error) {
      self->read_waits_to_write_ = false;
      if (!error) self->read();
    });
  }

  void read() {
    if (closed_ || blocked()) return;
    if (read_some()) start_polling();
    if (!blocked()) wait_to_read();
  }

  // Returns false if nothing was read. The handler may destroy the connection during this call.
  bool read_some() {
    bool any = false;
    for (int i = 0; i < kReadsPerWake && !closed_ && !blocked(); ++i) {
      const auto room = reader_.room(uses_.budget->scratch());
      auto arrived = transport_.read(room);
      if (!arrived) return end(arrived.error());
      if (arrived->step == Step::kWritable) wait_to_write_before_reading();
      if (arrived->step != Step::kComplete) return any;
      any = true;
      read_bytes_ += arrived->bytes;
      if (arrived->ended) return end(unavailable("the other side closed the connection").with_reason("Disconnected"));
      if (arrived->descriptors.lost || !arrived->descriptors.fds.empty()) reader_.add(std::move(arrived->descriptors));
      if (reader_.num_loose() > kMaxLoose) return end(invalid_argument("descriptors arrived without a frame"));
      std::vector<Frame> frames;
      auto parsed = reader_.arrived(arrived->bytes, frames);
      if (!take(std::move(parsed), std::move(frames))) return true;
      if (!transport_.has_buffered() && (transport_.drained() || (arrived->bytes < room.size() && i > 0))) return true;
    }
    if (!blocked()) read_buffered();
    return any;
  }

  // Schedules a read of bytes that OpenSSL has buffered, for which the socket never becomes readable.
  void read_buffered() {
    if (closed_ || !transport_.has_buffered()) return;
    loop_.post([self = this->shared_from_this()] { self->read(); });
  }

  // Closes the connection after the frames that have arrived: they are delivered now, or never.
  bool end(Error why) {
    uses_.account->set_urgent(true);
    if (!pause_.lasts() || deliver(pause_.end())) close(std::move(why));
    return true;
  }

  void write() {
    const auto step = transport_.write(queue_);
    if (host_) host_->wrote();
    if (!step) return identity_.local ? read_and_close(step.error()) : close_later(step.error());
    uses_.account->set_unsent(queue_.bytes());
    if (*step == Step::kComplete || closed_) return;
    waiting_write_ = true;
    const auto socket = *step == Step::kWritable ? Wait::wait_write : Wait::wait_read;
    descriptor_.async_wait(socket, [self = this->shared_from_this()](std::error_code error) {
      if (!error) self->write_on();
    });
  }

  // Continues a write that had to wait.
  void write_on() {
    waiting_write_ = false;
    if (closed_) return;
    write();
    if (queue_.empty() && !closed_ && handler_ != nullptr) handler_->on_drained();
    // Requests were kept while the peer read no answers. It has read so many that the requests may go on.
    if (!pause_.lasts() || closed_ || handler_ == nullptr || queue_.bytes() > uses_.account->allowance() / 2) return;
    if (go_on()) read();
  }

  // The peer is gone: nothing more is sent, but the frames that it sent before are delivered.
  void read_and_close(Error why) {
    if (std::exchange(unheard_, true)) return;
    loop_.post([self = this->shared_from_this(), why = std::move(why)] {
      self->read_arrived();
      self->close(why);
    });
  }

  void close(Error why) {
    if (closed_) return;
    shut();
    report_closed(why);
  }

  void report_closed(const Error& why) {
    if (handler_ != nullptr) std::exchange(handler_, nullptr)->on_closed(why);
  }

  void shut() {
    if (std::exchange(closed_, true)) return;
    if (std::exchange(polled_, false)) loop_.busy_poller().remove(*this);
    if (host_) host_->stop();
    loop_.untrack(descriptor_.native_handle());
    std::error_code ignored;
    descriptor_.close(ignored);
    uses_.account->leave();
  }

  Loop& loop_;
  const std::size_t max_queued_bytes_;
  const PeerIdentity identity_;
  const FrameLimits limits_;
  const Uses uses_;
  asio::posix::stream_descriptor descriptor_;
  Transport transport_;
  FrameReader reader_;
  SendQueue queue_;
  Pause pause_;
  std::optional<HostWatch> host_;  // only for connections between hosts
  ConnectionHandler* handler_ = nullptr;
  bool waiting_read_ = false;
  bool read_waits_to_write_ = false;
  bool polled_ = false;  // polled by the loop
  bool waiting_write_ = false;
  bool flush_posted_ = false;
  bool unheard_ = false;  // peer gone: sends are dropped
  bool closed_ = false;
  std::uint64_t read_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Connection> make_socket_connection(Loop& loop, Fd socket, PeerIdentity identity, const SocketOptions& options, Uses uses) {
  const PlainSocket plain(socket.get(), identity.local);
  return make_stream_connection<Stream<PlainSocket>>(loop, std::move(socket), plain, identity, options, std::move(uses));
}

std::unique_ptr<Connection> make_tls_connection(Loop& loop, Fd socket, TlsSession session, PeerIdentity identity,
                                                const SocketOptions& options, Uses uses) {
  return make_stream_connection<Stream<TlsSocket>>(loop, std::move(socket), TlsSocket(std::move(session)), identity, options,
                                                   std::move(uses));
}

}  // namespace shoal::runtime
