// Socket addresses, and the ways to an endpoint.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/net/endpoint.h"

namespace shoal::runtime {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  std::uint16_t port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const {
    if (family() == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
    return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  }
};

using Addresses = std::vector<Address>;  // addresses of one endpoint, in the order to try

// Blocks on /etc/hosts and name servers. A loop uses an asynchronous resolver instead, or passes AI_NUMERICHOST.
Result<Addresses> resolve(const Endpoint& endpoint, int flags = 0);

// The address to which a socket is bound.
Address bound_address(int fd);

// The address of the host at the other end of a TCP connection, as text without a port; "" if it is gone.
std::string peer_address(int fd);

}  // namespace shoal::runtime
