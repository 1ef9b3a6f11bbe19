#include "scheduler/store/store.h"

#include <map>

namespace shoal::scheduler {

const char* to_string(TableName table) {
  constexpr const char* kNames[kNumTables] = {"nodes", "workers", "jobs", "gangs", "actors", "groups"};
  return kNames[static_cast<std::size_t>(table)];
}

namespace {

class MemoryStore final : public Store {
 public:
  void commit(const std::vector<Record>& records, std::function<void(Result<void>)> on_end) override {
    for (const auto& r : records) {
      if (r.bytes.empty()) {
        rows_.erase({r.table, r.id});
      } else {
        rows_[{r.table, r.id}] = {r.table, r.id, r.name, r.state, r.bytes.clone()};
      }
    }
    on_end({});
  }
  Result<std::vector<Record>> load() override {
    std::vector<Record> out;
    for (const auto& [key, r] : rows_) out.push_back({r.table, r.id, r.name, r.state, r.bytes.clone()});
    return out;
  }

 private:
  std::map<std::pair<TableName, std::uint64_t>, Record> rows_;
};

}  // namespace

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace shoal::scheduler
