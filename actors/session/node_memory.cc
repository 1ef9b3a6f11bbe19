#include "actors/session/node_memory.h"

#include <unistd.h>

namespace shoal::actors {

NodeMemory::NodeMemory(NodeClient& node) : pid_(getpid()), node_(&node) {}

Result<std::shared_ptr<runtime::Mapping>> NodeMemory::open(const std::string& name, std::size_t bytes, int member) {
  const std::shared_lock lock(mutex_);
  if (node_ == nullptr) return fail(unavailable("this process has left its node").with_reason("Closed"));
  SHOAL_TRY(const Fd memory, node_->open_arena(name, bytes, member));
  SHOAL_TRY(runtime::Mapping mapping, runtime::map(memory, bytes, runtime::Access::kReadWrite));
  return std::shared_ptr<runtime::Mapping>(new runtime::Mapping(std::move(mapping)),
                                           [self = shared_from_this(), name](runtime::Mapping* gone) {
                                             delete gone;
                                             self->drop(name);
                                           });
}

void NodeMemory::drop(const std::string& name) {
  if (getpid() != pid_) return;  // a thread that does not exist here may hold the mutex
  const std::shared_lock lock(mutex_);
  if (node_ != nullptr) node_->drop_arena(name);
}

void NodeMemory::close() {
  const std::lock_guard lock(mutex_);
  node_ = nullptr;
}

}  // namespace shoal::actors
