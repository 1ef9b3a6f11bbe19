#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/core/fd.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

namespace {

constexpr const char* kSchema =
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);"
    "INSERT OR IGNORE INTO meta VALUES('schema', '2');";
constexpr const char* kVersion = "2";

// The time that SQLite waits while another process locks the file. It is short, because the loop stands still meanwhile; the head tries
// again.
constexpr int kBusyMs = 50;

constexpr std::uint64_t kPageBytes = 4096;

struct CloseDb {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
};
using Db = std::unique_ptr<sqlite3, CloseDb>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

// The only conversion of SQLite's statuses to errors.
Error error_of(sqlite3* db, const std::string& what) {
  const std::string message = what + ": " + sqlite3_errmsg(db);
  switch (sqlite3_errcode(db)) {
    case SQLITE_FULL:
      return resource_exhausted(message).with_hint("free space on the disk of the session's folder");
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

Result<Db> open_db(const std::string& path) {
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open(path.c_str(), &raw);
  Db db(raw);
  if (opened != SQLITE_OK || sqlite3_busy_timeout(raw, kBusyMs) != SQLITE_OK) return fail(error_of(raw, "cannot open " + path));
  return db;
}

// The text of a column; "" for NULL, which only a damaged or foreign file has.
std::string text_of(const Statement& row, int column) {
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(row.get(), column));
  return text == nullptr ? "" : text;
}

Result<void> execute(sqlite3* db, const std::string& sql, const std::string& what) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return fail(error_of(db, what));
  return {};
}

// Copies the log into the database. Returns the pages in the log, or none while another connection copies.
std::optional<std::uint64_t> checkpoint(sqlite3* db) {
  std::optional<std::uint64_t> out;
  const auto read = [](void* to, int columns, char** values, char**) {
    const long long pages = columns > 1 && values[1] != nullptr ? std::strtoll(values[1], nullptr, 10) : -1;
    if (pages >= 0) *static_cast<std::optional<std::uint64_t>*>(to) = static_cast<std::uint64_t>(pages);
    return 0;
  };
  return sqlite3_exec(db, "PRAGMA wal_checkpoint(PASSIVE)", read, &out, nullptr) == SQLITE_OK ? out : std::nullopt;
}

// Syncs commits to the disk and copies the log into the database, in a thread of its own.
class Syncer {
 public:
  Syncer(std::string path, const SqliteOptions& options)
      : path_(std::move(path)), every_(options.sync_every_ms), long_pages_(options.log_bytes / kPageBytes) {}
  ~Syncer() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    woken_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  // A commit was made. `copy`: the log is to be copied soon. Either it is long, or it could not grow on a full disk and has to begin anew.
  void committed(bool copy) {
    const std::lock_guard lock(mutex_);
    copy_ |= copy;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    if (!std::exchange(dirty_, true)) woken_.notify_one();
  }
  // Returns true once after the copy of a long log; commits made during the copy are not in it.
  bool has_copied() { return copied_.load(std::memory_order_relaxed) && copied_.exchange(false); }

 private:
  static constexpr int kCheckpointEvery = 20;  // number of syncs between two copies of the log

  void run() {
    std::unique_lock lock(mutex_);
    for (int syncs = 0;;) {
      woken_.wait(lock, [this] { return over_ || dirty_; });
      if (over_) return;
      woken_.wait_for(lock, every_, [this] { return over_; });
      dirty_ = false;
      const bool now = std::exchange(copy_, false);
      lock.unlock();
      sync_log();
      if (++syncs % kCheckpointEvery == 0 || now) copy();
      lock.lock();
    }
  }

  void sync_log() {
    if (const Fd log(open((path_ + "-wal").c_str(), O_RDONLY | O_CLOEXEC)); log) fdatasync(log.get());
  }

  void copy() {
    const auto db = open_db(path_);
    if (!db) return;
    const auto pages = checkpoint(db->get());
    if (!pages || *pages < long_pages_) return;
    // SQLite syncs the database file once all of the log is copied to it, and a commit would wait for that. Most of it is on disk already
    // if this thread syncs what it has copied.
    sqlite3_file* file = nullptr;
    if (sqlite3_file_control(db->get(), "main", SQLITE_FCNTL_FILE_POINTER, &file) == SQLITE_OK && file != nullptr)
      file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
    sync_log();
    copied_ = true;
  }

  const std::string path_;
  const std::chrono::milliseconds every_;
  const std::uint64_t long_pages_;
  std::atomic<bool> copied_ = false;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool dirty_ = false, copy_ = false, over_ = false;
  std::thread thread_;
};

// A table for each kind of row, with columns for queries beside the record.
//
// SQLite begins its log anew with the first commit that finds all of it copied. While commits keep coming, the copies beside them are never
// complete, so one commit waits for the rest.
class SqliteStore final : public Store {
 public:
  SqliteStore(Db db, const std::string& path, const SqliteOptions& options)
      : db_(std::move(db)), options_(options), syncer_(path, options) {}

