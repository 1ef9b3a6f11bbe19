// The state that survives the head: its rows as records, in SQLite on disk, or in a map for tests and simulation.
//
// A store does not interpret its records. The head commits what an event changed before it acts on it.
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
  std::string name, state;  // for people who read the database with sqlite3(1)
  Bytes bytes;              // empty: the row is deleted
};

class Store {
 public:
  virtual ~Store() = default;
  // Stores all records or none. `on_end` is called once, possibly before this returns. The caller keeps `records`, and begins no other
  // commit, until then.
  virtual void commit(const std::vector<Record>& records, std::function<void(Result<void>)> on_end) = 0;
  // All stored records, ordered by table and id.
  virtual Result<std::vector<Record>> load() = 0;
};

struct SqliteOptions {
  // If set, each commit waits for the disk. Otherwise a commit survives the death of any process, and a power cut loses those of the last
  // `sync_every_ms`.
  bool fsync = false;
  std::uint32_t sync_every_ms = 100;
  // At `log_bytes`, SQLite's log is copied into the database beside the commits. One commit then waits for the copy of the rest, and the
  // log begins anew. From `most_log_bytes` on, each commit waits. With `fsync`, commits copy the log at 4 MB each time.
  std::uint64_t log_bytes = 32u << 20, most_log_bytes = 128u << 20;
  // A function that runs `work` in a thread of its own, then `then` on the loop. Commits that wait for a copy use it; it has ended before
  // the store is destroyed. If it is empty, the loop waits.
  std::function<void(std::function<void()> work, std::function<void()> then)> aside = {};
};

// Returns Unavailable if another process has locked the file: the caller tries again.
Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path, const SqliteOptions& options = {});
std::unique_ptr<Store> make_memory_store();

}  // namespace shoal::scheduler
