// Protocol between socket and rings.
//
// A connection begins as its socket. After some frames the caller offers the memory of two rings; the listener accepts, or refuses and
// nothing changes. Both kAccept and the caller's kStart mark the point in the socket's stream after which their sender uses its ring. From
// there on the ring holds the order of all frames. Frames that do not fit into a ring (descriptors, too many bytes) go through the
// socket, with an empty record in their place. The record is written first, so that the receiver of the frame finds it.
//
// An end that sleeps in epoll is woken through the socket (kBell). When the socket ends, by a close or a death, the records in the
// ring are delivered first; then the connection is closed.
#include "runtime/net/ring/ring_connection.h"

#include <deque>
#include <memory>
#include <utility>

#include "runtime/core/check.h"
#include "runtime/loop/busy_poller.h"
#include "runtime/loop/loop.h"
#include "runtime/net/ring/frame_rings.h"
#include "runtime/net/stream_connection.h"

namespace shoal::runtime {
namespace {

constexpr int kRecordsAtOnce = 16;        // limit per turn of the loop
constexpr std::size_t kPauseDivisor = 8;  // the listener's end pauses when more than 1 / kPauseDivisor of max_queued_bytes waits

Frame link_frame(LinkMethod method) { return {FrameKind::kLink, static_cast<std::uint16_t>(method), 0, {}, {}, {}}; }

Error out_of_order() { return invalid_argument("a frame of the socket is out of order with the ring's frames"); }

// Shared with the loop, which may keep it a little longer than the Connection lives.
class RingStream final : public PollSource, public ConnectionHandler, public std::enable_shared_from_this<RingStream> {
 public:
  RingStream(Loop& loop, std::unique_ptr<Connection> socket, bool calls, const RingOptions& options, std::size_t max_queued_bytes,
             std::shared_ptr<Traffic> traffic)
      : loop_(loop),
        calls_(calls),
        capacity_(options.bytes),
        max_queued_bytes_(max_queued_bytes),
        traffic_(std::move(traffic)),
        identity_(socket->identity()),
        limits_(socket->limits()),
        socket_(std::move(socket)),
        frames_until_offer_(options.after_frames) {}

  void start(ConnectionHandler& handler) {
    SHOAL_CHECK(handler_ == nullptr, "a connection is started twice");
    handler_ = &handler;
    socket_->start(*this);
  }

  void send(Frame frame, Flush flush) {
    if (closed_) return;
    SHOAL_CHECK(check_size(frame, limits_).has_value(), "the frame exceeds the limits");
    ++traffic_->sent;
    if (!writing_) {
      if (calls_ && !rings_ && frames_until_offer_-- == 0) offer();
      return socket_->send(std::move(frame), flush);
    }
    if (waiting_.empty() && put(frame, flush)) return;
    if (closed_) return;
    waiting_bytes_ += frame.wire_bytes();
    waiting_.push_back(std::move(frame));
    if (waiting_bytes_ > max_queued_bytes_) {
      return close_later(resource_exhausted("a peer does not read: more than " + std::to_string(max_queued_bytes_) + " bytes wait for it"));
    }
    start_polling();
  }

  std::size_t queued_bytes() const { return closed_ ? 0 : waiting_bytes_ + socket_->queued_bytes(); }
  const PeerIdentity& identity() const { return identity_; }
  const FrameLimits& limits() const { return limits_; }

  void read_arrived() {
    if (closed_) return;
    socket_->read_arrived();
    read_ring();
  }

  // Called when the owner destroys the Connection: no on_closed.
  void abandon() {
    handler_ = nullptr;
    if (!closed_ && !waiting_.empty()) write_waiting();
    shut();
  }

 private:
  // ---- PollSource and ConnectionHandler

  bool poll() override {
    const bool has_read = reading_ && read_some(kRecordsAtOnce);
    const bool has_written = !closed_ && !waiting_.empty() && write_waiting();
    return has_read || has_written;
  }

