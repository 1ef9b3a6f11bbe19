// The hello on a new socket: both sides learn each other's identity, through TLS between hosts.
#pragma once

#include <asio/experimental/as_tuple.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/loop/random.h"
#include "runtime/loop/task.h"
#include "runtime/net/connection.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

inline constexpr auto kTuple = asio::experimental::as_tuple(asio::use_awaitable);
using Socket = asio::generic::stream_protocol::socket;

Error from_asio(std::error_code error, std::string_view what);

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

// Decides about a caller that has the token; an error goes to the caller as TooManyConnections. `peer`: a process of this host, or another
// host, as text.
using Admit = std::function<Result<void>(const std::string& peer)>;

// Each of these two functions returns an error if the line is closed meanwhile. `tls`: null for clear text.
// `stepped` is called after each step of the caller that another step has to follow: the beginning of TLS, and its end.
Task<PeerIdentity> greet_caller(Line& line, std::shared_ptr<const Tls> tls, const Token& token, VersionRange versions, Random& random,
                                Admit admit, std::function<void()> stepped);
Task<PeerIdentity> greet_listener(Line& line, std::shared_ptr<const Tls> tls, const Token& token, VersionRange versions, Role role,
                                  Random& random);

}  // namespace shoal::runtime
