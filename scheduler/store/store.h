// What must survive the head: its rows, as records. SQLite on disk, or a map for tests and the simulated world.
//
// A store knows nothing of what it keeps. The head commits what an event changed before it acts on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

namespace shoal::scheduler {

enum class TableName : std::uint8_t { kNodes, kWorkers, kJobs, kGangs, kActors, kGroups };
inline constexpr std::size_t kNumTables = 6;
const char* to_string(TableName table);

struct Record {
  TableName table = TableName::kNodes;
  std::uint64_t id = 0;
  std::string name, state;  // for people who look with sqlite3(1)
  Bytes bytes;              // none: the row is gone
};

class Store {
 public:
  virtual ~Store() = default;
  // All of them or none. `done` is called once, perhaps before this returns; until then `records` are there. The next commit comes after
  // it.
  virtual void commit(const std::vector<Record>& records, std::function<void(Result<void>)> done) = 0;
  // All that is kept, by table and id.
  virtual Result<std::vector<Record>> load() = 0;
};

struct SqliteOptions {
  // Whether each commit waits for the disk. Otherwise it survives the death of any process, and a power cut costs what was committed
  // in the last `sync_every`.
  bool fsync = false;
  std::uint32_t sync_every_ms = 100;
  // Once SQLite's log has so much, it is copied into the database beside the commits, and then one commit waits until what came meanwhile
  // is copied, too: the log is begun anew. From most_log_bytes on, should that not keep up, each waits. Where fsync is set, a commit does
  // so at 4 MB each time.
  std::uint64_t log_bytes = 32u << 20, most_log_bytes = 128u << 20;
  // Runs `work` in a thread for that alone, then `then` on the loop: for a commit that waits so. Ends before the store does. Empty: the
  // loop waits.
  std::function<void(std::function<void()> work, std::function<void()> then)> aside = {};
};

// A file that somebody else has locked is Unavailable after a moment: to be tried again.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path, const SqliteOptions& options = {});
std::unique_ptr<Store> make_memory_store();

}  // namespace shoal::scheduler