  bool prepare_to_sleep() override {
    if (reading_ && !stalled_ && !paused() && !rings_->arm_for_record()) return false;
    if (!waiting_.empty() && !rings_->arm_for_room(waiting_.front())) {
      rings_->disarm();
      return false;
    }
    polled_ = false;
    return true;
  }

  void on_frame(Frame frame) override {
    const auto self = shared_from_this();
    if (frame.kind == FrameKind::kLink) return on_link(static_cast<LinkMethod>(frame.method), std::move(frame.fds));
    if (!reading_) return deliver(std::move(frame));
    start_polling();
    // The frame's empty record was written before the frame was sent, so at most a ring full of records precedes it.
    for (std::size_t i = 0; !closed_ && !stalled_; ++i) {
      if (i > rings_->max_records() || read_one() == Read::kNothing) return close(out_of_order());
    }
    if (closed_) return;
    stalled_ = false;
    if (rings_->pop() == Wake::kBell) ring_bell(Flush::kNow);
    deliver(std::move(frame));
  }

  void on_closed(Error why) override {
    const auto self = shared_from_this();
    read_ring();
    close(std::move(why));
  }

  void on_drained() override {
    if (waiting_.empty() && handler_ != nullptr) handler_->on_drained();
  }

  // ---- setup of the rings

  void offer() {
    Fd memory;
    auto rings = FrameRings::make(capacity_, memory);
    if (!rings) return;  // out of descriptors or memory: the socket serves instead, without another try
    rings_ = *std::move(rings);
    Frame frame = link_frame(LinkMethod::kOffer);
    frame.fds.push_back(std::move(memory));
    socket_->send(std::move(frame), Flush::kLater);
  }

  void on_link(LinkMethod method, std::vector<Fd> fds) {
    switch (method) {
      case LinkMethod::kOffer:
        if (calls_ || rings_) return close(out_of_order());
        if (auto rings = FrameRings::take(fds, capacity_)) {
          rings_ = *std::move(rings);
        } else {
          return socket_->send(link_frame(LinkMethod::kRefuse), Flush::kNow);
        }
        socket_->send(link_frame(LinkMethod::kAccept), Flush::kNow);
        writing_ = true;
        return;
      case LinkMethod::kAccept:
        if (!calls_ || !rings_ || reading_) return close(out_of_order());
        socket_->send(link_frame(LinkMethod::kStart), Flush::kNow);
        writing_ = true;
        return begin_reading();
      case LinkMethod::kRefuse:
        if (!calls_ || writing_) return close(out_of_order());
        return;  // rings_ stay set to prevent another offer; their pages are untouched
      case LinkMethod::kStart:
        if (calls_ || !rings_ || reading_) return close(out_of_order());
        return begin_reading();
      case LinkMethod::kBell:
        if (rings_) start_polling();
        return;
      case LinkMethod::kPart:
        break;  // messages travel in parts only between hosts
    }
    close(invalid_argument("the peer sent an unknown control word"));
  }

  void begin_reading() {
    reading_ = true;
    start_polling();
  }

  // Makes the loop poll the rings until it sleeps.
  void start_polling() {
    if (closed_ || std::exchange(polled_, true)) return;
    if (reading_) rings_->disarm();
    loop_.busy_poller().add_ring(shared_from_this());
  }

  // ---- reading

  enum class Read { kFrame, kNothing };

  // A caller that does not read the answers to its calls sends no more of them. Only the listener's end pauses: if both did, each could
  // wait for the other.
  bool paused() const { return !calls_ && waiting_bytes_ > max_queued_bytes_ / kPauseDivisor; }

  bool read_some(int count) {
    int i = 0;
    while (i < count && !closed_ && !stalled_ && !paused() && read_one() == Read::kFrame) ++i;
    return i > 0 || closed_;
  }

  // Reads at most one ring full of records, because a living peer may keep writing.
  void read_ring() {
    for (std::size_t i = 0; reading_ && !closed_ && !stalled_ && i < rings_->max_records(); ++i) {
      if (read_one() == Read::kNothing) break;
    }
  }

