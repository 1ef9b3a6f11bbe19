// This host's network interfaces, for the choice of the one that other hosts reach.
#pragma once

#include <string>

#include "runtime/core/result.h"

namespace shoal::runtime {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
};

// The interface of this host with this name or this numeric address. By name, its first IPv4 address counts, else one of IPv6. An empty
// text chooses the first interface that is up and not the loopback one, else the loopback one. InvalidArgument/NoInterface, with those that
// exist, if there is none.
Result<Interface> find_interface(const std::string& name_or_address);

}  // namespace shoal::runtime
