// Memories of the node that one owner in this process has opened by name: each is given back when it is unmapped, or with the owner's
// leave. For what ranks of one host share without an actor (a Communicator).
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>

#include "actors/session/session.h"
#include "runtime/shm/memory.h"

namespace shoal::actors {

class NodeMemory : public std::enable_shared_from_this<NodeMemory> {
 public:
  // The session outlives it, or it is closed before.
  static std::shared_ptr<NodeMemory> of(Session& session) { return std::shared_ptr<NodeMemory>(new NodeMemory(session)); }

  // The memory of this name, zeroed by whoever asks first. With `member` not negative the node writes that member's death on the board at
  // its beginning. Not on the loop.
  Result<std::shared_ptr<runtime::Mapping>> open(const std::string& name, std::size_t bytes, int member);
  // The session is used no more. What is mapped stays so; the node takes it back with this process.
  void close();

 private:
  explicit NodeMemory(Session& session);
  void drop(const std::string& name);

  std::mutex mutex_;
  const pid_t pid_;  // a child that was forked gives nothing back
  Session* session_;
};

}  // namespace shoal::actors