  Result<void> prepare() {
    SHOAL_OK(execute(db_.get(), "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0", "cannot open the database"));
    SHOAL_OK(execute(db_.get(), "PRAGMA journal_size_limit=" + std::to_string(options_.log_bytes), "cannot open the database"));
    const bool fsync = options_.fsync;
    SHOAL_OK(execute(db_.get(), fsync ? "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=1000" : "PRAGMA synchronous=NORMAL",
                     "cannot open the database"));
    const auto note = [](void* pages, sqlite3*, const char*, int now) {
      *static_cast<std::uint64_t*>(pages) = static_cast<std::uint64_t>(now);
      return SQLITE_OK;
    };
    if (!fsync) sqlite3_wal_hook(db_.get(), note, &log_pages_);
    SHOAL_OK(execute(db_.get(), kSchema, "cannot write the database"));
    Statement version;
    SHOAL_OK(statement(version, "SELECT value FROM meta WHERE key = 'schema'"));
    if (sqlite3_step(version.get()) != SQLITE_ROW || text_of(version, 0) != kVersion) {
      return fail(invalid_argument("the head's state was written by another version of Shoal"));
    }
    SHOAL_OK(statement(begin_, "BEGIN IMMEDIATE"));
    SHOAL_OK(statement(commit_, "COMMIT"));
    SHOAL_OK(statement(rollback_, "ROLLBACK"));
    for (std::size_t i = 0; i < kNumTables; ++i) {
      const std::string table = to_string(static_cast<TableName>(i));
      SHOAL_OK(execute(
          db_.get(),
          "CREATE TABLE IF NOT EXISTS " + table + "(id INTEGER PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, record BLOB NOT NULL)",
          "cannot write the database"));
      SHOAL_OK(statement(put_[i],
                         "INSERT INTO " + table + " VALUES(?1, ?2, ?3, ?4) ON CONFLICT(id) DO UPDATE SET name=?2, state=?3, record=?4"));
      SHOAL_OK(statement(erase_[i], "DELETE FROM " + table + " WHERE id=?1"));
    }
    return {};
  }

  void commit(const std::vector<Record>& records, std::function<void(Result<void>)> on_end) override {
    if (!syncer_.has_copied() && log_pages_ * kPageBytes < options_.most_log_bytes) return on_end(commit_now(records));
    auto result = std::make_shared<Result<void>>();
    const auto work = [this, &records, result] {
      (void)checkpoint(db_.get());
      *result = commit_now(records);
    };
    if (options_.aside) return options_.aside(work, [result, on_end = std::move(on_end)] { on_end(std::move(*result)); });
    work();
    on_end(std::move(*result));
  }

  Result<std::vector<Record>> load() override {
    std::vector<Record> out;
    for (std::size_t i = 0; i < kNumTables; ++i) {
      const auto table = static_cast<TableName>(i);
      Statement s;
      SHOAL_OK(statement(s, std::string("SELECT id, name, state, record FROM ") + to_string(table) + " ORDER BY id"));
      int step;
      while ((step = sqlite3_step(s.get())) == SQLITE_ROW) {
        out.push_back({table, static_cast<std::uint64_t>(sqlite3_column_int64(s.get(), 0)), text_of(s, 1), text_of(s, 2),
                       Bytes::copy_of(sqlite3_column_blob(s.get(), 3), static_cast<std::size_t>(sqlite3_column_bytes(s.get(), 3)))});
      }
      if (step != SQLITE_DONE) return fail(error_of(db_.get(), "cannot read rows"));
    }
    return out;
  }

 private:
  Result<void> statement(Statement& out, const std::string& sql) {
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v3(db_.get(), sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr) != SQLITE_OK) {
      return fail(error_of(db_.get(), "cannot prepare a statement"));
    }
    out.reset(raw);
    return {};
  }

  Result<void> run(const Statement& s) {
    Result<void> out;
    if (sqlite3_step(s.get()) != SQLITE_DONE) out = fail(error_of(db_.get(), "cannot write to the database"));
    sqlite3_reset(s.get());
    return out;
  }

  Result<void> write(const Record& r) {
    const auto at = static_cast<std::size_t>(r.table);
    const Statement& s = r.bytes.empty() ? erase_[at] : put_[at];
    bool bound = sqlite3_bind_int64(s.get(), 1, static_cast<std::int64_t>(r.id)) == SQLITE_OK;
    const auto text = [&](int column, const std::string& t) {
      bound = bound && sqlite3_bind_text(s.get(), column, t.data(), static_cast<int>(t.size()), SQLITE_STATIC) == SQLITE_OK;
    };
    if (!r.bytes.empty()) {
      text(2, r.name);
      text(3, r.state);
      bound = bound && sqlite3_bind_blob64(s.get(), 4, r.bytes.data(), r.bytes.size(), SQLITE_STATIC) == SQLITE_OK;
    }
    if (!bound) return fail(error_of(db_.get(), "cannot bind a row"));
    return run(s);
  }

  Result<void> commit_now(const std::vector<Record>& records) {
    SHOAL_OK(run(begin_));
    Result<void> written;
    for (std::size_t i = 0; written && i < records.size(); ++i) written = write(records[i]);
    if (written) written = run(commit_);
    if (!written) {
      if (sqlite3_get_autocommit(db_.get()) == 0) (void)run(rollback_);
      if (written.error().code() != Code::kUnavailable) syncer_.committed(true);
      return written;
    }
    if (!options_.fsync) syncer_.committed(log_pages_ * kPageBytes >= options_.log_bytes);
    return {};
  }

  const Db db_;
  const SqliteOptions options_;
  std::uint64_t log_pages_ = 0;  // pages in the log after the last commit
  Statement begin_, commit_, rollback_;
  std::array<Statement, kNumTables> put_, erase_;
  Syncer syncer_;
};

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::string& path, const SqliteOptions& options) {
  SHOAL_TRY(auto db, open_db(path));
  auto store = std::make_unique<SqliteStore>(std::move(db), path, options);
  SHOAL_OK(store->prepare());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace shoal::scheduler
