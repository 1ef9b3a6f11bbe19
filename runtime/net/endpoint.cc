#include "runtime/net/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "runtime/core/fd.h"

namespace shoal::runtime {

namespace {

constexpr std::string_view kUnixPrefix = "unix:@", kBesides = "/@";
constexpr std::size_t kMaxName = 100;  // sun_path holds 108
constexpr std::uint16_t kAnyPort = 9;  // the discard port; no packet is sent

Result<std::string> parse_name(const std::string& quoted, std::string_view name) {
  if (name.empty() || name.size() > kMaxName) return fail(invalid_argument(quoted + ": the name has 1 to 100 characters"));
  return std::string(name);
}

// Reads the host in front of the port. An IPv6 address gets the form that the kernel prints, so that equal ones have equal texts.
Result<std::string> parse_host(const std::string& quoted, std::string_view text) {
  const bool in_brackets = text.starts_with('[') && text.ends_with(']');
  if (!in_brackets && text.find_first_of(":[]") != std::string_view::npos) {
    return fail(invalid_argument(quoted + ": an IPv6 address stands in brackets").with_hint("write [ADDRESS]:PORT, such as [::1]:7460"));
  }
  if (!in_brackets) return std::string(text);
  std::string host(text.substr(1, text.size() - 2));
  if (host.find('%') != std::string::npos) return host;  // an address on a link, with the link's name
  in6_addr six{};
  char printed[INET6_ADDRSTRLEN] = {};
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return fail(invalid_argument(quoted + ": there is no IPv6 address in the brackets"));
  return std::string(inet_ntop(AF_INET6, &six, printed, sizeof printed));
}

}  // namespace

std::string Endpoint::to_string() const {
  if (is_unix()) return std::string(kUnixPrefix) + unix_name;
  const bool ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port) + (unix_name.empty() ? "" : std::string(kBesides) + unix_name);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::string quoted = "address '" + std::string(text) + "'";
  Endpoint out;
  if (text.starts_with(kUnixPrefix)) {
    SHOAL_TRY(out.unix_name, parse_name(quoted, text.substr(kUnixPrefix.size())));
    return out;
  }
  if (const auto besides = text.find(kBesides); besides != std::string_view::npos) {
    SHOAL_TRY(out.unix_name, parse_name(quoted, text.substr(besides + kBesides.size())));
    text = text.substr(0, besides);
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return fail(invalid_argument(quoted + " is neither HOST:PORT nor unix:@NAME"));
  }
  const auto digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return fail(invalid_argument(quoted + ": the port is a number from 0 to 65535"));
  }
  SHOAL_TRY(out.host, parse_host(quoted, text.substr(0, colon)));
  return out;
}

bool is_loopback(std::string_view host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// A connected datagram socket has both addresses, although no packet was sent.
Result<std::string> own_address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int e = getaddrinfo(host.c_str(), std::to_string(kAnyPort).c_str(), &hints, &found); e != 0) {
    return fail(not_found("host '" + host + "': " + gai_strerror(e)));
  }
  const Fd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int connected = fd ? connect(fd.get(), found->ai_addr, found->ai_addrlen) : -1;
  const int error = errno;
  freeaddrinfo(found);
  if (connected != 0) return fail(from_errno(error, "the route to host '" + host + "'"));
  sockaddr_storage self{};
  socklen_t length = sizeof self;
  char text[NI_MAXHOST] = {};
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&self), &length);
  if (getnameinfo(reinterpret_cast<sockaddr*>(&self), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    return fail(unavailable("this host's own address on the route to '" + host + "' cannot be determined"));
  }
  return std::string(text);
}

Result<std::vector<Endpoint>> parse_endpoints(std::string_view text) {
  std::vector<Endpoint> out;
  for (std::size_t from = 0; from <= text.size();) {
    const auto end = std::min(text.find(',', from), text.size());
    SHOAL_TRY(auto endpoint, parse_endpoint(text.substr(from, end - from)));
    out.push_back(std::move(endpoint));
    from = end + 1;
  }
  return out;
}

}  // namespace shoal::runtime
