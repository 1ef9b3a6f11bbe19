// Chooses a network for messages among ranks on several hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/net/tls/tls.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

struct MessageNetwork {
  int rank = 0;
  int world_size = 1;
  // Returns what each rank has passed, in the order of ranks. Every rank makes the same calls. The bytes are secret, and trusted.
  std::function<Result<std::vector<std::string>>(const std::string& own)> exchange;
  // "tcp"; "tls", TCP with encryption; or "ucx". Empty: UCX if every rank's host has RDMA and UCX, else TCP.
  std::string kind;
  // Network interfaces, as "eth0", or addresses: the first one that this host has is used. Without any, the network
  // chooses.
  std::vector<std::string> interfaces;
  std::shared_ptr<const Tls> tls;  // for "tls": the host's certificate
};

// Every rank makes the call, which waits for the others. Errors: InvalidArgument for an unknown kind, if the ranks' kinds differ, or for
// "tls" without a certificate; Unavailable/NoUcx if a rank's host has no UCX.
Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network);

}  // namespace shoal::runtime
