// Named shared memories of the node that one owner in this process has opened, such as a Communicator among ranks of one host. A memory is
// given back to the node when it is unmapped, or when this process ends.
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
  // The session outlives the result, or close() is called first.
  static std::shared_ptr<NodeMemory> of(Session& session) { return std::shared_ptr<NodeMemory>(new NodeMemory(session)); }

  // The memory of this name, zeroed for the first process. With `member` >= 0 the node records that member's death on the membership page
  // at the memory's start. Not on the loop.
  Result<std::shared_ptr<runtime::Mapping>> open(const std::string& name, std::size_t bytes, int member);
  // Stops using the session. Mapped memories stay mapped, and the node takes them back when this process ends.
  void close();

 private:
  explicit NodeMemory(Session& session);
  void drop(const std::string& name);

  std::mutex mutex_;
  const pid_t pid_;  // a forked child gives nothing back
  Session* session_;
};

}  // namespace shoal::actors
