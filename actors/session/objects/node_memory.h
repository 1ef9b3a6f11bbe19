// Named shared memories of the node that this process has opened, such as those of a Communicator among ranks of one host. A memory is
// given back to the node when it is unmapped. One that is unmapped after the session's end goes back when this process ends.
#pragma once

#include <memory>
#include <string>

#include "actors/session/link/node_client.h"
#include "actors/session/objects/outlived.h"
#include "runtime/shm/memory.h"

namespace shoal::actors {

class NodeMemory : public std::enable_shared_from_this<NodeMemory> {
 public:
  explicit NodeMemory(NodeClient& node) : node_(node) {}

  // The memory of this name, zeroed for the first process. With `member` >= 0 the node records that member's death on the membership page
  // at the memory's start. Not on the loop.
  Result<std::shared_ptr<runtime::Mapping>> open(const std::string& name, std::size_t bytes, int member);
  // To be called before the node's client ends. Waits for calls of the client that are under way. Memories stay mapped.
  void close() { node_.end(); }

 private:
  Outlived<NodeClient> node_;  // a forked child gives nothing back
};

}  // namespace shoal::actors
