// Chooses a network for messages among ranks on several hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

struct MessageNetwork {
  int rank = 0;
  int world_size = 1;
  // Returns what each rank has passed, in the order of ranks. Every rank makes the same calls. The bytes are trusted.
  std::function<Result<std::vector<std::string>>(const std::string& own)> exchange;
  std::string kind;       // "ucx"; empty: the first one that every rank has
  std::string interface;  // network interface, as "eth0"; empty: the network's choice
};

// Every rank makes the call, which waits for the others. Errors: InvalidArgument for an unknown kind; Unavailable if a rank does not have
// it.
Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network);

}  // namespace shoal::runtime
