#include "runtime/transport/tcp/connecting/calls.h"

#include <netdb.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <chrono>

#include "runtime/net/socket/address.h"

namespace shoal::runtime {

namespace {

constexpr int kBacklog = 4096;  // all connections of a large group, made before this rank accepts one

TimePoint now() { return std::chrono::steady_clock::now(); }

void set(int socket, int level, int option, int value) { (void)setsockopt(socket, level, option, &value, sizeof value); }

// Messages leave at once, and the kernel asks an idle host every second whether it exists. The layer decides when a silent host is lost,
// and itself sends about ten probes a second (peer.cc). So the kernel's own limit of unanswered probes must come later.
void set_up(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 127);  // the most that Linux takes: 13 s
}

// `host` is a numeric address, which RankAddress guarantees. Another one gives an address without a family.
Address numeric(const std::string& host, std::uint16_t port) {
  const auto found = resolve(Endpoint::tcp(host, port), AI_NUMERICHOST);
  return found && !found->empty() ? found->front() : Address();
}

bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

Error no_descriptors(int error) {
  return from_errno(error, "a connection").with_reason("NoDescriptors").with_hint("raise the limit of open files (ulimit -Hn)");
}

Result<Fd> new_socket(int family) {
  Fd out(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!out && lacks_descriptors(errno)) return fail(no_descriptors(errno));
  if (!out) return fail(from_errno(errno, "socket"));
  return out;
}

}  // namespace

// ---- OutgoingCall ------------------------------------------------------------------------------------------------------------------

OutgoingCall::OutgoingCall(Poller& poller, const RankAddress& from, const RankAddress& to, std::shared_ptr<const Tls> tls,
                           const Introduction& introduction)
    : poller_(poller), to_(to), introduction_(introduction), tls_(std::move(tls)) {
  start(from);
}

void OutgoingCall::start(const RankAddress& from) {
  const Address address = numeric(to_.host, to_.port), own = numeric(from.host, 0);
  auto socket = new_socket(address.family());
  if (!socket) {
    fail(socket.error());
    if (why_.reason() == "NoDescriptors") state_ = State::kHungUp;  // other descriptors may be closed soon
    return;
  }
  set_up(socket->get());
  // Calls from the chosen interface, also where the route would choose another one.
  set(socket->get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);  // connect() chooses a port, unique for this pair of addresses only
  if (own.family() == address.family()) (void)::bind(socket->get(), own.get(), own.length);
  const int connecting = ::connect(socket->get(), address.get(), address.length);
  const int error = errno;
  stream_.emplace(std::move(*socket), tls_, TlsSession::Side::kCalls);
  if (connecting != 0 && error != EINPROGRESS) return fail(from_errno(error, "connecting").with_reason("Refused"));
  poller_.add(stream_->socket(), *this);
}

void OutgoingCall::fail(Error why) {
  state_ = State::kFailed;
  why_ = std::move(why);
}

void OutgoingCall::advance() {
  if (state_ == State::kConnecting && (writable || hung_up)) connected();
  if (state_ == State::kSecuring) {
    const auto secured = stream_->handshake();
    if (!secured) {
      fail(secured.error());
      if (secured.error().code() == Code::kUnavailable) state_ = State::kHungUp;
      return;
    }
    if (*secured) state_ = State::kIntroducing;
  }
  if (state_ == State::kIntroducing) {
    const auto message = Introduction::encode(introduction_, to_.token, stream_->binding());
    const auto sent = stream_->write(message, {});
    state_ = sent && sent->bytes == message.size() ? State::kWaiting : State::kHungUp;
    if (!sent) why_ = sent.error();
  }
  if (state_ == State::kWaiting) read_welcome();
}

