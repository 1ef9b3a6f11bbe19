#include "runtime/net/socket/socket_network.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/loop/loop.h"
#include "runtime/loop/task_group.h"
#include "runtime/net/ring/ring_connection.h"
#include "runtime/net/socket/address.h"
#include "runtime/net/socket/greeting.h"
#include "runtime/net/socket/socket_connection.h"
#include "runtime/net/socket/socket_listener.h"

namespace shoal::runtime {
namespace {

constexpr Duration kFirstConnectPause = std::chrono::milliseconds(5), kLongestConnectPause = std::chrono::milliseconds(200);
constexpr std::size_t kHelloDescriptors = 16;  // part of the process's descriptors for hellos under way
constexpr int kBacklog = 2048;

// A link that loses large packets still passes a TCP handshake, whose packets are small, but no TLS handshake.
std::string large_packets_are_lost(const std::string& host) {
  return "the connection was made, and the TLS handshake got no answer: either that process is stopped, or a link on the way loses large "
         "packets (a tunnel with a smaller MTU). Then `ping -M do -s 1400 " +
         host + "` gets no answer either; give the interfaces of both hosts a smaller MTU (ip link set dev NAME mtu 1300)";
}

}  // namespace

struct SocketNetwork::Impl {
  Impl(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options)
      : loop(loop), clock(clock), random(random), token(token), options(options), tasks(loop, [](const std::string&, const Error&) {
          // A failed hello: connect() reports it to its caller, and a listener ignores it.
        }) {}

  Socket make_socket(Fd fd) { return Socket(loop.io(), asio::generic::stream_protocol(bound_address(fd.get()).family(), 0), fd.release()); }