  // The handler may destroy the connection during this call.
  Read read_one() {
    const auto record = rings_->peek();
    if (!record) {
      close(record.error());
      return Read::kFrame;
    }
    if (!*record) return Read::kNothing;
    if ((*record)->empty()) {
      stalled_ = true;
      return Read::kFrame;
    }
    auto frame = FrameRings::parse(**record, limits_);
    if (!frame) {
      close(frame.error());
      return Read::kFrame;
    }
    if (rings_->pop() == Wake::kBell) ring_bell(Flush::kNow);
    deliver(*std::move(frame));
    return Read::kFrame;
  }

  void deliver(Frame frame) {
    if (handler_ == nullptr || closed_) return;
    ++traffic_->received;
    handler_->on_frame(std::move(frame));
  }

  // ---- writing

  // Returns false if the frame has to wait; true also if the connection has ended.
  bool put(Frame& frame, Flush flush) {
    const auto wake = rings_->write(frame);
    if (!wake) {
      close_later(wake.error());
      return true;
    }
    if (!*wake) return false;
    if (!rings_->fits(frame)) {
      socket_->send(std::move(frame), flush);  // the frame itself wakes the peer
    } else if (**wake == Wake::kBell) {
      ring_bell(flush);
    }
    return true;
  }

  // Returns true if any frame was written.
  bool write_waiting() {
    std::size_t count = 0;
    while (!waiting_.empty() && !closed_) {
      const std::size_t bytes = waiting_.front().wire_bytes();
      if (!put(waiting_.front(), Flush::kNow)) break;
      waiting_bytes_ -= bytes;
      waiting_.pop_front();
      ++count;
    }
    if (count > 0 && waiting_.empty() && !closed_ && handler_ != nullptr && socket_->queued_bytes() == 0) handler_->on_drained();
    return count > 0;
  }

  void ring_bell(Flush flush) {
    if (!closed_) socket_->send(link_frame(LinkMethod::kBell), flush);
  }

  // ---- the end

  // Defers on_closed, which must not run inside send(): its caller may be in an intermediate state.
  void close_later(Error why) {
    if (std::exchange(closed_, true)) return;
    loop_.post([self = shared_from_this(), why = std::move(why)] {
      self->closed_ = false;
      self->close(why);
    });
  }

  void close(Error why) {
    if (closed_) return;
    shut();
    if (handler_ != nullptr) std::exchange(handler_, nullptr)->on_closed(std::move(why));
  }

  void shut() {
    closed_ = true;
    if (std::exchange(polled_, false)) loop_.busy_poller().remove(*this);
    waiting_.clear();
    waiting_bytes_ = 0;
    socket_.reset();
  }

  Loop& loop_;
  const bool calls_;
  const std::size_t capacity_;
  const std::size_t max_queued_bytes_;
  const std::shared_ptr<Traffic> traffic_;
  const PeerIdentity identity_;
  const FrameLimits limits_;
  std::unique_ptr<Connection> socket_;  // null once closed
  std::uint32_t frames_until_offer_;
  std::unique_ptr<FrameRings> rings_;
  bool writing_ = false, reading_ = false;  // rings in use, per direction
  bool stalled_ = false;                    // the next frame in order comes through the socket
  bool polled_ = false;                     // polled by the loop
  std::deque<Frame> waiting_;               // frames that wait for room in the ring
  std::size_t waiting_bytes_ = 0;
  ConnectionHandler* handler_ = nullptr;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Connection> make_ring_connection(Loop& loop, std::unique_ptr<Connection> socket, bool calls, const RingOptions& options,
                                                 std::size_t max_queued_bytes, std::shared_ptr<Traffic> traffic) {
  return make_stream_connection<RingStream>(loop, std::move(socket), calls, options, max_queued_bytes, std::move(traffic));
}

}  // namespace shoal::runtime
