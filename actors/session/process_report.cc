#include "actors/session/process_report.h"

namespace shoal::actors {

std::vector<ObjectReport> report_memories(const std::vector<std::shared_ptr<SharedMemory>>& memories, JobId job, runtime::Random& random) {
  std::vector<ObjectReport> out;
  for (const auto& memory : memories) {
    ObjectReport reported;
    reported.job = job;
    const auto published = memory->published();
    if (published) reported.job = published->job;
    std::uint64_t name = published ? published->id.value : 0;
    if (name == 0 && memory->referred) {
      std::uint64_t fresh = random.id<ObjectId>().value;
      name = memory->name.compare_exchange_strong(name, fresh) ? fresh : name;
    }
    reported.id = ObjectId{name};
    reported.bytes = memory->bytes();
    reported.spilled = memory->spilled();
    if (const auto fd = memory->descriptor()) reported.memory = which_memory(*fd);
    reported.holders = {{WorkerId(), memory->referred ? 1 : 0}};
    out.push_back(std::move(reported));
  }
  return out;
}

}  // namespace shoal::actors
