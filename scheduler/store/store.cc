#include "scheduler/store/store.h"

#include <sqlite3.h>

#include <map>

#include "actors/wire/messages.h"

namespace shoal::scheduler {

namespace {

// Rows are kept as the wire's bytes beside the columns that people query with sqlite3(1): one format, N/N-1 by
// construction.
constexpr const char* kSchema =
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=NORMAL;"
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);"
    "INSERT OR IGNORE INTO meta VALUES('schema', '1');"
    "CREATE TABLE IF NOT EXISTS nodes(id TEXT PRIMARY KEY, host TEXT NOT NULL, state TEXT NOT NULL, row BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS jobs(id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, row BLOB NOT NULL);";

// Another process may read or copy the file. Short: the caller's loop stands still meanwhile, and it tries again later.
constexpr int kBusyMs = 50;

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr); }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  sqlite3_stmt* get() { return statement_; }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> open(const std::string& path) {
    auto out = std::make_unique<SqliteStore>();
    if (sqlite3_open(path.c_str(), &out->db_) != SQLITE_OK || sqlite3_busy_timeout(out->db_, kBusyMs) != SQLITE_OK ||
        sqlite3_exec(out->db_, kSchema, nullptr, nullptr, nullptr) != SQLITE_OK) {
      return fail(out->error("cannot open " + path));
    }
    return out;
  }
  ~SqliteStore() override { sqlite3_close(db_); }

  Result<void> put(const actors::NodeRow& row) override {
    actors::ListReply one;
    one.nodes.push_back(row);
    return put("INSERT INTO nodes VALUES(?1, ?2, ?3, ?4) ON CONFLICT(id) DO UPDATE SET host=?2, state=?3, row=?4", to_string(row.id),
               row.host, actors::to_string(row.state), to_bytes(one));
  }
  Result<void> put(const actors::JobRow& row) override {
    return put("INSERT INTO jobs VALUES(?1, ?2, ?3, ?4) ON CONFLICT(id) DO UPDATE SET name=?2, state=?3, row=?4", to_string(row.id),
               row.name, actors::to_string(row.state), to_bytes(row));
  }

  Result<std::vector<actors::NodeRow>> nodes() override {
    std::vector<actors::NodeRow> out;
    SHOAL_TRY(const auto blobs, rows("SELECT row FROM nodes ORDER BY id"));
    for (const auto& b : blobs) {
      SHOAL_TRY(auto list, actors::from_bytes<actors::ListReply>(b));
      out.insert(out.end(), list.nodes.begin(), list.nodes.end());
    }
    return out;
  }
  Result<std::vector<actors::JobRow>> jobs() override {
    std::vector<actors::JobRow> out;
    SHOAL_TRY(const auto blobs, rows("SELECT row FROM jobs ORDER BY id"));
    for (const auto& b : blobs) {
      SHOAL_TRY(auto row, actors::from_bytes<actors::JobRow>(b));
      out.push_back(std::move(row));
    }
    return out;
  }

 private:
  // The one place where an SQLite status becomes an Error.
  Error error(const std::string& what) const {
    const int code = sqlite3_errcode(db_);
    const std::string message = what + ": " + sqlite3_errmsg(db_);
    switch (code) {
      case SQLITE_FULL:
        return resource_exhausted(message);
      case SQLITE_CORRUPT:
      case SQLITE_NOTADB:
        return data_loss(message);
      case SQLITE_CANTOPEN:
      case SQLITE_READONLY:
      case SQLITE_PERM:
        return invalid_argument(message);
      case SQLITE_BUSY:
        return unavailable(message);
      default:
        return internal(message);
    }
  }

  Result<void> put(const char* sql, const std::string& id, const std::string& name, const std::string& state, const Bytes& row) {
    Statement s(db_, sql);
    const auto text = [&](int at, const std::string& t) {
      return sqlite3_bind_text(s.get(), at, t.data(), static_cast<int>(t.size()), SQLITE_STATIC) == SQLITE_OK;
    };
    if (s.get() == nullptr || !text(1, id) || !text(2, name) || !text(3, state) ||
        sqlite3_bind_blob(s.get(), 4, row.data(), static_cast<int>(row.size()), SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(s.get()) != SQLITE_DONE) {
      return fail(error("cannot write a row"));
    }
    return {};
  }

  Result<std::vector<Bytes>> rows(const char* sql) {
    std::vector<Bytes> out;
    Statement s(db_, sql);
    if (s.get() == nullptr) return fail(error("cannot read rows"));
    int step;
    while ((step = sqlite3_step(s.get())) == SQLITE_ROW) {
      out.push_back(Bytes::copy_of(sqlite3_column_blob(s.get(), 0), static_cast<std::size_t>(sqlite3_column_bytes(s.get(), 0))));
    }
    if (step != SQLITE_DONE) return fail(error("cannot read rows"));
    return out;
  }

  sqlite3* db_ = nullptr;
};

class MemoryStore final : public Store {
 public:
  Result<void> put(const actors::NodeRow& row) override {
    nodes_[row.id] = row;
    return {};
  }
  Result<void> put(const actors::JobRow& row) override {
    jobs_[row.id] = row;
    return {};
  }
  Result<std::vector<actors::NodeRow>> nodes() override {
    std::vector<actors::NodeRow> out;
    for (const auto& [id, row] : nodes_) out.push_back(row);
    return out;
  }
  Result<std::vector<actors::JobRow>> jobs() override {
    std::vector<actors::JobRow> out;
    for (const auto& [id, row] : jobs_) out.push_back(row);
    return out;
  }

 private:
  std::map<NodeId, actors::NodeRow> nodes_;
  std::map<JobId, actors::JobRow> jobs_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path) { return SqliteStore::open(path); }
std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace shoal::scheduler
