// What a process tells of itself when somebody looks at the cluster (actors/wire/inspection.h). Made when it is asked for; nothing is kept
// for it but what says so. Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "actors/value/shared_memory.h"
#include "actors/wire/inspection.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

// The memories of this process. One without a name gets it now, and is called so from then on.
std::vector<ToldObject> tell_memories(const std::vector<std::shared_ptr<SharedMemory>>& memories, JobId job, runtime::Random& random);

// Leaves so many, and returns how many were more.
template <class Row>
std::uint64_t cut(std::vector<Row>& rows, std::size_t limit) {
  const std::size_t more = rows.size() > limit ? rows.size() - limit : 0;
  rows.resize(rows.size() - more);
  return more;
}

}  // namespace shoal::actors
