#include "runtime/transport/tcp/connecting/rank_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <bit>
#include <charconv>
#include <memory>
#include <sstream>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr const char* kProtocol = std::endian::native == std::endian::little ? "shoal-data-1-le" : "shoal-data-1-be";

bool is_numeric(const std::string& host) {
  in6_addr unused;
  return inet_pton(AF_INET, host.c_str(), &unused) == 1 || inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

// The numeric address; empty for other families, and for addresses that mean nothing without their interface.
std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&six)) inet_ntop(AF_INET6, &six, text, sizeof text);
  }
  return text;
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

Result<std::string> address_of_interface(const std::string& name) {
  if (is_numeric(name)) return name;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return fail(from_errno(errno, "reading the interfaces"));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::string found, loopback, names;
  for (const auto* it = list; it != nullptr; it = it->ifa_next) {
    const std::string address = numeric(it->ifa_addr);
    if (address.empty()) continue;
    if (names.find(it->ifa_name) == std::string::npos) names += (names.empty() ? "" : ", ") + std::string(it->ifa_name);
    const bool four = it->ifa_addr->sa_family == AF_INET, loops = (it->ifa_flags & IFF_LOOPBACK) != 0;
    if (name.empty() ? (it->ifa_flags & IFF_UP) == 0 || loops : name != it->ifa_name) {
      if (loops && four) loopback = address;
      continue;
    }
    if (found.empty() || (four && found.find(':') != std::string::npos)) found = address;
  }
  if (found.empty() && name.empty()) found = loopback;
  if (!found.empty()) return found;
  return fail(invalid_argument(fmt::format("this host has no interface '{}' with an address", name))
                  .with_reason("NoInterface")
                  .with_hint("interfaces with addresses: " + names));
}

}  // namespace shoal::runtime
