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
  std::shared_ptr<const runtime::Tls> tls;  // for a cluster over several hosts; null: a single host
  std::string host;                         // this host's address for other hosts; empty: no process here listens to them

  // The endpoint on which a process of this name listens.
  runtime::Endpoint endpoint(std::string name) const { return {std::move(name), tls ? host : "", 0}; }
};

}  // namespace shoal::actors
