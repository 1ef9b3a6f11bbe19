#include "storage/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/process/memory_limit.h"
#include "runtime/shm/readers.h"

namespace shoal::storage {

namespace {

// The memory that is available now. A reading takes several files, so each one is kept for 20 ms at least, and for 50 times its own
// duration.
class Available {
 public:
  std::uint64_t operator()() {
    const auto begun = std::chrono::steady_clock::now();
    if (begun < again_) return bytes_;
    bytes_ = runtime::machine_memory().available;
    const auto now = std::chrono::steady_clock::now();
    again_ = now + std::max<std::chrono::steady_clock::duration>(std::chrono::milliseconds(20), 50 * (now - begun));
    return bytes_;
  }

 private:
  std::chrono::steady_clock::time_point again_{};
  std::uint64_t bytes_ = 0;
};

Error owner_died(const std::string& cause) {
  return unavailable("the process that should make this object is gone: " + cause).with_reason("OwnerDied");
}

Error object_freed() {
  return unavailable("this object was freed, because no reference to it was left")
      .with_reason("ObjectFreed")
      .with_hint("keep a reference to it; a reference that was pickled by hand counts only while the pickling process lives");
}

Error job_ended() { return not_found("the job has ended").with_reason("JobEnded"); }

}  // namespace

MemoryTable::MemoryTable(Options options) : options_(std::move(options)) {
  if (!options_.available_bytes) options_.available_bytes = Available();
}

Error MemoryTable::no_place() { return resource_exhausted("this node has too many arenas and objects"); }

Result<void> MemoryTable::has_place() const {
  if (num_entries() >= options_.max_entries) return fail(no_place());
  return {};
}

Result<void> MemoryTable::admit(JobId job, std::uint64_t bytes) const {
  if (ended_.contains(job)) return fail(job_ended());
  SHOAL_OK(has_place());
  if (options_.spare_bytes == 0) return {};
  const std::uint64_t available = options_.available_bytes();
  if (bytes > available || available - bytes < options_.spare_bytes) {
    return fail(
        resource_exhausted(fmt::format("the node has no room for {} MiB of shared memory: {} MiB are available, of which {} stay free",
                                       bytes >> 20, available >> 20, options_.spare_bytes >> 20))
            .with_reason("OutOfMemory")
            .with_hint("use a smaller model or batch, more nodes, or free memory on this machine"));
  }
  return {};
}

Result<void> MemoryTable::may_hold(WorkerId worker) const {
  const auto it = held_.find(worker);
  if (it == held_.end()) return {};
  const Held& held = it->second;
  const std::size_t least = options_.min_arenas_of_worker;
  const std::size_t most = std::clamp(least + held.bytes / options_.bytes_of_arena, least, std::max(least, options_.max_arenas / 2));
  if (held.arenas < most) return {};
  const bool few_descriptors = most >= options_.max_arenas / 2;
  return fail(resource_exhausted(fmt::format("process {} holds {} arenas with {} KiB, and may hold no more", to_string(worker), held.arenas,
                                             held.bytes >> 10))
                  .with_reason("TooManyArenas")
                  .with_hint(std::string("wrap larger modules, so that the model has fewer units") +
                             (few_descriptors ? ", or raise the node's limit of descriptors (ulimit -n)" : "")));
}

void MemoryTable::held_no_more(WorkerId worker, std::uint64_t bytes) {
  const auto it = held_.find(worker);
  if (it == held_.end()) return;
  it->second.bytes -= bytes;
  if (--it->second.arenas == 0) held_.erase(it);
}

Result<MemoryTable::Opened> MemoryTable::open(JobId job, const std::string& key, std::uint64_t bytes, WorkerId worker, bool lasting) {
  const auto it = arenas_.find({job, key});
  if (it != arenas_.end()) {
    if (bytes != kAsItIs && it->second.bytes != bytes) {
      return fail(
          invalid_argument(fmt::format("arena {} has {} bytes, but another process opened it with {}: do all ranks build the same model?",
                                       key, bytes, it->second.bytes)));
    }
    SHOAL_OK(may_hold(worker));
    SHOAL_TRY(Fd copy, runtime::duplicate(it->second.memory));
    it->second.holders.insert(worker);
    held_[worker].add(it->second.bytes);
    it->second.lasting |= lasting;
    if (lasting) join_group(job, key, worker);
    return Opened{std::move(copy), false};
  }
  if (bytes == kAsItIs) return fail(not_found("this node has no arena " + key));
  SHOAL_OK(may_hold(worker));
  if (arenas_.size() >= options_.max_arenas) {
    return fail(
        resource_exhausted(fmt::format("the node has {} arenas, and room for no more", arenas_.size())).with_reason("TooManyArenas"));
  }
  SHOAL_OK(admit(job, bytes));
  SHOAL_TRY(Fd memory, runtime::make_memory("shoal:" + key.substr(0, 200), bytes));
  SHOAL_TRY(Fd copy, runtime::duplicate(memory));
  arenas_[{job, key}] = Arena{std::move(memory), bytes, {worker}, {}, {}, lasting};
  held_[worker].add(bytes);
  if (lasting) join_group(job, key, worker);
  bytes_ += bytes;
  return Opened{std::move(copy), true};
}

void MemoryTable::drop(JobId job, const std::string& key, WorkerId worker) {
  const auto it = arenas_.find({job, key});
  if (it == arenas_.end()) return;
  auto& holders = it->second.holders;
  if (const auto holder = holders.find(worker); holder != holders.end()) {
    holders.erase(holder);
    held_no_more(worker, it->second.bytes);
  }
  if (!holders.empty()) return;
  bytes_ -= it->second.bytes;
  arenas_.erase(it);
}

Result<void> MemoryTable::join_membership_page(JobId job, const std::string& key, WorkerId worker, std::uint32_t member) {
  const auto it = arenas_.find({job, key});
  if (it == arenas_.end()) return fail(not_found("this node has no arena " + key));
  Arena& arena = it->second;
  if (arena.bytes < runtime::MembershipPage::kBytes || member >= runtime::MembershipPage::kMaxMembers) {
    return fail(invalid_argument(fmt::format("arena {} has no place for member {}", key, member)));
  }
  if (!arena.membership_page) {
    SHOAL_TRY(arena.membership_page, runtime::map(arena.memory, runtime::MembershipPage::kBytes, runtime::Access::kReadWrite));
  }
  arena.members.push_back({worker, member});
  return {};
}

void MemoryTable::mark_gone(WorkerId worker, const std::string& cause) {
  for (auto it = arenas_.begin(); it != arenas_.end();) {
    Arena& arena = it->second;
    for (const auto& m : arena.members) {
      if (m.worker == worker) runtime::MembershipPage(arena.membership_page->data()).mark_gone(m.member, cause);
    }
    if (arena.holders.erase(worker) > 0 && arena.holders.empty() && !arena.lasting) {
      bytes_ -= arena.bytes;
      it = arenas_.erase(it);
    } else {
      ++it;
    }
  }
  held_.erase(worker);
  leave_groups(worker);
  for (auto it = by_maker_.lower_bound({worker, {}}); it != by_maker_.end() && it->first == worker; it = by_maker_.erase(it)) {
    Object& object = objects_.at(it->second);
    object.orphan = true;
    orphaned_bytes_ += object.bytes;
  }
  for (auto& got : take_waiting([&](JobId, const Waiting& w) { return w.owner == worker; })) got(fail(owner_died(cause)));
}

void MemoryTable::join_group(JobId job, const std::string& key, WorkerId worker) {
  const auto end = key.find("//");
  if (end != std::string::npos) groups_[{job, key.substr(0, end + 2)}].insert(worker);
}

void MemoryTable::leave_groups(WorkerId worker) {
  for (auto group = groups_.begin(); group != groups_.end();) {
    if (group->second.erase(worker) == 0 || !group->second.empty()) {
      ++group;
      continue;
    }
    for (auto it = arenas_.begin(); it != arenas_.end();) {
      Arena& arena = it->second;
      const bool its = it->first.first == group->first.first && it->first.second.starts_with(group->first.second);
      if (its) arena.lasting = false;
      if (its && arena.holders.empty()) {
        bytes_ -= arena.bytes;
        it = arenas_.erase(it);
      } else {
        ++it;
      }
    }
    group = groups_.erase(group);
  }
}

std::vector<MemoryTable::Got> MemoryTable::take_waiting(const std::function<bool(JobId, const Waiting&)>& which) {
  std::vector<Got> out;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (which(it->first.first, it->second)) {
      out.push_back(std::move(it->second.got));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  return out;
}

Result<Fd> MemoryTable::Object::handed_out() const {
  if (!memory) return fail(memory.error());
  return order != 0 ? runtime::reader_of(*memory) : runtime::duplicate(*memory);
}

// The table opens movable objects as a keeper, not as a reader (runtime/shm/readers.h), so that has_readers() shows whether processes use
// them.
Result<void> MemoryTable::put(JobId job, ObjectId id, Result<Fd> memory, std::optional<WorkerId> maker) {
  if (ended_.contains(job)) return fail(job_ended());
  if (freed(job, id)) return {};  // the object was freed before its put arrived
  if (objects_.contains({job, id})) return fail(invalid_argument("object " + to_string(id) + " exists already"));
  std::size_t bytes = 0;
  const auto admitted = [&]() -> Result<void> {
    SHOAL_TRY(bytes, runtime::memory_bytes(*memory));
    return has_place();  // no check for room: the memory's pages exist already
  };
  if (memory) {
    if (const auto checked = admitted(); !checked) memory = fail(checked.error());
  }
  Object object{std::move(memory)};
  if (object.memory) object.bytes = bytes;
  if (object.memory && maker && bytes >= options_.movable_bytes && runtime::is_memory(*object.memory)) {
    if (auto keeper = runtime::keeper_of(*object.memory)) {
      object.memory = std::move(keeper);
      object.maker = *maker;
      object.order = next_order_++;
    }
  }
  const auto [first, last] = waiting_.equal_range({job, id});
  std::vector<Got> waiting;
  for (auto it = first; it != last; ++it) waiting.push_back(std::move(it->second.got));
  waiting_.erase(first, last);
  for (auto& got : waiting) got(object.handed_out());
  const Result<void> out = object.memory ? Result<void>() : fail(object.memory.error());
  if (num_entries() >= options_.max_entries) {  // waiting gets are served, but the object is not stored
    if (refused_.size() < options_.max_entries) refused_.insert({job, id});
    return out;
  }
  bytes_ += object.bytes;
  if (object.order != 0) {
    movable_.emplace(object.order, std::pair{job, id});
    object.orphan = !*maker;
    if (object.orphan) {
      orphaned_bytes_ += object.bytes;
    } else {
      by_maker_.emplace(object.maker, Key{job, id});
    }
  }
  objects_.emplace(std::pair{job, id}, std::move(object));  // an error is stored as well, for later gets
  return out;
}

void MemoryTable::get(JobId job, ObjectId id, WorkerId owner, Got got) {
  if (const auto it = objects_.find({job, id}); it != objects_.end()) return got(it->second.handed_out());
  if (ended_.contains(job)) return got(fail(job_ended()));
  if (freed(job, id)) return got(fail(object_freed()));
  // Once refused_ is full, some refused objects are not in it: then every unknown object counts as refused.
  if (refused_.contains({job, id}) || refused_.size() >= options_.max_entries) return got(fail(no_place()));
  if (waiting_.size() >= options_.max_entries) return got(fail(resource_exhausted("too many requests wait for objects on this node")));
  waiting_.emplace(std::pair{job, id}, Waiting{owner, std::move(got)});
}

void MemoryTable::drop(JobId job, ObjectId id) {
  const auto it = objects_.find({job, id});
  if (it != objects_.end()) erase(it);
  refused_.erase({job, id});
}

MemoryTable::Objects::iterator MemoryTable::erase(Objects::iterator it) {
  bytes_ -= it->second.bytes;
  if (it->second.filed) filed_bytes_ -= it->second.bytes;
  settled(it);
  return objects_.erase(it);
}

void MemoryTable::settled(Objects::iterator it) {
  Object& object = it->second;
  if (object.order != 0) {
    movable_.erase(object.order);
    by_maker_.erase({object.maker, it->first});
  }
  if (object.orphan) orphaned_bytes_ -= object.bytes;
  object.order = 0;
  object.orphan = false;
}

Result<void> MemoryTable::move(JobId job, ObjectId id, Fd file) {
  const auto it = objects_.find({job, id});
  if (it == objects_.end() || !it->second.memory || !runtime::is_memory(*it->second.memory)) return {};
  SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(file));
  if (runtime::is_memory(file)) return fail(invalid_argument("a moved object does not lie in a file"));
  if (bytes != it->second.bytes) {
    return fail(invalid_argument(fmt::format("a moved object has a file of {} bytes instead of {}", bytes, it->second.bytes)));
  }
  settled(it);
  it->second.memory = std::move(file);
  return {};
}

std::optional<MemoryTable::Idle> MemoryTable::next_idle(std::size_t& num_checks) {
  while (num_checks > 0 && !movable_.empty()) {
    --num_checks;
    const auto [order, key] = *movable_.begin();
    Object& object = objects_.at(key);
    if (!runtime::has_readers(*object.memory)) {
      auto copy = runtime::duplicate(*object.memory);
      if (!copy) return std::nullopt;
      return Idle{key.first, key.second, *std::move(copy), object.bytes};
    }
    movable_.erase(movable_.begin());
    movable_.emplace(object.order = next_order_++, key);  // now the last to be checked
  }
  return std::nullopt;
}

bool MemoryTable::move_idle(JobId job, ObjectId id, Fd file) {
  const auto it = objects_.find({job, id});
  if (it == objects_.end() || it->second.order == 0 || runtime::has_readers(*it->second.memory)) return false;
  settled(it);
  it->second.memory = std::move(file);
  it->second.filed = true;
  filed_bytes_ += it->second.bytes;
  return true;
}

void MemoryTable::free(JobId job, ObjectId id) {
  const Key key{job, id};
  drop(job, id);
  if (freed_.insert(key).second) freed_order_.push_back(key);
  if (freed_order_.size() > options_.max_freed) {
    freed_.erase(freed_order_.front());
    freed_order_.pop_front();
  }
  std::vector<Got> reported;
  const auto [first, last] = waiting_.equal_range(key);
  for (auto it = first; it != last; it = waiting_.erase(it)) reported.push_back(std::move(it->second.got));
  for (auto& got : reported) got(fail(object_freed()));
}

void MemoryTable::end_job(JobId job) {
  if (ended_.insert(job).second) ended_order_.push_back(job);
  if (ended_order_.size() > options_.max_ended_jobs) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  for (auto it = arenas_.begin(); it != arenas_.end();) {
    if (it->first.first == job) {
      bytes_ -= it->second.bytes;
      for (const WorkerId holder : it->second.holders) held_no_more(holder, it->second.bytes);
      it = arenas_.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(groups_, [job](const auto& group) { return group.first.first == job; });
  refused_.erase(refused_.lower_bound({job, {}}), refused_.upper_bound({job, ObjectId{~std::uint64_t{}}}));
  for (auto it = objects_.begin(); it != objects_.end();) {
    it = it->first.first == job ? erase(it) : std::next(it);
  }
  for (auto& got : take_waiting([&](JobId waiting_job, const Waiting&) { return waiting_job == job; })) got(fail(job_ended()));
}

}  // namespace shoal::storage