void OutgoingCall::connected() {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(stream_->socket(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return fail(from_errno(error, "connecting").with_reason("Refused"));
  state_ = stream_->encrypted() ? State::kSecuring : State::kIntroducing;
}

void OutgoingCall::read_welcome() {
  while (bytes_ < welcome_.size()) {
    const auto moved = stream_->read(std::span(welcome_).subspan(bytes_), {}, hung_up);
    if (!moved || moved->ended) {
      state_ = State::kHungUp;
      why_ = moved ? unavailable("the other side closed the connection").with_reason("HungUp") : moved.error();
      return;
    }
    bytes_ += moved->bytes;
    if (moved->blocked && bytes_ < welcome_.size()) return;
  }
  const auto verdict = Welcome::decode(welcome_, introduction_, to_.token, stream_->binding());
  if (!verdict) return fail(verdict.error());
  state_ = *verdict == Welcome::Verdict::kWelcome ? State::kWelcome : State::kLate;
}

ByteStream OutgoingCall::take() {
  poller_.remove(stream_->socket());
  return std::move(*stream_);
}

// ---- Gate --------------------------------------------------------------------------------------------------------------------------

class Gate::Caller final : public Pollable {
 public:
  Caller(Poller& poller, Fd socket, std::shared_ptr<const Tls> tls, const Token& token)
      : poller_(poller), token_(token), stream_(std::move(socket), std::move(tls), TlsSession::Side::kListens) {
    poller_.add(stream_.socket(), *this);
  }
  ~Caller() override { poller_.forget(stream_.socket(), *this); }

  void advance() override {
    if (over) return;
    auto ready = stream_.handshake();
    over = !ready;
    while (ready && *ready && bytes_ < message_.size()) {
      const auto moved = stream_.read(std::span(message_).subspan(bytes_), {}, hung_up);
      over = !moved || moved->ended;
      if (over) return;
      bytes_ += moved->bytes;
      if (moved->blocked && bytes_ < message_.size()) return;
    }
    if (bytes_ < message_.size()) return;
    auto decoded = Introduction::decode(message_, token_, stream_.binding());
    over = true;
    if (decoded) introduction = *decoded;
  }
  ByteStream take() {
    poller_.remove(stream_.socket());
    return std::move(stream_);
  }

  bool over = false;
  std::optional<Introduction> introduction;
  const TimePoint since = now();

 private:
  Poller& poller_;
  const Token& token_;
  ByteStream stream_;
  Introduction::Message message_{};
  std::size_t bytes_ = 0;
};

Gate::Gate(Poller& poller, std::shared_ptr<const Tls> tls) : poller_(poller), tls_(std::move(tls)) {}
Gate::~Gate() { poller_.forget(socket_.get(), *this); }

Result<void> Gate::open(RankAddress& address) {
  token_ = address.token;
  const Address at = numeric(address.host, 0);
  SHOAL_TRY(socket_, new_socket(at.family()));
  if (::bind(socket_.get(), at.get(), at.length) != 0) {
    return fail(from_errno(errno, "listening on " + address.host).with_hint("--interface takes an interface or an address of this host"));
  }
  if (::listen(socket_.get(), kBacklog) != 0) return fail(from_errno(errno, "listening on " + address.host));
  address.port = bound_address(socket_.get()).port();
  poller_.add(socket_.get(), *this);
  return {};
}

bool Gate::make_room(TimePoint at) {
  if (callers_.size() < kMaxCallers) return true;
  if (at - callers_.front()->since < kPatience) return false;
  callers_.pop_front();
  return true;
}

void Gate::advance() {
  while (readable && make_room(now())) {
    Fd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!socket) {
      if (lacks_descriptors(errno)) obstacle_ = no_descriptors(errno);
      readable = false;  // also if descriptors are lacking: tidy() tries again
      return;
    }
    obstacle_.reset();
    set_up(socket.get());
    callers_.push_back(std::make_unique<Caller>(poller_, std::move(socket), tls_, token_));
  }
}

void Gate::tidy(TimePoint at) {
  while (!callers_.empty() && at - callers_.front()->since > kLimit) callers_.pop_front();
  readable = true;
  poller_.queue(*this);
}

std::vector<Gate::Guest> Gate::take_guests() {
  std::vector<Guest> out;
  for (auto it = callers_.begin(); it != callers_.end();) {
    if (!(*it)->over) {
      ++it;
      continue;
    }
    if ((*it)->introduction) out.push_back({(*it)->take(), *(*it)->introduction});
    it = callers_.erase(it);
  }
  return out;
}

}  // namespace shoal::runtime
