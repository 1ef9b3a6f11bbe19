// A process's answers to inspection (actors/wire/inspection.h), made on request. Loop thread only.
#pragma once

#include <memory>
#include <vector>

#include "actors/value/shared_memory.h"
#include "actors/wire/inspection.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

// This process's large values. Each gets an identifier at its first report, and keeps it.
std::vector<ObjectReport> report_memories(const std::vector<std::shared_ptr<SharedMemory>>& memories, JobId job, runtime::Random& random);

// Removes rows beyond `limit`, and returns their number.
template <class Row>
std::uint64_t cut(std::vector<Row>& rows, std::size_t limit) {
  const std::size_t more = rows.size() > limit ? rows.size() - limit : 0;
  rows.resize(rows.size() - more);
  return more;
}

}  // namespace shoal::actors
