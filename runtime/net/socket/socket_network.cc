#include "runtime/net/socket/socket_network.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <asio/experimental/as_tuple.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/loop/loop.h"
#include "runtime/loop/task_group.h"
#include "runtime/net/ring/ring_connection.h"
#include "runtime/net/socket/socket_connection.h"

namespace shoal::runtime {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr Duration kFirstConnectPause = std::chrono::milliseconds(5), kLongestConnectPause = std::chrono::milliseconds(200);
constexpr int kPatienceOfTimeout = 20;  // divisor of hello_timeout: a hello silent for that long may be closed to make room
constexpr auto kTuple = asio::experimental::as_tuple(asio::use_awaitable);
using Socket = asio::generic::stream_protocol::socket;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const {
    if (family() == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
    return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  }
};

using Ways = std::vector<Address>;

// Blocks on /etc/hosts and name servers. On a loop, use looked_up() instead, or pass AI_NUMERICHOST.
Result<Ways> resolve(const Endpoint& endpoint, int flags = 0) {
  Address out;
  if (endpoint.is_unix()) {
    auto* un = reinterpret_cast<sockaddr_un*>(&out.storage);
    un->sun_family = AF_UNIX;
    if (endpoint.unix_name.size() + 1 > sizeof un->sun_path) return fail(invalid_argument(endpoint.to_string() + ": the name is too long"));
    std::memcpy(un->sun_path + 1, endpoint.unix_name.data(), endpoint.unix_name.size());  // leading 0: abstract
    out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + endpoint.unix_name.size());
    return Ways{out};
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  if (const int e = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found); e != 0) {
    return fail(not_found("host '" + endpoint.host + "': " + gai_strerror(e)));
  }
  Ways ways;
  for (const auto* a = found; a != nullptr; a = a->ai_next) {
    std::memcpy(&out.storage, a->ai_addr, a->ai_addrlen);
    out.length = a->ai_addrlen;
    ways.push_back(out);
  }
  freeaddrinfo(found);
  return ways;
}

// Identity of the peer of a unix socket, as the kernel reports it.
Result<PeerIdentity> local_peer(int fd) {
  PeerIdentity identity;
  sockaddr_storage self{};
  socklen_t length = sizeof self;
  getsockname(fd, reinterpret_cast<sockaddr*>(&self), &length);
  if (self.ss_family != AF_UNIX) return identity;
  ucred credentials{};
  length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return fail(from_errno(errno, "SO_PEERCRED"));
  if (credentials.uid != geteuid()) {
    return fail(
        invalid_argument("a process of another user called (uid " + std::to_string(credentials.uid) + ")").with_reason("TokenRefused"));
  }
  identity.local = true;
  identity.pid = credentials.pid;
  return identity;
}

// A pulled cable sends no signal: unacknowledged bytes, or the probes of an idle connection, end the connection.
void prepare_tcp(int fd, Duration unanswered) {
  const auto set = [fd](int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); };
  const auto ms = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(unanswered).count());
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, ms / 2000));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, ms / 8000));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

Error from_asio(std::error_code error, std::string_view what) {
  if (error == asio::error::eof) return unavailable(std::string(what) + ": the other side closed the connection").with_reason("HungUp");
  return from_errno(error.value(), what);
}

// A socket and, between hosts, the TLS session on it.
struct Line {
  explicit Line(Socket socket) : socket(std::move(socket)) {}
  void close() {
    std::error_code ignored;
    socket.close(ignored);
  }
  HelloBinding binding() const { return tls ? HelloBinding(tls->binding()) : HelloBinding(); }

  Socket socket;
  std::optional<TlsSession> tls;
};

Task<void> wait_for(Line& line, TlsSession::Step step) {
  const auto what = step == TlsSession::Step::kWritable ? Socket::wait_write : Socket::wait_read;
  const auto [error] = co_await line.socket.async_wait(what, kTuple);
  if (error) co_return fail(from_asio(error, "hello"));
  if (!line.socket.is_open()) co_return fail(cancelled("the hello was cancelled"));
  co_return Result<void>();
}

Task<void> begin_tls(Line& line, std::shared_ptr<const Tls> tls, TlsSession::Side side) {
  line.tls.emplace(std::move(tls), line.socket.native_handle(), side);
  for (;;) {
    SHOAL_CO_TRY(const auto step, line.tls->handshake());
    if (step == TlsSession::Step::kDone) co_return Result<void>();
    SHOAL_CO_OK(co_await wait_for(line, step));
  }
}

