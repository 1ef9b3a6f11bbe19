#include "actors/session/objects/object_store.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "runtime/shm/spill_file.h"

namespace shoal::actors {

namespace {
constexpr std::uint64_t kMovedAtOnce = 64u << 20;
constexpr auto kTended = std::chrono::seconds(1);
// Pause before the other processes are asked for memory again, so that they have time to free what they were asked for.
constexpr auto kRequestInterval = std::chrono::milliseconds(100);
// When two checks for room are further apart than this, the machine stood still in between.
constexpr auto kLongPause = std::chrono::seconds(1);
// Pause between two checks whether other processes have made room.
constexpr auto kShortPause = std::chrono::milliseconds(2);
}  // namespace

// Makes room for one value, in the thread that makes the value. It first trims the pool, then spills own values, then asks others.
class ObjectStore::MakingRoom {
 public:
  MakingRoom(ObjectStore& store, std::uint64_t bytes) : store_(store), bytes_(bytes) {}
  Result<void> make();

 private:
  using Steady = std::chrono::steady_clock;
  void trim_full_pool();
  void spill_own();
  Result<void> wait_for_others();
  bool has_room();
  bool ends();
  // Memory in use on the node, and bytes in files of the other processes.
  runtime::UsageBoard::Usage others() const;
  std::uint64_t own_kept() const { return store_.usage_board_->usage(store_.place_->member).kept; }
  std::uint64_t spill_step() {
    return store_.spill(step_, [this] { return ends(); });
  }
  std::string why_not() const;
  Error full(const std::string& why) const;

  ObjectStore& store_;
  const std::uint64_t bytes_;
  const std::uint64_t limit_ = store_.usage_board_->limit();
  // A search for unread memory covers the whole pool. To keep searches rare, each step spills at least this much, and pauses last four
  // times as long as a search (has_room).
  const std::uint64_t step_ = std::max(bytes_, std::min(limit_ / 64, kMovedAtOnce));
  const Steady::time_point start_ = Steady::now();
  Steady::duration pause_ = kShortPause;
  std::optional<Error> ended_;  // why the wait ends
};

ObjectStore::~ObjectStore() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  keeper_.reset();
}

void ObjectStore::join(Place place) {
  const std::lock_guard lock(mutex_);
  words_ = std::make_shared<const runtime::Mapping>(std::move(place.membership_page));
  place_.emplace(std::move(place));
  usage_board_.emplace(words_->data());
}

Result<Fd> ObjectStore::fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) {
  SHOAL_TRY(auto again, pool_.fill_again(bytes, parts));
  if (again) return *std::move(again);
  if (usage_board_) SHOAL_OK(MakingRoom(*this, bytes).make());
  return filled(bytes, parts);
}

Result<Fd> ObjectStore::filled(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) {
  auto out = pool_.fill(bytes, parts);
  notify_waiting();
  if (pool_.num_segments() > 0) {
    const std::lock_guard lock(mutex_);
    start_keeper();
  }
  changed_.notify_all();
  return out;
}

void ObjectStore::keeps(const std::shared_ptr<SharedMemory>& memory) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() >= prune_at_) {
    std::erase_if(kept_, [](const auto& m) { return m.expired(); });
    prune_at_ = std::max<std::size_t>(64, 2 * kept_.size());
  }
  kept_.push_back(memory);
}

std::vector<std::shared_ptr<SharedMemory>> ObjectStore::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<SharedMemory>> out;
  for (const auto& m : kept_) {
    if (auto alive = m.lock()) out.push_back(std::move(alive));
  }
  return out;
}

void ObjectStore::abandon_after_fork() {
  alive_.reset();
  pool_.abandon_after_fork();
}

void ObjectStore::wanted(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::max(wanted_, bytes);
    start_keeper();
  }
  changed_.notify_all();
}

void ObjectStore::start_keeper() {
  if (!keeper_ && !ending_) keeper_ = std::make_unique<runtime::SideThread>([this] { keep(); });
}

