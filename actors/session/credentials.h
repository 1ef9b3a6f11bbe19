// What a process needs to be heard in its cluster, and to hear others.
#pragma once

#include <memory>
#include <string>

#include "runtime/net/endpoint.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls.h"

namespace shoal::actors {

struct Credentials {
  runtime::Token token;
  std::shared_ptr<const runtime::Tls> tls;  // of a cluster over several hosts; none: it lives on this one
  std::string host;                         // where others reach this host; empty: nothing on it listens to them

  // Where a process of this name listens.
  runtime::Endpoint endpoint(std::string name) const { return {std::move(name), tls ? host : "", 0}; }
};

}  // namespace shoal::actors