Task<void> read_message(Line& line, HelloMessage& message) {
  if (!line.tls) {
    const auto [error, n] = co_await asio::async_read(line.socket, asio::buffer(message), kTuple);
    if (error) co_return fail(from_asio(error, "hello"));
    co_return Result<void>();
  }
  for (std::span<std::byte> left = std::as_writable_bytes(std::span(message)); !left.empty();) {
    SHOAL_CO_TRY(const auto moved, line.tls->read(left));
    if (moved.ended) co_return fail(from_asio(asio::error::eof, "hello"));
    if (moved.step != TlsSession::Step::kDone) SHOAL_CO_OK(co_await wait_for(line, moved.step));
    left = left.subspan(moved.bytes);
  }
  co_return Result<void>();
}

Task<void> write_message(Line& line, HelloMessage message) {
  if (!line.tls) {
    const auto [error, n] = co_await asio::async_write(line.socket, asio::buffer(message), kTuple);
    if (error) co_return fail(from_asio(error, "hello"));
    co_return Result<void>();
  }
  for (std::span<const std::byte> left = std::as_bytes(std::span(message)); !left.empty();) {
    SHOAL_CO_TRY(const auto moved, line.tls->write(left));
    if (moved.step != TlsSession::Step::kDone) SHOAL_CO_OK(co_await wait_for(line, moved.step));
    left = left.subspan(moved.bytes);
  }
  co_return Result<void>();
}

Task<PeerIdentity> greet_caller(Line& line, const Token& token, VersionRange versions, Random& random) {
  SHOAL_CO_TRY(PeerIdentity identity, local_peer(line.socket.native_handle()));
  HelloListener hello(token, versions, random, line.binding());
  SHOAL_CO_OK(co_await write_message(line, hello.challenge()));
  HelloMessage answer;
  SHOAL_CO_OK(co_await read_message(line, answer));
  const auto verdict = hello.judge(answer);
  SHOAL_CO_OK(co_await write_message(line, verdict.message));
  SHOAL_CO_OK(verdict.accepted);
  identity.role = verdict.role;
  identity.version = verdict.version;
  co_return identity;
}

Task<PeerIdentity> greet_listener(Line& line, const Token& token, VersionRange versions, Role role, Random& random) {
  SHOAL_CO_TRY(PeerIdentity identity, local_peer(line.socket.native_handle()));
  HelloCaller hello(token, versions, role, random, line.binding());
  HelloMessage message;
  SHOAL_CO_OK(co_await read_message(line, message));
  SHOAL_CO_TRY(const HelloMessage answer, hello.answer(message));
  SHOAL_CO_OK(co_await write_message(line, answer));
  SHOAL_CO_OK(co_await read_message(line, message));
  SHOAL_CO_TRY(identity.version, hello.conclude(message));
  co_return identity;
}

// State shared by a listener and the hellos that it began.
struct Door {
  struct Greeting {
    std::shared_ptr<Line> line;
    TimePoint since;
  };
  Network::Accepted accepted;     // empty once the listener is gone
  std::list<Greeting> greeting;   // hellos under way, oldest first
  std::function<void()> goes_on;  // resumes a listener that waits for room

  // Returns how long to wait before the next connection is accepted; zero: accept it now. At most `max` connections may be in their hello.
  // To make room, closes the oldest of them that is older than `patience` and has no unread bytes.
  Duration wait_for_room(std::size_t max, TimePoint now, Duration patience) {
    if (greeting.size() < max) return Duration::zero();
    for (auto it = greeting.begin(); it != greeting.end(); ++it) {
      const Duration left = it->since + patience - now;
      if (left > Duration::zero()) return left;
      std::error_code ignored;
      if (it->line->socket.available(ignored) > 0) continue;
      it->line->close();
      greeting.erase(it);
      return Duration::zero();
    }
    return patience;
  }

  void ended(const std::shared_ptr<Line>& line) {
    greeting.remove_if([&](const Greeting& g) { return g.line == line; });
    if (goes_on) goes_on();
  }

  void close() {
    accepted = nullptr;
    goes_on = nullptr;
    for (const auto& g : std::exchange(greeting, {})) g.line->close();
  }
};

}  // namespace

struct SocketNetwork::Impl {
  Impl(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options)
      : loop(loop), clock(clock), random(random), token(token), options(options), tasks(loop, [](const std::string&, const Error&) {
          // A failed hello: connect() reports it to its caller, and a listener ignores it.
        }) {}

