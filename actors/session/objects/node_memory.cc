#include "actors/session/objects/node_memory.h"

namespace shoal::actors {

Result<std::shared_ptr<runtime::Mapping>> NodeMemory::open(const std::string& name, std::size_t bytes, int member) {
  Result<Fd> memory = fail(unavailable("this process has left its node").with_reason("Closed"));
  node_.call([&](NodeClient& node) { memory = node.open_arena(name, bytes, member); });
  if (!memory) return fail(std::move(memory).error());
  const auto drop = [self = shared_from_this(), name] { self->node_.call([&](NodeClient& node) { node.drop_arena(name); }); };
  auto mapping = runtime::map(*memory, bytes, runtime::Access::kReadWrite);
  if (!mapping) {
    drop();
    return fail(std::move(mapping).error());
  }
  return std::shared_ptr<runtime::Mapping>(new runtime::Mapping(*std::move(mapping)), [drop](runtime::Mapping* gone) {
    delete gone;
    drop();
  });
}

}  // namespace shoal::actors
