#include "runtime/net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <vector>

#include "runtime/net/endpoint.h"

namespace shoal::runtime {

namespace {

struct Candidate {
  Interface interface;
  bool ipv4 = false, up = false, loops = false;
};

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

// The address as the kernel's list has it; "" for a text that is none.
std::string canonical(const std::string& text) {
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  six.sin6_family = AF_INET6;
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) return numeric(reinterpret_cast<const sockaddr*>(&four));
  if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) return numeric(reinterpret_cast<const sockaddr*>(&six));
  return "";
}

Result<std::vector<Candidate>> candidates() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return fail(from_errno(errno, "reading the interfaces"));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, freeifaddrs);
  std::vector<Candidate> out;
  for (const auto* it = list; it != nullptr; it = it->ifa_next) {
    Candidate c{{it->ifa_name, numeric(it->ifa_addr)}};
    if (c.interface.address.empty()) continue;
    c.ipv4 = it->ifa_addr->sa_family == AF_INET;
    c.up = (it->ifa_flags & IFF_UP) != 0;
    c.loops = (it->ifa_flags & IFF_LOOPBACK) != 0;
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace

Result<Interface> find_interface(const std::string& name_or_address) {
  SHOAL_TRY(const auto all, candidates());
  const std::string address = canonical(name_or_address);
  const auto fits = [&](const Candidate& c) {
    if (name_or_address.empty()) return c.up && !c.loops;
    if (address.empty()) return c.interface.name == name_or_address;
    return c.interface.address == address || (c.loops && c.ipv4 && is_loopback(address));  // all of 127.0.0.0/8 is loopback
  };
  const Candidate* found = nullptr;
  for (const auto& c : all) {
    if (fits(c) && (found == nullptr || (c.ipv4 && !found->ipv4))) found = &c;
  }
  for (const auto& c : all) {
    if (found == nullptr && name_or_address.empty() && c.loops && c.ipv4) found = &c;
  }
  if (found != nullptr) return Interface{found->interface.name, address.empty() ? found->interface.address : address};
  std::string those;
  for (const auto& c : all) those += (those.empty() ? "" : ", ") + c.interface.name + " (" + c.interface.address + ")";
  return fail(invalid_argument(address.empty() ? "this host has no interface '" + name_or_address + "' with an address"
                                               : "no interface of this host has the address " + address)
                  .with_reason("NoInterface")
                  .with_hint("interfaces with addresses: " + those));
}

}  // namespace shoal::runtime
