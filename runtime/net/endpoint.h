// Address of a listener: `unix:@NAME` (abstract, not in the file system), `HOST:PORT`, or both as `HOST:PORT/@NAME`. Other hosts use
// HOST:PORT, processes on HOST the unix socket. An IPv6 address as HOST stands in brackets: `[::1]:7460`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::runtime {

struct Endpoint {
  std::string unix_name;   // without the @; empty for TCP
  std::string host;        // a name or an address; an IPv6 address without its brackets
  std::uint16_t port = 0;  // 0: chosen by the kernel (listen only)

  bool is_unix() const { return !unix_name.empty() && host.empty(); }
  bool is_both() const { return !unix_name.empty() && !host.empty(); }
  Endpoint on_its_host() const { return unix_at(unix_name); }  // only if is_both()
  Endpoint from_elsewhere() const { return tcp(host, port); }
  std::string to_string() const;
  bool operator==(const Endpoint&) const = default;

  static Endpoint unix_at(std::string name) { return {std::move(name), {}, 0}; }
  static Endpoint tcp(std::string host, std::uint16_t port) { return {{}, std::move(host), port}; }
};

// Returns InvalidArgument, with the mistake, if the text is no endpoint. Abstract names have 1 to 100 characters.
Result<Endpoint> parse_endpoint(std::string_view text);
// Alternative addresses, tried in turn: ENDPOINT[,ENDPOINT]
Result<std::vector<Endpoint>> parse_endpoints(std::string_view text);

bool is_loopback(std::string_view host);  // by address or by the name localhost, without a lookup
// Returns this host's address on its route to `host`, at which hosts on that route reach it. Returns NotFound for an unknown host,
// Unavailable without a route.
Result<std::string> own_address_towards(const std::string& host);

}  // namespace shoal::runtime
