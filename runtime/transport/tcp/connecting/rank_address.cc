#include "runtime/transport/tcp/connecting/rank_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <bit>
#include <charconv>
#include <sstream>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr const char* kProtocol = std::endian::native == std::endian::little ? "shoal-data-1-le" : "shoal-data-1-be";

bool is_numeric(const std::string& host) {
  in6_addr unused;
  return inet_pton(AF_INET, host.c_str(), &unused) == 1 || inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

}  // namespace

std::string RankAddress::text() const { return fmt::format("{} {} {} {}", kProtocol, host, port, token.hex()); }

Result<RankAddress> RankAddress::parse(const std::string& text, int rank) {
  std::istringstream in(text.substr(0, 256));
  std::string protocol, host, port, token, more;
  in >> protocol >> host >> port >> token;
  if (protocol != kProtocol) {
    return fail(invalid_argument(fmt::format("rank {} has another byte order, or another version of Shoal", rank))
                    .with_hint("run the same version on hosts of one kind"));
  }
  RankAddress out;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  auto parsed = Token::parse(token);
  if (!is_numeric(host) || error != std::errc() || end != port.data() + port.size() || out.port == 0 || !parsed || in >> more)
    return fail(invalid_argument(fmt::format("rank {} has sent a malformed address", rank)));
  out.host = host;
  out.token = *parsed;
  return out;
}

}  // namespace shoal::runtime
