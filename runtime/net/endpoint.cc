#include "runtime/net/endpoint.h"

#include <charconv>

namespace shoal::runtime {

namespace {
constexpr std::string_view kUnixPrefix = "unix:@";
constexpr std::size_t kMaxName = 100;  // sun_path holds 108
}  // namespace

std::string Endpoint::to_string() const { return is_unix() ? std::string(kUnixPrefix) + unix_name : host + ":" + std::to_string(port); }

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::string quoted = "address '" + std::string(text) + "'";
  if (text.starts_with(kUnixPrefix)) {
    const auto name = text.substr(kUnixPrefix.size());
    if (name.empty() || name.size() > kMaxName) return fail(invalid_argument(quoted + ": the name has 1 to 100 characters"));
    return Endpoint::unix_at(std::string(name));
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return fail(invalid_argument(quoted + " is neither HOST:PORT nor unix:@NAME"));
  }
  std::uint16_t port = 0;
  const auto digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return fail(invalid_argument(quoted + ": the port is a number from 0 to 65535"));
  }
  return Endpoint::tcp(std::string(text.substr(0, colon)), port);
}

}  // namespace shoal::runtime
