// Opens the network of a process, with the options that its credentials demand.
#pragma once

#include <memory>

#include "actors/session/credentials.h"
#include "runtime/net/socket/socket_network.h"

namespace shoal::actors {

inline runtime::SocketOptions socket_options(const Credentials& credentials) {
  runtime::SocketOptions out;
  out.tls = credentials.tls;
  out.host = credentials.host;
  return out;
}

}  // namespace shoal::actors
