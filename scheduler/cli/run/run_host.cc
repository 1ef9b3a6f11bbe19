#include "scheduler/cli/run/run_host.h"

#include <netdb.h>

#include "scheduler/cli/run/first_host.h"
#include "scheduler/cli/run/further_host.h"

namespace shoal::scheduler::cli {

std::vector<std::string> addresses_of(const std::string& name) {
  std::vector<std::string> out;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (name.empty() || getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) out.emplace_back(text);
  }
  freeaddrinfo(found);
  return out;
}

int run_host(const RunHost& host) {
  if (!host.allocation.joins) host.folder.forget_earlier_run(host.allocation.node_rank);
  return host.allocation.leads() ? run_first_host(host) : run_further_host(host);
}

}  // namespace shoal::scheduler::cli