void ObjectStore::notify_waiting() {
  if (usage_board_) usage_board_->set_kept(place_->member, pool_.bytes());
}

void ObjectStore::keep() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || wanted_ > 0 || pool_.num_segments() > 0; });
    changed_.wait_for(lock, kTended, [this] { return ending_ || wanted_ > 0; });
    if (ending_) return;
    const std::uint64_t bytes = std::exchange(wanted_, 0);
    lock.unlock();
    if (bytes == 0) {
      pool_.tend(std::chrono::steady_clock::now());
      notify_waiting();
    } else {
      const std::uint64_t trimmed = pool_.trim();
      notify_waiting();
      const auto ends = [this] {
        const std::lock_guard ending(mutex_);
        return ending_;
      };
      if (trimmed < bytes) spill(bytes - trimmed, ends);
      // Gives back the memory of values that this pool filled and spill() has moved into files.
      pool_.trim();
      notify_waiting();
    }
    lock.lock();
  }
}

bool ObjectStore::over(std::uint64_t bytes) const {
  const std::uint64_t limit = usage_board_->limit();
  return limit != 0 && usage_board_->total().kept + bytes > limit;
}

Result<void> ObjectStore::MakingRoom::make() {
  trim_full_pool();
  if (ended_) return fail(*ended_);
  if (!store_.over(bytes_)) return {};
  if (bytes_ > limit_) return fail(full("it is larger than all of that"));
  spill_own();
  return wait_for_others();
}

// Gives memory of a full pool back, even if the node has room, so that the pool can keep the memory of the new value. If all memories of
// the pool are in use, the new memory is neither kept nor counted.
void ObjectStore::MakingRoom::trim_full_pool() {
  if (limit_ == 0 || !store_.pool_.full()) return;
  store_.pool_.trim();
  if (store_.pool_.full() && store_.spill(kMovedAtOnce, [this] { return ends(); }) > 0) store_.pool_.trim();
  store_.notify_waiting();
}

// Spills this process's own values until there is room. Stops after two steps that free nothing: other processes still hold that memory.
void ObjectStore::MakingRoom::spill_own() {
  for (int in_vain = 0; in_vain < 2 && !has_room();) {
    const std::uint64_t before = store_.usage_board_->total().kept;
    if (ends() || spill_step() == 0) break;
    in_vain = has_room() || store_.usage_board_->total().kept < before ? 0 : in_vain + 1;
  }
}

// Waits until other processes make room. Patience counts only the time in which this thread ran, not gaps when the machine stood still.
Result<void> ObjectStore::MakingRoom::wait_for_others() {
  auto checked = Steady::now(), requested = checked - kRequestInterval;
  Steady::duration waited{};
  // Spilling memory that other processes hold frees nothing: after two such steps, the next one comes only after kLongPause.
  int in_vain = 0;
  auto moved = checked;
  for (auto before = others(); !ended_ && !has_room();) {
    const auto now = Steady::now();
    const auto total = others();
    const bool gave = total.kept < before.kept, requests = now - requested >= kRequestInterval;
    waited += std::min<Steady::duration>(now - std::exchange(checked, now), kLongPause);
    if (gave || total.spilled > before.spilled) waited = {};
    before = total;
    if (ends()) break;
    if (waited > store_.place_->patience) return fail(full(why_not()));
    if (requests) {
      store_.place_->request_room(bytes_);
      requested = now;
    }
    std::this_thread::sleep_for(pause_);
    if (in_vain < 2 ? requests || gave : now - moved > kLongPause) {
      moved = now;
      const std::uint64_t own = own_kept();
      spill_step();
      (void)has_room();
      in_vain = own_kept() < own ? 0 : in_vain + 1;
    }
  }
  if (ended_) return fail(*ended_);
  return {};
}

