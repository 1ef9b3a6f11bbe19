// Where somebody listens: `unix:@NAME` (abstract: nothing in the file system), `HOST:PORT`, or both, `HOST:PORT/@NAME`: from other hosts
// at HOST:PORT, on HOST itself at the unix socket.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::runtime {

struct Endpoint {
  std::string unix_name;  // without the @; empty for TCP
  std::string host;
  std::uint16_t port = 0;  // 0: the kernel chooses (listen only)

  bool is_unix() const { return !unix_name.empty() && host.empty(); }
  bool is_both() const { return !unix_name.empty() && !host.empty(); }
  Endpoint on_its_host() const { return unix_at(unix_name); }  // of both
  Endpoint from_elsewhere() const { return tcp(host, port); }
  std::string to_string() const;
  bool operator==(const Endpoint&) const = default;

  static Endpoint unix_at(std::string name) { return {std::move(name), {}, 0}; }
  static Endpoint tcp(std::string host, std::uint16_t port) { return {{}, std::move(host), port}; }
};

// InvalidArgument names what is wrong. Abstract names have 1 to 100 characters.
Result<Endpoint> parse_endpoint(std::string_view text);
// Several ways to the same one, tried in turn: ENDPOINT[,ENDPOINT]
Result<std::vector<Endpoint>> parse_endpoints(std::string_view text);

bool is_loopback(std::string_view host);  // as an address or by its name, without asking anybody
// The address that this host has on its way to `host`, where others on that way reach it. NotFound, Unavailable when there is no way.
Result<std::string> own_address_towards(const std::string& host);

}  // namespace shoal::runtime
