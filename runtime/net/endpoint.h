// Where somebody listens: `unix:@NAME` (abstract: nothing in the file system) or `HOST:PORT`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace shoal::runtime {

struct Endpoint {
  std::string unix_name;  // without the @; empty for TCP
  std::string host;
  std::uint16_t port = 0;  // 0: the kernel chooses (listen only)

  bool is_unix() const { return !unix_name.empty(); }
  std::string to_string() const;
  bool operator==(const Endpoint&) const = default;

  static Endpoint unix_at(std::string name) { return {std::move(name), {}, 0}; }
  static Endpoint tcp(std::string host, std::uint16_t port) { return {{}, std::move(host), port}; }
};

// InvalidArgument names what is wrong. Abstract names have 1 to 100 characters.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace shoal::runtime