  std::unique_ptr<Connection> finish(Line& line, PeerIdentity identity, std::unique_ptr<Budget::Account> account,
                                     std::optional<Role> calls_as) {
    Fd fd(line.socket.release());
    const int on = 1;
    if (!identity.local) (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Uses uses{clock, budget, traffic, std::move(account)};
    if (line.tls) return make_tls_connection(loop, std::move(fd), std::move(*line.tls), identity, options, std::move(uses));
    if (!identity.local || calls_as.value_or(identity.role) != Role::kWorker || options.rings.bytes == 0) {
      return make_socket_connection(loop, std::move(fd), identity, options, std::move(uses));
    }
    uses.traffic = std::make_shared<Traffic>();  // the socket has its own, because the ring's internal frames are not counted
    auto connection = make_socket_connection(loop, std::move(fd), identity, options, std::move(uses));
    return make_ring_connection(loop, std::move(connection), calls_as.has_value(), options.rings, options.max_queued_bytes, traffic);
  }

  void arrived(const std::shared_ptr<Door>& door, Fd fd) {
    auto line = std::make_shared<Line>(make_socket(std::move(fd)));
    door->greeting.emplace(clock.now() + options.hello_patience, line);
    tasks.spawn("accept", accepted(std::move(line), door));
  }

  Task<void> accepted(std::shared_ptr<Line> line, std::shared_ptr<Door> door) {
    const Timer limit = clock.after(options.hello_timeout, [line] { line->close(); });
    const auto tls = bound_address(line->socket.native_handle()).family() == AF_UNIX ? nullptr : options.tls;
    std::unique_ptr<Budget::Account> account;
    const Admit admit = [&](const std::string& peer) -> Result<void> {
      SHOAL_TRY(account, budget->admit(peer));
      return {};
    };
    const std::function<void()> stepped = [&] { door->stepped(*line, clock.now() + options.step_patience); };
    const auto greeted = co_await greet_caller(*line, tls, token, options.versions, random, admit, stepped);
    door->ended(*line);
    SHOAL_CO_TRY(const PeerIdentity identity, greeted);
    if (!door->accepted || !line->socket.is_open()) co_return Result<void>();  // no listener, or closed to make room
    const auto accept = door->accepted;                                        // a copy: the call may destroy the listener
    accept(finish(*line, identity, std::move(account), {}));
    co_return Result<void>();
  }

  Task<void> called(Endpoint to, Addresses addresses, Role role, Duration timeout, Connected on_connected) {
    bool late = false, reached = false;
    const auto line = std::make_shared<Line>(Socket(loop.io()));
    const Timer limit = clock.after(timeout, [line, &late] {
      late = true;
      line->close();
    });
    auto identity = co_await call(*line, to, std::move(addresses), role, late, reached);
    if (!identity && late) {
      Error error = deadline_exceeded("the other side did not answer the hello in time");
      if (!to.is_unix() && !options.tls) {
        error = std::move(error).with_hint("a cluster over several hosts answers in TLS only: pass --ca-fingerprint");
      } else if (!to.is_unix() && reached) {
        error = std::move(error).with_hint(large_packets_are_lost(to.host));
      }
      on_connected(fail(std::move(error)));
    } else if (!identity) {
      on_connected(fail(identity.error()));
    } else {
      on_connected(finish(*line, *identity, budget->outgoing(), role));
    }
    co_return Result<void>();
  }

  // Connects to the first address that accepts, and greets its listener. Sets `reached` once one has accepted.
  Task<PeerIdentity> call(Line& line, const Endpoint& to, Addresses addresses, Role role, const bool& late, bool& reached) {
    if (addresses.empty()) {
      SHOAL_CO_TRY(auto found, co_await resolved(to));
      SHOAL_CO_TRY(addresses, allowed(to, std::move(found)));
    }
    Result<void> connected;
    for (const Address& way : addresses) {
      if (late) co_return fail(cancelled("connect: the connection was not made in time"));
      Fd fd(socket(way.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!fd) co_return fail(from_errno(errno, "socket"));
      line.socket = Socket(loop.io(), asio::generic::stream_protocol(way.family(), 0), fd.release());
      connected = co_await connect(line, way);
      if (connected) break;
    }
    SHOAL_CO_OK(connected);
    reached = true;
    const auto tls = to.is_unix() ? nullptr : options.tls;
    auto greeted = co_await greet_listener(line, tls, token, options.versions, role, random);
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
  Task<Addresses> resolved(const Endpoint& to) {
    asio::ip::tcp::resolver resolver(loop.io());
    const auto [error, found] = co_await resolver.async_resolve(to.host, std::to_string(to.port), kTuple);
    if (error) co_return fail(not_found("host '" + to.host + "': " + error.message()));
    Addresses addresses;
    for (const auto& entry : found) {
      const asio::ip::tcp::endpoint at = entry.endpoint();
      Address& way = addresses.emplace_back();
      std::memcpy(&way.storage, at.data(), at.size());
      way.length = static_cast<socklen_t>(at.size());
    }
    co_return addresses;
  }

  // Returns the endpoint to use from this host.
  Endpoint way_to(const Endpoint& to) const {
    if (to.is_unix()) return to;
    return to.is_both() && to.host == options.host ? to.on_its_host() : to.from_elsewhere();
  }

  // Without TLS, removes addresses of other hosts: no clear-text TCP connection leaves this host.
  Result<Addresses> allowed(const Endpoint& to, Addresses addresses) const {
    if (to.is_unix() || options.tls) return addresses;
    std::erase_if(addresses, [](const Address& a) { return !a.is_loopback(); });
    if (!addresses.empty()) return addresses;
    return fail(invalid_argument(to.to_string() + " is on another host, and nothing is sent in clear text between hosts")
                    .with_reason("TlsRequired")
                    .with_hint("pass --ca-fingerprint (or SHOAL_CA_FINGERPRINT) as `shoal start --head` printed it"));
  }

  Loop& loop;
  Clock& clock;
  Random& random;
  const Token token;
  const SocketOptions options;
  // Both are shared with connections, which may outlive the network.
  const std::shared_ptr<Budget> budget = std::make_shared<Budget>(clock, options.budget);
  const std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
  TaskGroup tasks;
};

SocketNetwork::SocketNetwork(Loop& loop, Clock& clock, Random& random, const Token& token, SocketOptions options)
    : impl_(std::make_unique<Impl>(loop, clock, random, token, options)) {}

SocketNetwork::~SocketNetwork() = default;

const Traffic& SocketNetwork::traffic() const { return *impl_->traffic; }

void SocketNetwork::stop(std::function<void()> drained) { impl_->tasks.stop(std::move(drained)); }

Result<std::unique_ptr<Listener>> SocketNetwork::listen(const Endpoint& endpoint, Accepted accepted) {
  if (endpoint.is_both()) {
    SHOAL_TRY(auto local, listen(endpoint.on_its_host(), accepted));
    SHOAL_TRY(auto elsewhere, listen(endpoint.from_elsewhere(), std::move(accepted)));
    return make_two_listeners(std::move(local), std::move(elsewhere));
  }
  SHOAL_TRY(const Addresses addresses, resolve(endpoint));
  const auto reached = std::find_if(addresses.begin(), addresses.end(), [](const Address& a) { return !a.is_loopback(); });
  const Address address = impl_->options.tls && reached != addresses.end() ? *reached : addresses.front();
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
  if (::listen(fd.get(), kBacklog) != 0) return fail(from_errno(errno, "listen on " + endpoint.to_string()));
  Endpoint actual = endpoint;
  if (!endpoint.is_unix()) actual.port = bound_address(fd.get()).port();
  auto* impl = impl_.get();
  auto door = std::make_shared<Door>();
  door->accepted = std::move(accepted);
  const auto room = [impl, door] {
    const std::size_t most = std::clamp<std::size_t>(descriptor_limit() / kHelloDescriptors, 1, impl->options.max_hellos);
    return door->wait_for_room(most, impl->clock.now(), impl->options.hello_patience);
  };
  return make_socket_listener(impl->loop, impl->clock, std::move(fd), std::move(actual), door, room,
                              [impl, door](Fd socket) { impl->arrived(door, std::move(socket)); });
}

void SocketNetwork::connect(const Endpoint& endpoint, Role role, Duration timeout, Connected connected) {
  const Endpoint to = impl_->way_to(endpoint);
  Addresses addresses;
  if (auto known = resolve(to, AI_NUMERICHOST); known) {  // otherwise `to` has a name
    auto allowed = impl_->allowed(to, *std::move(known));
    if (!allowed) return connected(fail(std::move(allowed).error()));
    addresses = *std::move(allowed);
  } else if (to.is_unix()) {
    return connected(fail(std::move(known).error()));
  }
  auto named = [connected = std::move(connected), to = endpoint.to_string()](Result<std::unique_ptr<Connection>> result) {
    if (!result) return connected(fail(Error(result.error()).in("connecting to " + to)));
    connected(std::move(result));
  };
  impl_->tasks.spawn("connect", impl_->called(to, std::move(addresses), role, timeout, std::move(named)));
}

}  // namespace shoal::runtime
