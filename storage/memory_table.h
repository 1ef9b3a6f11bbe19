// The memory that a node owns for its jobs: arenas, opened by key and shared by many, and objects, put once and got by
// id.
//
// The node keeps the descriptor, so a worker's death frees nothing that others still map; a job's end frees all of it.
// Loop thread only.
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
#include "runtime/shm/board.h"
#include "runtime/shm/memory.h"

namespace shoal::storage {

class MemoryTable {
 public:
  struct Options {
    // Refuse arenas that would not leave this much of the machine's memory available; 0 asks nobody.
    std::uint64_t spare_bytes = 256u << 20;
    std::size_t max_entries = 1 << 20;
    std::size_t max_ended_jobs = 1000;        // remembered, lest something is put that nobody would ever drop; the oldest go first
    std::size_t max_freed = 100'000;          // objects that are remembered, likewise
    std::uint64_t movable_bytes = 128 << 10;  // from these on it is worth moving one into a file
    // How much memory the machine, or this process's control groups, have left (bytes); empty: they are asked.
    std::function<std::uint64_t()> available_bytes;
  };

  explicit MemoryTable(Options options);

  struct Opened {
    Fd memory;  // a duplicate for the one who asked
    bool created = false;
  };
  // The arena of that key, made at the first call. InvalidArgument when somebody opened it with another size,
  // ResourceExhausted with the numbers when the machine has no room.
  // Held by `worker` until it drops it.
  Result<Opened> open(JobId job, const std::string& key, std::uint64_t bytes, WorkerId worker);
  // `worker` needs it no more. Forgotten when nobody does.
  void drop(JobId job, const std::string& key, WorkerId worker);

  // Makes `worker` a member of the board at the start of an arena (it has at least Board::kBytes).
  Result<void> join_board(JobId job, const std::string& key, WorkerId worker, std::uint32_t member);
  // Writes the death of a worker on every board it is on, and tells those who wait for an object of its. What only dead workers held
  // is forgotten.
  void mark_gone(WorkerId worker, const std::string& cause);

  // A memory, or why there will be none: those who get it hear of that. `maker`: the process that filled it, which counts it as long as it
  // lives (none: it is gone). Without that it is somebody else's to keep count of, and is not moved.
  Result<void> put(JobId job, ObjectId id, Result<Fd> memory, std::optional<WorkerId> maker = std::nullopt);
  using Got = std::function<void(Result<Fd>)>;
  // Calls back with a duplicate, at once or when it is put; NotFound when the job ends first, Unavailable/OwnerDied when `owner`, who was
  // to put it, is gone.
  void get(JobId job, ObjectId id, WorkerId owner, Got got);
  bool has(JobId job, ObjectId id) const { return objects_.contains({job, id}); }
  // Every object that is there, or will never be.
  void each_object(const std::function<void(JobId job, ObjectId id, const Result<Fd>& memory, std::uint64_t bytes)>& see) const {
    for (const auto& [key, object] : objects_) see(key.first, key.second, object.memory, object.bytes);
  }
  void drop(JobId job, ObjectId id);
  // It lies in a file from now on: the same bytes. Nothing for one that is not there, or in a file already. InvalidArgument for what is no
  // such file, or one of another size; what was there stays.
  Result<void> move(JobId job, ObjectId id, Fd file);
  // A large object in memory that no process reads, of those that were put, or looked at, longest ago; `looks` is how many may be looked
  // at, and what is left of that. Its memory is a duplicate.
  struct Idle {
    JobId job;
    ObjectId id;
    Fd memory;
    std::uint64_t bytes = 0;
  };
  std::optional<Idle> next_idle(std::size_t& looks);
  // The node has written it into a file. Whether that is where it is now: not if it is not there any more, or somebody has begun to read
  // it.
  bool move_idle(JobId job, ObjectId id, Fd file);
  // Of what move_idle has moved, as long as it is there.
  std::uint64_t filed_bytes() const { return filed_bytes_; }
  // Of large objects in memory whose makers are gone: nobody else counts them.
  std::uint64_t orphaned_bytes() const { return orphaned_bytes_; }
  // Nobody wants it any more: it is dropped, not taken when it comes, and whoever gets it after all fails as Unavailable/ObjectFreed (as
  // long as that is remembered: Options::max_freed).
  void free(JobId job, ObjectId id);
  bool freed(JobId job, ObjectId id) const { return freed_.contains({job, id}); }

  // Forgets all of it. What comes later (a put may have been on its way) is refused: NotFound/JobEnded.
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
    std::optional<runtime::Mapping> board;
    std::vector<Membership> members;
  };
  struct Object {
    Result<Fd> memory;
    std::uint64_t bytes = 0;
    WorkerId maker = {};
    std::uint64_t order = 0;  // of movable_; 0: it is small, or in a file, or not ours to move
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
  void settled(Objects::iterator it);  // it is not in memory any more

  Options options_;
  std::map<std::pair<JobId, std::string>, Arena> arenas_;
  Objects objects_;
  std::multimap<std::pair<JobId, ObjectId>, Waiting> waiting_;
  std::uint64_t bytes_ = 0, orphaned_bytes_ = 0, filed_bytes_ = 0;
  std::map<std::uint64_t, std::pair<JobId, ObjectId>> movable_;  // those that were put, or looked at, longest ago first
  std::uint64_t next_order_ = 1;
  std::set<std::pair<WorkerId, Key>> made_by_;  // of these, by those that are there
  std::set<JobId> ended_;                       // jobs
  std::deque<JobId> ended_order_;
  std::set<Key> refused_;  // for which there was no place: as many at most
  std::set<Key> freed_;
  std::deque<Key> freed_order_;  // longest ago first
};

}  // namespace shoal::storage