bool ObjectStore::MakingRoom::has_room() {
  if (!store_.over(bytes_)) return true;
  const auto begun = Steady::now();
  store_.pool_.trim();
  store_.notify_waiting();
  pause_ = std::max<Steady::duration>(kShortPause, 4 * (Steady::now() - begun));
  return !store_.over(bytes_);
}

bool ObjectStore::MakingRoom::ends() {
  if (ended_) return true;
  const Place& place = *store_.place_;
  if (place.interrupted && place.interrupted()) {
    ended_ = cancelled("interrupted by a signal").with_reason("Interrupted");
  } else if (Steady::now() - start_ > place.longest) {
    ended_ = full("what others give back is taken by others again");
  }
  return ended_.has_value();
}

runtime::UsageBoard::Usage ObjectStore::MakingRoom::others() const {
  auto out = store_.usage_board_->total();
  out.spilled -= std::min(out.spilled, store_.usage_board_->usage(store_.place_->member).spilled);
  return out;
}

std::string ObjectStore::MakingRoom::why_not() const {
  const std::lock_guard lock(store_.mutex_);
  if (store_.no_file_) return store_.no_file_->message();
  if (const auto disk = runtime::room_on_disk(bytes_, store_.place_->folder); !disk) return disk.error().message();
  return "processes read all remaining objects";
}

Error ObjectStore::MakingRoom::full(const std::string& why) const {
  const auto total = store_.usage_board_->total();
  return resource_exhausted(fmt::format("no room for an object of {} bytes: {} of the node's {} bytes for objects are taken ({} here), "
                                        "{} lie in files; {}",
                                        bytes_, total.kept, limit_, own_kept(), total.spilled, why))
      .with_reason("ObjectStoreFull")
      .with_hint("release references and arrays that are not needed, or start with a larger object_store_memory");
}

// Spills values, least recently used first, until `bytes` were moved, none are left, or `stop` returns true. Returns the bytes moved.
std::uint64_t ObjectStore::spill(std::uint64_t bytes, const std::function<bool()>& stop) {
  const auto self = std::this_thread::get_id();
  // This thread is spilling already: `stop` ran a signal handler that made a value. It must not wait for itself.
  if (spills_ == self) return 0;
  std::unique_lock one(spilling_, std::defer_lock);
  while (!one.try_lock()) {
    if (stop()) return 0;
    std::this_thread::sleep_for(kShortPause);
  }
  struct Spills {
    explicit Spills(std::atomic<std::thread::id>& t, std::thread::id self) : thread(t) { thread = self; }
    ~Spills() { thread = std::thread::id(); }
    std::atomic<std::thread::id>& thread;
  } const spills(spills_, self);
  {
    const std::lock_guard lock(mutex_);
    if (!place_) return 0;
  }
  auto all = this->all();
  std::erase_if(all, [](const auto& m) { return m->spilled(); });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->last_used() < b->last_used(); });
  std::uint64_t out = 0;
  for (auto& memory : all) {
    if (out >= bytes || stop()) break;
    const auto moved = memory->spill(place_->folder, stop);
    if (!moved && moved.error().code() == Code::kCancelled) break;
    {
      const std::lock_guard lock(mutex_);
      no_file_ = moved ? std::nullopt : std::optional(moved.error());
    }
    if (!moved) break;
    if (!*moved) continue;
    out += memory->bytes();
    usage_board_->add_spilled(place_->member, static_cast<std::int64_t>(memory->bytes()));
    // The last holder of a value may release it in another thread while this object is destroyed.
    memory->on_gone([words = words_, member = place_->member, bytes = memory->bytes(), alive = std::weak_ptr<bool>(alive_)] {
      if (alive.lock()) runtime::UsageBoard(words->data()).add_spilled(member, -static_cast<std::int64_t>(bytes));
    });
    if (const auto object = memory->published()) place_->moved(*object, memory->descriptor());
    memory.reset();
  }
  return out;
}

}  // namespace shoal::actors
