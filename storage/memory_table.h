// The shared memory that a node owns for its jobs. Arenas are opened by key and shared by workers. Objects are put once, and got by id.
//
// The node keeps the descriptors, so a worker's death frees nothing that others still use; a job's end frees all its memory. Loop thread
// only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/id.h"
#include "runtime/core/result.h"
#include "runtime/shm/membership_page.h"
#include "runtime/shm/memory.h"

namespace shoal::storage {

class MemoryTable {
 public:
  struct Options {
    // open() refuses arenas that would leave less than this many bytes of the host's memory available; 0: no check.
    std::uint64_t spare_bytes = 256u << 20;
    std::size_t max_entries = 1 << 20;
    std::size_t max_arenas = 4096;  // each takes a descriptor of the node
    // One process may hold this many arenas, and one more for each `bytes_of_arena` of their memory, up to half of max_arenas. So a model
    // may have thousands of units, and a process that opens small arenas takes few of the node's descriptors.
    std::size_t min_arenas_of_worker = 1000;
    std::uint64_t bytes_of_arena = 16 << 10;
    // Ended jobs that are remembered, so that their late puts are refused; the oldest are forgotten.
    std::size_t max_ended_jobs = 1000;
    std::size_t max_freed = 100'000;          // freed objects that are remembered, so that their late puts are ignored
    std::uint64_t movable_bytes = 128 << 10;  // smallest object that may move into a file
    // Returns the bytes available in the machine and this process's control groups; if empty, runtime::machine_memory() is read.
    std::function<std::uint64_t()> available_bytes;
  };

  explicit MemoryTable(Options options);

  static constexpr std::uint64_t kAsItIs = ~std::uint64_t{0};  // for open(): an arena that exists, of any size

  struct Opened {
    Fd memory;  // a duplicate for the caller
    bool created = false;
  };
  // Opens the arena of that key for `worker`, which holds it until drop(); the first call makes it. Returns InvalidArgument if it exists
  // with another size, and NotFound if it has to exist (kAsItIs). Returns ResourceExhausted, with the numbers, if the machine has no room,
  // or ResourceExhausted/TooManyArenas. `lasting`: from now on the deaths of its holders do not free the arena, so a process that opens it
  // later finds their writes. A lasting arena with a key "GROUP//..." exists until all workers that have opened arenas of that group have
  // ended; any other lasting arena exists until the job ends.
  Result<Opened> open(JobId job, const std::string& key, std::uint64_t bytes, WorkerId worker, bool lasting = false);
  // `worker` holds the arena no longer. The arena is freed if no process holds it then.
  void drop(JobId job, const std::string& key, WorkerId worker);

  // Makes `worker` a member of the membership page at the start of an arena (it has at least MembershipPage::kBytes).
  Result<void> join_membership_page(JobId job, const std::string& key, WorkerId worker, std::uint32_t member);
  // Records the death of a worker on all its membership pages, and fails the gets that wait for its objects. Frees arenas that only dead
  // workers held, unless they are lasting.
  void mark_gone(WorkerId worker, const std::string& cause);

  // Stores an object's memory, or the error that each get() of it returns. `maker`: the process that filled the memory, or id 0 if that is
  // gone. While the process lives, the memory counts as its usage. nullopt, for a replica: the memory counts as no process's usage, and
  // never moves into a file.
  Result<void> put(JobId job, ObjectId id, Result<Fd> memory, std::optional<WorkerId> maker = std::nullopt);
  using Got = std::function<void(Result<Fd>)>;
  // Calls `got` with a duplicate descriptor, at once or after the put. If the job ends first, `got` gets NotFound. If `owner`, the
  // process that has to put the object, is gone, `got` gets Unavailable/OwnerDied.
  void get(JobId job, ObjectId id, WorkerId owner, Got got);
  bool has(JobId job, ObjectId id) const { return objects_.contains({job, id}); }
  // Calls `see` for every stored object and every stored error.
  void each_object(const std::function<void(JobId job, ObjectId id, const Result<Fd>& memory, std::uint64_t bytes)>& see) const {
    for (const auto& [key, object] : objects_) see(key.first, key.second, object.memory, object.bytes);
  }
  void drop(JobId job, ObjectId id);
  // Replaces an object's memory by a file with the same bytes. No effect if the object is absent or in a file already. Returns
  // InvalidArgument if `file` is no file or has another size; the object then stays in memory.
  Result<void> move(JobId job, ObjectId id, Fd file);
  // The least recently put or checked large object in memory without readers. `num_checks` limits the number of checks, and receives the
  // checks left over. Idle::memory is a duplicate.
  struct Idle {
    JobId job;
    ObjectId id;
    Fd memory;
    std::uint64_t bytes = 0;
  };
  std::optional<Idle> next_idle(std::size_t& num_checks);
  // Replaces the object's memory by `file`, to which the node has written it. Returns false if the object is gone or has readers by now.
  bool move_idle(JobId job, ObjectId id, Fd file);
  // The bytes of those objects that are in files because of move_idle().
  std::uint64_t filed_bytes() const { return filed_bytes_; }
  // The bytes of large objects in memory whose makers are gone, so that they count as no process's usage.
  std::uint64_t orphaned_bytes() const { return orphaned_bytes_; }
  // Drops an object without references. Later puts of it are ignored, and gets fail with Unavailable/ObjectFreed, as long as the id is
  // remembered (Options::max_freed).
  void free(JobId job, ObjectId id);
  bool freed(JobId job, ObjectId id) const { return freed_.contains({job, id}); }

