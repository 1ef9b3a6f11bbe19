#include "actors/session/node_memory.h"

#include <unistd.h>

namespace shoal::actors {

NodeMemory::NodeMemory(Session& session) : pid_(getpid()), session_(&session) {}

Result<std::shared_ptr<runtime::Mapping>> NodeMemory::open(const std::string& name, std::size_t bytes, int member) {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return fail(unavailable("this process has left its node").with_reason("Closed"));
  SHOAL_TRY(const Fd memory, session_->node().open_arena(name, bytes, member));
  SHOAL_TRY(runtime::Mapping mapping, runtime::map(memory, bytes, runtime::Access::kReadWrite));
  return std::shared_ptr<runtime::Mapping>(new runtime::Mapping(std::move(mapping)),
                                           [self = shared_from_this(), name](runtime::Mapping* gone) {
                                             delete gone;
                                             self->drop(name);
                                           });
}

void NodeMemory::drop(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr && getpid() == pid_) session_->node().drop_arena(name);
}

void NodeMemory::close() {
  const std::lock_guard lock(mutex_);
  session_ = nullptr;
}

}  // namespace shoal::actors