  Socket make_socket(Fd fd) {
    sockaddr_storage self{};
    socklen_t length = sizeof self;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&self), &length);
    return Socket(loop.io(), asio::generic::stream_protocol(self.ss_family, 0), fd.release());
  }

  std::unique_ptr<Connection> finish(Line& line, PeerIdentity identity, std::optional<Role> calls_as) {
    Fd fd(line.socket.release());
    if (!identity.local) prepare_tcp(fd.get(), options.unanswered);
    if (line.tls) return make_tls_connection(loop, std::move(fd), std::move(*line.tls), identity, options, traffic);
    if (!identity.local || calls_as.value_or(identity.role) != Role::kWorker || options.rings.bytes == 0) {
      return make_socket_connection(loop, std::move(fd), identity, options, traffic);
    }
    // The socket has counters of its own, because the ring's internal frames are not counted.
    auto connection = make_socket_connection(loop, std::move(fd), identity, options, std::make_shared<Traffic>());
    return make_ring_connection(loop, std::move(connection), calls_as.has_value(), options.rings, options.max_queued_bytes, traffic);
  }

  void arrived(const std::shared_ptr<Door>& door, Fd fd) {
    auto line = std::make_shared<Line>(make_socket(std::move(fd)));
    door->greeting.push_back({line, clock.now()});
    tasks.spawn("accept", accepted(std::move(line), door));
  }

  Task<void> accepted(std::shared_ptr<Line> line, std::shared_ptr<Door> door) {
    const Timer limit = clock.after(options.hello_timeout, [line] { line->close(); });
    const auto greeted = co_await greeted_caller(*line);
    door->ended(line);
    SHOAL_CO_TRY(const PeerIdentity identity, greeted);
    if (!door->accepted || !line->socket.is_open()) co_return Result<void>();  // no listener, or closed to make room
    const auto accept = door->accepted;                                        // a copy: the call may destroy the listener
    accept(finish(*line, identity, {}));
    co_return Result<void>();
  }

  Task<PeerIdentity> greeted_caller(Line& line) {
    sockaddr_storage self{};
    socklen_t length = sizeof self;
    getsockname(line.socket.native_handle(), reinterpret_cast<sockaddr*>(&self), &length);
    if (self.ss_family != AF_UNIX && options.tls) SHOAL_CO_OK(co_await begin_tls(line, options.tls, TlsSession::Side::kListens));
    auto greeted = co_await greet_caller(line, token, options.versions, random);
    co_return greeted;
  }

  Task<void> called(Endpoint to, Ways ways, Role role, Duration timeout, Connected on_connected) {
    bool late = false;
    const auto line = std::make_shared<Line>(Socket(loop.io()));
    const Timer limit = clock.after(timeout, [line, &late] {
      late = true;
      line->close();
    });
    auto identity = co_await call(*line, to, std::move(ways), role, late);
    if (!identity && late) {
      Error error = deadline_exceeded("the other side did not answer the hello in time");
      if (!to.is_unix() && !options.tls) {
        error = std::move(error).with_hint("a cluster over several hosts answers in TLS only: pass --ca-fingerprint");
      }
      on_connected(fail(std::move(error)));
    } else if (!identity) {
      on_connected(fail(identity.error()));
    } else {
      on_connected(finish(*line, *identity, role));
    }
    co_return Result<void>();
  }

  // Connects to the first address that accepts, and greets its listener.
  Task<PeerIdentity> call(Line& line, const Endpoint& to, Ways ways, Role role, const bool& late) {
    if (ways.empty()) {
      SHOAL_CO_TRY(auto found, co_await looked_up(to));
      SHOAL_CO_TRY(ways, allowed(to, std::move(found)));
    }
    Result<void> connected;
    for (const Address& way : ways) {
      if (late) co_return fail(cancelled("connect: the connection was not made in time"));
      Fd fd(socket(way.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!fd) co_return fail(from_errno(errno, "socket"));
      line.socket = Socket(loop.io(), asio::generic::stream_protocol(way.family(), 0), fd.release());
      connected = co_await connect(line, way);
      if (connected) break;
    }
    SHOAL_CO_OK(connected);
    if (!to.is_unix() && options.tls) SHOAL_CO_OK(co_await begin_tls(line, options.tls, TlsSession::Side::kCalls));
    auto greeted = co_await greet_listener(line, token, options.versions, role, random);
    co_return greeted;
  }

  Task<void> connect(Line& line, const Address& address) {
    const asio::generic::stream_protocol::endpoint endpoint(address.get(), address.length);
    // A unix listener with a full backlog refuses at once, where TCP would wait. Retries until the caller's timeout closes the socket.
    for (Duration pause = kFirstConnectPause; true; pause = std::min(2 * pause, kLongestConnectPause)) {
      const auto [error] = co_await line.socket.async_connect(endpoint, kTuple);
      if (!error) break;
      if (error != asio::error::no_buffer_space && error != asio::error::try_again) co_return fail(from_asio(error, "connect"));
      SHOAL_CO_OK(co_await sleep(clock, pause));
      if (!line.socket.is_open()) co_return fail(unavailable("connect: the listener's backlog is full"));
    }
    co_return Result<void>();
  }

  // Returns the addresses of a name in the order to try. A thread of Asio's waits for the name server, not this loop.
  Task<Ways> looked_up(const Endpoint& to) {
    asio::ip::tcp::resolver resolver(loop.io());
    const auto [error, found] = co_await resolver.async_resolve(to.host, std::to_string(to.port), kTuple);
    if (error) co_return fail(not_found("host '" + to.host + "': " + error.message()));
    Ways ways;
    for (const auto& entry : found) {
      const asio::ip::tcp::endpoint at = entry.endpoint();
      Address& way = ways.emplace_back();
      std::memcpy(&way.storage, at.data(), at.size());
      way.length = static_cast<socklen_t>(at.size());
    }
    co_return ways;
  }

  // Returns the endpoint to use from this host.
  Endpoint way_to(const Endpoint& to) const {
    if (to.is_unix()) return to;
    return to.is_both() && to.host == options.host ? to.on_its_host() : to.from_elsewhere();
  }

  // Without TLS, removes addresses of other hosts: no clear-text TCP connection leaves this host.
  Result<Ways> allowed(const Endpoint& to, Ways ways) const {
    if (to.is_unix() || options.tls) return ways;
    std::erase_if(ways, [](const Address& a) { return !a.is_loopback(); });
    if (!ways.empty()) return ways;
    return fail(invalid_argument(to.to_string() + " is on another host, and nothing is sent in clear text between hosts")
                    .with_reason("TlsRequired")
                    .with_hint("pass --ca-fingerprint (or SHOAL_CA_FINGERPRINT) as `shoal start --head` printed it"));
  }

  Loop& loop;
  Clock& clock;
  Random& random;
  const Token token;
  const SocketOptions options;
  const std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();  // shared with connections, which may outlive the network
  TaskGroup tasks;
};

