#include "actors/session/telling.h"

namespace shoal::actors {

std::vector<ToldObject> tell_memories(const std::vector<std::shared_ptr<SharedMemory>>& memories, JobId job, runtime::Random& random) {
  std::vector<ToldObject> out;
  for (const auto& memory : memories) {
    ToldObject told;
    told.job = job;
    const auto published = memory->published();
    if (published) told.job = published->job;
    std::uint64_t name = published ? published->id.value : 0;
    if (name == 0 && memory->referred) {
      std::uint64_t fresh = random.id<ObjectId>().value;
      name = memory->name.compare_exchange_strong(name, fresh) ? fresh : name;
    }
    told.id = ObjectId{name};
    told.bytes = memory->bytes();
    told.spilled = memory->spilled();
    if (const auto fd = memory->descriptor()) told.memory = which_memory(*fd);
    told.holders = {{WorkerId(), memory->referred ? 1 : 0}};
    out.push_back(std::move(told));
  }
  return out;
}

}  // namespace shoal::actors
