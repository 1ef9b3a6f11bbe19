#include "runtime/sim/sim_link.h"

#include <algorithm>
#include <cerrno>

#include "runtime/core/check.h"
#include "runtime/sim/trace.h"

namespace shoal::runtime::sim {

namespace {

constexpr Duration kMostRetransmit = std::chrono::milliseconds(800);  // longest time from a heal to the first frame

class SimConnection final : public Connection {
 public:
  SimConnection(std::shared_ptr<Link> link, int end, PeerIdentity identity) : link_(std::move(link)), end_(end), identity_(identity) {}
  ~SimConnection() override { link_->abandon(end_); }
  void start(ConnectionHandler& handler) override { link_->start(end_, handler); }
  void send(Frame frame, Flush) override {
    SHOAL_CHECK(identity_.local || frame.fds.empty(), "descriptors can be sent over unix sockets only");
    link_->send(end_, std::move(frame));
  }
  std::size_t queued_bytes() const override { return link_->queued_bytes(end_); }
  void read_arrived() override {
    if (!identity_.local) return;
    const auto link = link_;  // the handler may destroy this connection
    link->read_arrived(end_);
  }
  const PeerIdentity& identity() const override { return identity_; }
  const FrameLimits& limits() const override { return link_->limits(); }

 private:
  const std::shared_ptr<Link> link_;
  const int end_;
  const PeerIdentity identity_;
};

Error other_side_closed() { return unavailable("the other side closed the connection").with_reason("Disconnected"); }

}  // namespace

Link::Link(SimFabric& fabric, std::uint64_t id, std::shared_ptr<Process> caller, const Endpoint& to, Role role,
           Network::Connected connected)
    : fabric_(fabric),
      id_(id),
      to_(to),
      connected_(std::move(connected)),
      caller_(caller->token, fabric.options_.versions, role, fabric.random_) {
  ends_[0].host = caller->host;
  ends_[1].host = to.is_unix() ? caller->host : to.host;
  caller->links.insert(id);
  ends_[0].process = std::move(caller);
}

// ---- parcels ------------------------------------------------------------------------------------------------------------------------

void Link::Queue::push(Parcel parcel) {
  bytes_ += parcel.bytes();
  parcels_.push_back(std::move(parcel));
}

Link::Parcel Link::Queue::pop() {
  Parcel out = std::move(parcels_.front());
  parcels_.pop_front();
  bytes_ -= out.bytes();
  return out;
}

void Link::Queue::keep(std::size_t count) {
  for (; parcels_.size() > count; parcels_.pop_back()) bytes_ -= parcels_.back().bytes();
}

void Link::push(int to, Parcel parcel) {
  End& e = ends_[to];
  if (e.closed || e.closing) return;
  e.closing = parcel.kind == Kind::kClose;
  parcel.due = fabric_.clock_.now() + fabric_.delay(ends_[1 - to].host, e.host);  // or later, behind the parcels before it
  e.incoming.push(std::move(parcel));
  if (e.incoming.size() == 1) pump(to);
}

// Sets the timer of the first parcel's arrival. Parcels for a connection without a handler wait for start().
void Link::pump(int to) {
  End& e = ends_[to];
  if (e.closed || e.held || e.incoming.empty() || (e.established && e.handler == nullptr)) return;
  e.arrival = fabric_.clock_.after(e.incoming.front().due - fabric_.clock_.now(), [this, to] { arrive(to); });
}

void Link::arrive(int to) {
  const auto self = shared_from_this();
  End& e = ends_[to];
  if (!fabric_.reaches(ends_[1 - to].host, e.host)) return hold(to);
  Parcel parcel = e.incoming.pop();
  Trace& trace = fabric_.trace_;
  trace.event();
  trace.add(e.host);
  trace.add(static_cast<std::uint64_t>(parcel.kind) << 32 | static_cast<std::uint64_t>(parcel.frame.kind) << 16 | parcel.frame.method);
  trace.add(static_cast<std::uint64_t>(fabric_.clock_.now().time_since_epoch().count()));
  trace.add(parcel.frame.id);
  trace.add(parcel.frame.body.span());
  trace.add(parcel.frame.payload.span());
  const bool drained = parcel.kind == Kind::kFrame && e.incoming.bytes() == 0;
  deliver(to, std::move(parcel));
  pump(to);
  const End& from = ends_[1 - to];
  if (drained && from.handler != nullptr && !from.closed) from.handler->on_drained();
}

void Link::deliver(int to, Parcel parcel) {
  End& e = ends_[to];
  switch (parcel.kind) {
    case Kind::kOpen:
      return found(fabric_.listening(ends_[0].host, to_));
    case Kind::kRefused:
      return finish_connect(fail(from_errno(ECONNREFUSED, "connect")));
    case Kind::kHello:
      return to == 1 ? greet_caller(parcel.hello) : greet_listener(parcel.hello);
    case Kind::kFrame: {
      const auto header = decode_header(FrameHeader::for_frame(parcel.frame).encode().data(), fabric_.options_.limits);
      if (header) return e.handler->on_frame(std::move(parcel.frame));
      push(1 - to, {Kind::kClose, {}, {}, broke()});
      return close(to, header.error());
    }
    case Kind::kClose:
      return close(to, *parcel.why);
  }
}

// ---- partitions ---------------------------------------------------------------------------------------------------------------------

void Link::hold(int to) {
  End& e = ends_[to];
  e.held = true;
  e.give_up = fabric_.clock_.after(fabric_.options_.give_up, [this, to] { gave_up(to); });
}

void Link::gave_up(int to) {
  const auto self = shared_from_this();
  End& e = ends_[to];
  e.incoming.clear();
  e.closing = false;
  push(to, {Kind::kClose, {}, {}, broke()});  // arrives once the partition heals
  close(1 - to, from_errno(ETIMEDOUT, "the connection broke"));
}

void Link::resume() {
  const auto self = shared_from_this();
  bool resumed = false;
  for (const int to : {0, 1}) {
    End& e = ends_[to];
    if (!e.held || !fabric_.reaches(ends_[1 - to].host, e.host)) continue;
    resumed = true;
    e.held = false;
    e.give_up = {};
    const Duration late = between(fabric_.random_, {}, kMostRetransmit);
    e.incoming.front().due = fabric_.clock_.now() + late;
    pump(to);
  }
  if (resumed && happens(fabric_.random_, fabric_.options_.broken_by_partition_per_mille)) disconnect();
}

// ---- ends ---------------------------------------------------------------------------------------------------------------------------

Error Link::broke() { return happens(fabric_.random_, 500) ? other_side_closed() : from_errno(ECONNRESET, "the connection broke"); }

// Drops the parcels on their way to an end from a randomly drawn one on.
void Link::lose_some(int to) {
  End& e = ends_[to];
  if (e.incoming.empty()) return;
  e.incoming.keep(fabric_.random_.below(e.incoming.size() + 1));
  e.closing = e.incoming.ends_with_close();
  if (e.incoming.empty()) e.arrival = {};
}

void Link::disconnect() {
  for (const int to : {0, 1}) {
    lose_some(to);
    push(to, {Kind::kClose, {}, {}, broke()});
  }
}

// Stops deliveries to an end; parcels that it sent remain under way.
void Link::silence(int end) {
  End& e = ends_[end];
  e.closed = true;
  e.held = false;
  e.handler = nullptr;
  e.incoming.clear();
  for (Timer* t : {&e.arrival, &e.give_up, &e.failing, &e.limit}) *t = {};
  if (end == 0) connected_ = nullptr;
  forget_if_over();
}

void Link::close(int end, const Error& why) {
  if (ends_[end].closed) return;
  if (end == 0 && !ends_[0].established) return finish_connect(fail(why));
  ConnectionHandler* const handler = ends_[end].handler;
  silence(end);
  if (!ends_[1 - end].closed) push(1 - end, {Kind::kClose, {}, {}, broke()});  // no effect if the close came from there
  if (handler != nullptr) handler->on_closed(why);
}

void Link::abandon(int end) {
  if (ends_[end].closed) return;
  const auto self = shared_from_this();
  const bool unread = !ends_[end].incoming.empty();
  silence(end);
  push(1 - end, {Kind::kClose, {}, {}, unread ? broke() : other_side_closed()});
}

void Link::process_crashed(const Process& process, bool abrupt) {
  const auto self = shared_from_this();
  for (const int end : {0, 1}) {
    if (ends_[end].closed || ends_[end].process.get() != &process) continue;
    silence(end);
    if (abrupt) lose_some(1 - end);
    push(1 - end, {Kind::kClose, {}, {}, broke()});
  }
}

void Link::process_left(const Process& process) {
  const auto self = shared_from_this();
  for (const int end : {0, 1}) {
    if (ends_[end].process.get() == &process && !ends_[end].established) abandon(end);
  }
}

void Link::forget_if_over() {
  if (ends_[0].closed && (ends_[1].closed || ends_[1].process == nullptr)) {
    ends_[1].arrival = {};
    ends_[1].give_up = {};
    for (const End& e : ends_) {
      if (e.process) e.process->links.erase(id_);
    }
    fabric_.forget(id_);
  }
}

bool Link::joins(const std::string& a, const std::string& b) const {
  return (ends_[0].host == a && ends_[1].host == b) || (ends_[0].host == b && ends_[1].host == a);
}

// ---- connections --------------------------------------------------------------------------------------------------------------------

void Link::start(int end, ConnectionHandler& handler) {
  End& e = ends_[end];
  if (e.closed) return;  // the process crashed
  SHOAL_CHECK(e.handler == nullptr, "a connection is started twice");
  e.handler = &handler;
  pump(end);
}

void Link::send(int end, Frame frame) {
  End& other = ends_[1 - end];
  if (ends_[end].closed || other.closing) return;
  push(1 - end, {Kind::kFrame, {}, std::move(frame)});
  if (other.incoming.bytes() <= fabric_.options_.max_queued_bytes) return;
  // Defers on_closed, which must not run inside send(): its caller may be in an intermediate state.
  other.closing = true;
  ends_[end].failing = fabric_.clock_.after({}, [this, end] {
    const auto self = shared_from_this();
    ends_[1 - end].closing = false;
    close(end, resource_exhausted("a peer does not read: more than " + std::to_string(fabric_.options_.max_queued_bytes) +
                                  " bytes wait for it"));
  });
}

// Within a host, frames and a close are in the kernel as soon as they are sent, so they arrive now.
void Link::read_arrived(int end) {
  End& e = ends_[end];
  for (std::size_t left = e.incoming.size(); left > 0 && !e.closed && !e.held && e.handler != nullptr && !e.incoming.empty(); --left) {
    e.arrival = {};
    arrive(end);
  }
}

std::unique_ptr<Connection> Link::establish(int end, Role role, std::uint16_t version) {
  End& e = ends_[end];
  e.established = true;
  e.limit = {};
  const bool local = to_.is_unix();
  return std::make_unique<SimConnection>(shared_from_this(), end,
                                         PeerIdentity{role, version, local, local ? ends_[1 - end].process->pid : 0});
}

// ---- the hello ----------------------------------------------------------------------------------------------------------------------

void Link::open(Duration timeout) {
  ends_[0].limit = fabric_.clock_.after(timeout, [this] {
    const auto self = shared_from_this();
    finish_connect(fail(deadline_exceeded("the other side did not answer the hello in time")));
  });
  push(1, {Kind::kOpen});
}

void Link::found(std::shared_ptr<Listening> listening) {
  if (!listening) {
    if (!fabric_.down_.contains(ends_[1].host)) push(0, {Kind::kRefused});
    return;
  }
  End& e = ends_[1];
  e.process = listening->process;
  e.process->links.insert(id_);
  listening_ = listening;
  listener_.emplace(e.process->token, fabric_.options_.versions, fabric_.random_);
  e.limit = fabric_.clock_.after(fabric_.options_.hello_timeout, [this] { abandon(1); });
  push(0, {Kind::kHello, listener_->challenge()});
}

void Link::greet_caller(const HelloMessage& answer) {
  const auto verdict = listener_->judge(answer);
  push(0, {Kind::kHello, verdict.message});
  const auto listening = listening_.lock();
  if (!verdict.accepted || !listening) return abandon(1);
  listening->accepted(establish(1, verdict.role, verdict.version));
}

void Link::greet_listener(const HelloMessage& message) {
  if (!answered_) {
    answered_ = true;
    auto answer = caller_.answer(message);
    if (!answer) return finish_connect(fail(answer.error()));
    return push(1, {Kind::kHello, *answer});
  }
  const auto version = caller_.conclude(message);
  if (!version) return finish_connect(fail(version.error()));
  finish_connect(establish(0, Role::kClient, *version));
}

void Link::finish_connect(Result<std::unique_ptr<Connection>> result) {
  const auto connected = std::exchange(connected_, nullptr);
  if (!result) {
    abandon(0);
    result = fail(Error(result.error()).in("connecting to " + to_.to_string()));
  }
  if (connected) connected(std::move(result));
}

}  // namespace shoal::runtime::sim