namespace {

class SocketListener final : public Listener {
 public:
  using Room = std::function<Duration()>;  // returns the next caller's wait
  using OnSocket = std::function<void(Fd)>;

  SocketListener(Loop& loop, Clock& clock, Fd fd, Endpoint endpoint, std::shared_ptr<Door> door, Room room, OnSocket on_socket)
      : loop_(loop),
        state_(std::make_shared<State>(loop, clock, std::move(fd), std::move(room), std::move(on_socket))),
        door_(std::move(door)),
        endpoint_(std::move(endpoint)) {
    loop_.track(state_->descriptor.native_handle());
    door_->goes_on = [state = state_.get()] { state->go_on(); };
    state_->wait();
  }
  ~SocketListener() override {
    loop_.untrack(state_->descriptor.native_handle());
    std::error_code ignored;
    state_->descriptor.close(ignored);
    state_->again = {};
    door_->close();  // also ends the hellos under way
  }
  const Endpoint& endpoint() const override { return endpoint_; }

 private:
  struct State : std::enable_shared_from_this<State> {
    State(Loop& loop, Clock& clock, Fd fd, Room room, OnSocket on_socket)
        : clock(clock), descriptor(loop.io(), fd.release()), room(std::move(room)), on_socket(std::move(on_socket)) {}

    void wait() {
      descriptor.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
        if (!error) self->accept();
      });
    }

    void accept() {
      while (descriptor.is_open()) {
        if (const Duration pause = room(); pause > Duration::zero()) {  // the caller stays in the backlog
          full = true;
          again = clock.after(pause, [self = shared_from_this()] { self->go_on(); });
          return;
        }
        Fd fd(accept4(descriptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) {
          on_socket(std::move(fd));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
          return wait();
        } else if (errno != EINTR && errno != ECONNABORTED) {
          // Out of descriptors or memory: the caller stays in the backlog. Without a pause the descriptor would be readable again at once.
          again = clock.after(kAcceptPause, [self = shared_from_this()] { self->accept(); });
          return;
        }
      }
    }

    void go_on() {
      if (std::exchange(full, false)) accept();
    }

    Clock& clock;
    asio::posix::stream_descriptor descriptor;
    Room room;
    OnSocket on_socket;
    bool full = false;  // too many hellos under way
    Timer again;
  };
  Loop& loop_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Door> door_;
  Endpoint endpoint_;
};