  // Frees everything of the job. Later calls for this job, such as a put under way, return NotFound/JobEnded.
  void end_job(JobId job);
  bool ended(JobId job) const { return ended_.contains(job); }

  std::uint64_t bytes() const { return bytes_; }
  std::size_t num_entries() const { return arenas_.size() + objects_.size(); }

 private:
  struct Membership {
    WorkerId worker;
    std::uint32_t member;
  };
  struct Arena {
    Fd memory;
    std::uint64_t bytes = 0;
    std::multiset<WorkerId> holders;
    std::optional<runtime::Mapping> membership_page;
    std::vector<Membership> members;
    bool lasting = false;
  };
  struct Object {
    Result<Fd> memory;
    std::uint64_t bytes = 0;
    WorkerId maker = {};
    std::uint64_t order = 0;  // key in movable_; 0: small, in a file, or without a maker
    bool orphan = false;
    bool filed = false;
    Result<Fd> handed_out() const;
  };
  using Key = std::pair<JobId, ObjectId>;
  struct Waiting {
    WorkerId owner;
    Got got;
  };
  std::vector<Got> take_waiting(const std::function<bool(JobId job, const Waiting&)>& which);
  static Error no_place();
  Result<void> has_place() const;
  Result<void> admit(JobId job, std::uint64_t bytes) const;
  using Objects = std::map<std::pair<JobId, ObjectId>, Object>;
  Objects::iterator erase(Objects::iterator it);
  Result<void> may_hold(WorkerId worker) const;
  void held_no_more(WorkerId worker, std::uint64_t bytes);
  void join_group(JobId job, const std::string& key, WorkerId worker);
  void leave_groups(WorkerId worker);
  void settled(Objects::iterator it);  // the object is no longer movable: removes it from the sums and maps of movable ones

  Options options_;
  std::map<std::pair<JobId, std::string>, Arena> arenas_;
  struct Held {
    std::size_t arenas = 0;
    std::uint64_t bytes = 0;
    void add(std::uint64_t more) {
      ++arenas;
      bytes += more;
    }
  };
  std::map<WorkerId, Held> held_;  // by living worker; an arena counts as often as the worker has opened it
  std::map<std::pair<JobId, std::string>, std::set<WorkerId>> groups_;  // living workers that have opened lasting arenas, by their group
  Objects objects_;
  std::multimap<std::pair<JobId, ObjectId>, Waiting> waiting_;
  std::uint64_t bytes_ = 0, orphaned_bytes_ = 0, filed_bytes_ = 0;
  std::map<std::uint64_t, std::pair<JobId, ObjectId>> movable_;  // least recently put or checked first
  std::uint64_t next_order_ = 1;
  std::set<std::pair<WorkerId, Key>> by_maker_;  // movable objects of living makers
  std::set<JobId> ended_;                        // ended jobs that are remembered
  std::deque<JobId> ended_order_;
  std::set<Key> refused_;  // objects for which the table had no room; at most max_entries
  std::set<Key> freed_;
  std::deque<Key> freed_order_;  // oldest first
};

}  // namespace shoal::storage
