// What must survive the head: nodes and jobs. SQLite on disk, or a map for tests and the simulated world.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"

namespace shoal::scheduler {

class Store {
 public:
  virtual ~Store() = default;
  virtual Result<void> put(const actors::NodeRow& row) = 0;
  virtual Result<void> put(const actors::JobRow& row) = 0;
  virtual Result<std::vector<actors::NodeRow>> nodes() = 0;
  virtual Result<std::vector<actors::JobRow>> jobs() = 0;
};

// A file that somebody else has locked is Unavailable after a moment: to be tried again.
// WAL mode, synchronous=NORMAL: survives the death of any process; a power cut may cost the last moments.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path);
std::unique_ptr<Store> make_memory_store();

}  // namespace shoal::scheduler