// A unix socket for this host and TCP for other hosts.
class TwoListeners final : public Listener {
 public:
  TwoListeners(std::unique_ptr<Listener> here, std::unique_ptr<Listener> elsewhere)
      : here_(std::move(here)), elsewhere_(std::move(elsewhere)), endpoint_(elsewhere_->endpoint()) {
    endpoint_.unix_name = here_->endpoint().unix_name;
  }
  const Endpoint& endpoint() const override { return endpoint_; }

 private:
  const std::unique_ptr<Listener> here_, elsewhere_;
  Endpoint endpoint_;
};

}  // namespace

SocketNetwork::SocketNetwork(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options)
    : impl_(std::make_unique<Impl>(loop, clock, random, token, options)) {}

SocketNetwork::~SocketNetwork() = default;

const Traffic& SocketNetwork::traffic() const { return *impl_->traffic; }

void SocketNetwork::stop(std::function<void()> drained) { impl_->tasks.stop(std::move(drained)); }

Result<std::unique_ptr<Listener>> SocketNetwork::listen(const Endpoint& endpoint, Accepted accepted) {
  if (endpoint.is_both()) {
    SHOAL_TRY(auto here, listen(endpoint.on_its_host(), accepted));
    SHOAL_TRY(auto elsewhere, listen(endpoint.from_elsewhere(), std::move(accepted)));
    return std::make_unique<TwoListeners>(std::move(here), std::move(elsewhere));
  }
  SHOAL_TRY(const Ways ways, resolve(endpoint));
  const auto reached = std::find_if(ways.begin(), ways.end(), [](const Address& a) { return !a.is_loopback(); });
  const Address address = impl_->options.tls && reached != ways.end() ? *reached : ways.front();
  if (!endpoint.is_unix() && impl_->options.tls && address.is_loopback() && !is_loopback(endpoint.host)) {
    return fail(invalid_argument("this host resolves " + endpoint.host + " to a loopback address, which no other host reaches (127.x.x.x)")
                    .with_reason("Unreachable")
                    .with_hint("name an address at which other hosts reach this one, or correct " + endpoint.host + " in /etc/hosts"));
  }
  if (!endpoint.is_unix() && !address.is_loopback() && !(impl_->options.tls && impl_->options.tls->listens())) {
    return fail(invalid_argument("no process may listen on " + endpoint.to_string() + " in clear text: it is not a loopback address")
                    .with_reason("TlsRequired")
                    .with_hint("shoal start --head --host ADDRESS makes a cluster with certificates"));
  }
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail(from_errno(errno, "socket"));
  const int on = 1;
  if (!endpoint.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.get(), address.length) != 0) return fail(from_errno(errno, "listen on " + endpoint.to_string()));
  if (::listen(fd.get(), 512) != 0) return fail(from_errno(errno, "listen on " + endpoint.to_string()));
  Endpoint actual = endpoint;
  if (!endpoint.is_unix()) {
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    actual.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  }
  auto* impl = impl_.get();
  auto door = std::make_shared<Door>();
  door->accepted = std::move(accepted);
  const auto room = [impl, door] {
    return door->wait_for_room(impl->options.max_hellos, impl->clock.now(), impl->options.hello_timeout / kPatienceOfTimeout);
  };
  return std::make_unique<SocketListener>(impl->loop, impl->clock, std::move(fd), std::move(actual), door, room,
                                          [impl, door](Fd socket) { impl->arrived(door, std::move(socket)); });
}

void SocketNetwork::connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) {
  const Endpoint to = impl_->way_to(endpoint);
  Ways ways;
  if (auto known = resolve(to, AI_NUMERICHOST); known) {  // otherwise a name
    auto allowed = impl_->allowed(to, *std::move(known));
    if (!allowed) return connected(fail(std::move(allowed).error()));
    ways = *std::move(allowed);
  } else if (to.is_unix()) {
    return connected(fail(std::move(known).error()));
  }
  auto named = [connected = std::move(connected), to = endpoint.to_string()](Result<std::unique_ptr<Connection>> result) {
    if (!result) return connected(fail(Error(result.error()).in("connecting to " + to)));
    connected(std::move(result));
  };
  impl_->tasks.spawn("connect", impl_->called(to, std::move(ways), role, timeout, std::move(named)));
}

}  // namespace shoal::runtime
