// The calls that this process runs, and the last that it ran, for inspection only (process_report.h). They are lost with the process. Calls
// that failed are kept apart, since many that succeed would otherwise displace the few that matter.
//
// Every call passes here, so an entry costs a few words in an existing ring, and the last name is found without a search. Loop thread only,
// except began().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "actors/value/call.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

class CallBook {
 public:
  static constexpr std::size_t kMaxEnded = 2048;  // ended calls that each Ring keeps; the oldest are dropped
  // Names of methods and functions, each up to kMaxNameBytes; calls with further names are listed without one
  static constexpr std::size_t kMaxNames = 1000;
  static constexpr std::size_t kMaxNameBytes = 1000;

  struct Running;
  using Entry = Running*;  // a call that taken() has entered; null: none

  explicit CallBook(runtime::Clock& clock) : clock_(clock) {}
  CallBook(const CallBook&) = delete;
  CallBook& operator=(const CallBook&) = delete;

  // Enters a call that was taken from its queue. It runs from now on or, if it `waits` for a thread, from began() on.
  Entry taken(const Call& call, WorkerId caller, bool waits = false);
  // The call begins to run. Any thread, but before ended().
  void began(Entry entry);
  // `failure`: the kind of failure, empty for a call that succeeded.
  void ended(Entry entry, std::string_view failure = {});
  // A call that this process made and that ended, in whichever process it ran.
  struct Over {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::uint32_t name = 0;
    runtime::TimePoint start, end;  // zero: unknown
    std::string_view failure;
  };
  void over(const Over& over);
  // The entry of a taken call, which ends with this object: as an internal failure, unless ended() was called before.
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
    // For an entry of a book that was destroyed: the destructor leaves the book alone.
    void forget() { entry_ = nullptr; }

   private:
    CallBook* book_ = nullptr;
    Entry entry_ = nullptr;
  };

  // The number by which entries store this pair of names; 0: the book has too many names.
  std::uint32_t name(std::string_view method, std::string_view function);
  const std::pair<std::string, std::string>& named(std::uint32_t name) const { return names_[name]; }

  // Appends running calls, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report_running(std::vector<TaskReport>& out, std::size_t limit) const;
  // The calls of the first kMaxMeasured names have metrics by name; all others share one.
  static constexpr std::uint32_t kMaxMeasured = 100;
  // Numbers of calls by state, for measure(): calls outside of the book are added with note().
  class Counts {
   public:
    void note(TaskState state, const CallBook& book, std::uint32_t name, std::uint64_t calls = 1);

   private:
    friend class CallBook;
    std::map<std::pair<TaskState, std::string>, std::uint64_t> calls_;
  };
  // Appends metrics: the open calls, those in `counts` and those that run here, and the calls that ended here since the process began.
  void measure(Counts counts, std::vector<MetricFamily>& out) const;
  // Appends ended calls, first those that failed, each kind latest first, up to `limit` rows in all. Returns the number of ended calls
  // that are not among them.
  std::uint64_t report_over(std::vector<TaskReport>& out, std::size_t limit) const;

 private:
  struct Record {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::int64_t start = 0, end = 0;  // clock time in ns; 0: the call has not begun or ended yet
    std::uint32_t name = 0, failure = 0;
  };
  static_assert(sizeof(Record) <= 64);
  // The last calls of one kind. Each kind has a ring, so that many calls of one do not displace those of another.
  class Ring {
   public:
    void keep(const Record& record);
    // The record of the i-th latest call; null if there is none.
    const Record* newest(std::size_t i) const;
    std::uint64_t num_kept() const { return kept_; }

   private:
    std::vector<Record> records_;
    std::size_t next_ = 0;    // position of the oldest record, once the ring is full
    std::uint64_t kept_ = 0;  // number of all records so far
  };
  std::uint32_t name_of_failure(std::string_view failure);
  std::string measured(std::uint32_t name) const;
  TaskReport reported(const Record& record, std::int64_t unix_offset_us) const;
  std::int64_t unix_offset_us() const;
  std::int64_t now() const { return clock_.now().time_since_epoch().count(); }

  runtime::Clock& clock_;
  // (method, function); for a kind of failure (kind, ""). The first entry is for unnamed calls.
  std::deque<std::pair<std::string, std::string>> names_{{"", ""}, {"FAILED", ""}};
  // Numbers of the names; the keys are views of texts in names_
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> by_name_;
  std::uint32_t last_name_ = 0;
  std::deque<Running> running_;  // taken calls, which keep their addresses and are reused
  Entry free_ = nullptr;
  struct Outcomes {
    Ring finished, failed;
    Ring& ring_for(const Record& record) { return record.failure != 0 ? failed : finished; }
  };
  // `ran_`: calls that ran here. `functions_`: calls of this process's pools. `others_`: other calls of this process, with failures that no
  // other process reports.
  Outcomes ran_, functions_, others_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended_;  // numbers of finished and failed calls of ran_, by name
};

struct CallBook::Running {
  Record record;                       // without its start, which is the next field
  std::atomic<std::int64_t> start{0};  // clock time in ns; 0: the call has not begun
  bool taken = false;
  Running* next_free = nullptr;
};

// The names that Ray gives to failures of calls.
inline constexpr std::string_view kRaisedFailure = "TASK_EXECUTION_EXCEPTION", kWorkerDied = "WORKER_DIED";
std::string_view kind_of_failure(const Error& error);

}  // namespace shoal::actors
