// The calls that this process runs, and the last that it has run: for who looks at the cluster (telling.h), never for anything that has to
// be right. What a process ran goes with it.
//
// Written in the path of every call: an entry is a few words in a ring that is there already, a name is looked up by comparing it with the
// last one. Loop thread only, but for began().
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
  static constexpr std::size_t kMaxDone = 2048;   // calls that are over, of each kind (Ring); the oldest go first
  static constexpr std::size_t kMaxNames = 1000;  // of methods and functions, of so many bytes; the others have none
  static constexpr std::size_t kMaxNameBytes = 1000;

  struct Running;
  using Entry = Running*;  // of a call that was taken; null: none

  explicit CallBook(runtime::Clock& clock) : clock_(clock) {}
  CallBook(const CallBook&) = delete;
  CallBook& operator=(const CallBook&) = delete;

  // It was taken from its queue. It runs from now on, or (`waits`) from began() on.
  Entry taken(const Call& call, WorkerId caller, bool waits = false);
  // Any thread, before it ended.
  void began(Entry entry);
  // With that failure, if any: its kind is kept.
  void ended(Entry entry, std::string_view failure = {});
  // One of this process that is over, whoever ran it.
  struct Over {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::uint32_t name = 0;
    runtime::TimePoint start, end;  // of the epoch: not known
    std::string_view failure;
  };
  void over(const Over& over);
  // A call that was taken, whose place here is free again once this ends: with a bug of ours, if nobody said how it ended.
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
    // The book is gone.
    void forget() { entry_ = nullptr; }

   private:
    CallBook* book_ = nullptr;
    Entry entry_ = nullptr;
  };

  // Of a method and a function; 0 when there are too many.
  std::uint32_t name(std::string_view method, std::string_view function);
  const std::pair<std::string, std::string>& named(std::uint32_t name) const { return names_[name]; }

  // Those that run, until there are so many rows; returns how many were more.
  std::uint64_t tell_running(std::vector<ToldTask>& out, std::size_t limit) const;
  // Of this many names each has its own in measurements; the others have one together.
  static constexpr std::uint32_t kMaxMeasured = 100;
  // How many calls are in which state: those that run or wait for their turn here, and those that others count with note().
  class Counts {
   public:
    void note(TaskState state, const CallBook& book, std::uint32_t name, std::uint64_t calls = 1);

   private:
    friend class CallBook;
    std::map<std::pair<TaskState, std::string>, std::uint64_t> calls_;
  };
  // With `counts` of those that wait elsewhere, and all that ended here since the process began.
  void measure(Counts counts, std::vector<MetricFamily>& out) const;
  // As many of those that are over as there is room for, what ended last first. More than are kept are never told: nobody misses them.
  void tell_over(std::vector<ToldTask>& out, std::size_t limit) const;

 private:
  struct Record {
    std::uint64_t number = 0;
    WorkerId caller;
    ActorId actor;
    std::int64_t start = 0, end = 0;  // of the clock, ns; 0: not yet
    std::uint32_t name = 0, failure = 0;
  };
  static_assert(sizeof(Record) <= 64);
  // The last of one kind: what comes often does not drive out the others.
  class Ring {
   public:
    void keep(const Record& record);
    // The one that ended last, the one before it, ..; null: there are no more.
    const Record* newest(std::size_t i) const;

   private:
    std::vector<Record> records_;
    std::size_t next_ = 0;  // once it is full
  };
  std::uint32_t name_of_failure(std::string_view failure);
  std::string measured(std::uint32_t name) const;
  ToldTask told(const Record& record, std::int64_t unix_offset_us) const;
  std::int64_t unix_offset_us() const;
  std::int64_t now() const { return clock_.now().time_since_epoch().count(); }

  runtime::Clock& clock_;
  std::deque<std::pair<std::string, std::string>> names_{{"", ""}, {"FAILED", ""}};  // method and function, or a failure and ""
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> by_name_;   // texts are those of names_
  std::uint32_t last_name_ = 0;
  std::deque<Running> running_;  // they stay where they are, and are used again
  Entry free_ = nullptr;
  Ring ran_, functions_, failures_;                             // here; by workers of this process's pools; of what else it called
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ended_;  // by name: finished, failed
};

struct CallBook::Running {
  Record record;                       // but for its start
  std::atomic<std::int64_t> start{0};  // ns; 0: it waits for its turn
  bool taken = false;
  Running* next_free = nullptr;
};

// What Ray calls the failure of a call.
inline constexpr std::string_view kRaisedFailure = "TASK_EXECUTION_EXCEPTION", kWorkerDied = "WORKER_DIED";
std::string_view kind_of_failure(const Error& error);

}  // namespace shoal::actors
