// The calls that this process runs, and the last that it ran, for inspection only (process_report.h). They are lost with the process.
//
// Every call passes here: an entry is a few words in an existing ring, and a repeated name is found at once. Loop
// thread only, except began().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/value/call.h"
#include "actors/wire/inspection.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

class CallBook {
 public:
  static constexpr std::size_t kMaxDone = 2048;   // ended calls, per kind (Ring); the oldest are dropped
  static constexpr std::size_t kMaxNames = 1000;  // methods and functions, up to kMaxNameBytes each; others are unnamed
  static constexpr std::size_t kMaxNameBytes = 1000;

  struct Running;
  using Entry = Running*;  // a call that was taken; null: none

  explicit CallBook(runtime::Clock& clock) : clock_(clock) {}
  CallBook(const CallBook&) = delete;
  CallBook& operator=(const CallBook&) = delete;

  // The call was taken from its queue. It runs from now on, or (`waits`) from began() on.
  Entry taken(const Call& call, WorkerId caller, bool waits = false);
  // Any thread, before ended().
  void began(Entry entry);
  // `failure`: the kind of failure, if any.
  void ended(Entry entry, std::string_view failure = {});
  // An ended call that this process made, wherever it ran.
  struct Over {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::uint32_t name = 0;
    runtime::TimePoint start, end;  // zero: unknown
    std::string_view failure;
  };
  void over(const Over& over);
  // The entry of a taken call, freed at destruction; without ended() the call counts as an internal failure.
  class Taken {
   public:
    Taken() = default;
    Taken(CallBook& book, Entry entry) : book_(&book), entry_(entry) {}
    Taken(Taken&& other) noexcept : book_(other.book_), entry_(std::exchange(other.entry_, nullptr)) {}
    Taken& operator=(Taken&& other) noexcept {
      std::swap(book_, other.book_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Taken() { ended("INTERNAL"); }
    void began() const {
      if (book_ != nullptr) book_->began(entry_);
    }
    void ended(std::string_view failure = {}) {
      if (book_ != nullptr) book_->ended(std::exchange(entry_, nullptr), failure);
    }
    // For a destroyed book.
    void forget() { entry_ = nullptr; }

   private:
    CallBook* book_ = nullptr;
    Entry entry_ = nullptr;
  };

  // The number of a method's and function's name; 0: too many names.
  std::uint32_t name(std::string_view method, std::string_view function);
  const std::pair<std::string, std::string>& named(std::uint32_t name) const { return names_[name]; }

  // Appends running calls, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report_running(std::vector<TaskReport>& out, std::size_t limit) const;
  // The first names have their own metrics; the others share one.
  static constexpr std::uint32_t kMaxMeasured = 100;
  // Numbers of calls by state: those here, and those added with note().
  class Counts {
   public:
    void note(TaskState state, const CallBook& book, std::uint32_t name, std::uint64_t calls = 1);

   private:
    friend class CallBook;
    std::map<std::pair<TaskState, std::string>, std::uint64_t> calls_;
  };
  // Appends metrics of `counts`, of the calls here, and of all that ended here since the process began.
  void measure(Counts counts, std::vector<MetricFamily>& out) const;
  // Appends ended calls, latest first, up to `limit` rows in all. Dropped ones are not reported.
  void report_over(std::vector<TaskReport>& out, std::size_t limit) const;

 private:
  struct Record {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::int64_t start = 0, end = 0;  // clock time, ns; 0: not yet
    std::uint32_t name = 0, failure = 0;
  };
  static_assert(sizeof(Record) <= 64);
  // The last calls of one kind, so that frequent kinds do not displace others.
  class Ring {
   public:
    void keep(const Record& record);
    // The i-th latest call; null: no more.
    const Record* newest(std::size_t i) const;

   private:
    std::vector<Record> records_;
    std::size_t next_ = 0;  // the oldest, once full
  };
  std::uint32_t name_of_failure(std::string_view failure);
  std::string measured(std::uint32_t name) const;
  TaskReport reported(const Record& record, std::int64_t unix_offset_us) const;
  std::int64_t unix_offset_us() const;
  std::int64_t now() const { return clock_.now().time_since_epoch().count(); }

  runtime::Clock& clock_;
  std::deque<std::pair<std::string, std::string>> names_{{"", ""}, {"FAILED", ""}};  // method and function, or a failure and ""
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> by_name_;   // views of the texts in names_
  std::uint32_t last_name_ = 0;
  std::deque<Running> running_;  // stable addresses, reused
  Entry free_ = nullptr;
  Ring ran_, functions_, failures_;                             // run here, run by this process's pools, other failures of its calls
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended_;  // by name: finished, failed
};

struct CallBook::Running {
  Record record;                       // except the start
  std::atomic<std::int64_t> start{0};  // ns; 0: not begun
  bool taken = false;
  Running* next_free = nullptr;
};

// Ray's names for failures of calls.
inline constexpr std::string_view kRaisedFailure = "TASK_EXECUTION_EXCEPTION", kWorkerDied = "WORKER_DIED";
std::string_view kind_of_failure(const Error& error);

}  // namespace shoal::actors
