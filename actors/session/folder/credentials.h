// The secrets and the address that a process needs for communication in its cluster.
#pragma once

#include <memory>
#include <string>

#include "runtime/net/endpoint.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls/tls.h"

namespace shoal::actors {

struct Credentials {
  runtime::Token token;
  std::shared_ptr<const runtime::Tls> tls;  // null in a cluster that lives on one host
  // This host's address for other hosts. Empty: no process of this host listens to other hosts.
  std::string host;
  // The network interface that other hosts reach, by name or address, where the user has chosen one.
  std::string interface = {};
  bool data_tls = false;  // ranks on several hosts exchange their data in TLS only

  // The endpoint on which a process with this name listens.
  runtime::Endpoint endpoint(std::string name) const { return {std::move(name), tls ? host : "", 0}; }
};

}  // namespace shoal::actors
