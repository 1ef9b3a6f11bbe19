#include "runtime/net/socket/address.h"

#include <netdb.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

namespace shoal::runtime {

Result<Addresses> resolve(const Endpoint& endpoint, int flags) {
  Address out;
  if (endpoint.is_unix()) {
    auto* un = reinterpret_cast<sockaddr_un*>(&out.storage);
    un->sun_family = AF_UNIX;
    if (endpoint.unix_name.size() + 1 > sizeof un->sun_path) return fail(invalid_argument(endpoint.to_string() + ": the name is too long"));
    std::memcpy(un->sun_path + 1, endpoint.unix_name.data(), endpoint.unix_name.size());  // leading 0: abstract
    out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + endpoint.unix_name.size());
    return Addresses{out};
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  if (const int e = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found); e != 0) {
    return fail(not_found("host '" + endpoint.host + "': " + gai_strerror(e)));
  }
  Addresses addresses;
  for (const auto* a = found; a != nullptr; a = a->ai_next) {
    std::memcpy(&out.storage, a->ai_addr, a->ai_addrlen);
    out.length = a->ai_addrlen;
    addresses.push_back(out);
  }
  freeaddrinfo(found);
  return addresses;
}

Address bound_address(int fd) {
  Address out;
  out.length = sizeof out.storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.length);
  return out;
}

std::string peer_address(int fd) {
  Address other;
  other.length = sizeof other.storage;
  char host[NI_MAXHOST];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&other.storage), &other.length) != 0) return "";
  if (getnameinfo(other.get(), other.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

}  // namespace shoal::runtime
