#include "runtime/transport/shm/shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr auto kLook = std::chrono::milliseconds(50);      // interval at which a sleeping wait calls look()
constexpr auto kDepartureGrace = std::chrono::seconds(1);  // wait for the cause of death of a rank that has left

class ShmWindow final : public Window {
 public:
  ShmWindow(std::shared_ptr<Mapping> mapping, std::vector<std::size_t> sizes, std::vector<std::size_t> begins, int rank)
      : mapping_(std::move(mapping)), sizes_(std::move(sizes)), begins_(std::move(begins)), rank_(static_cast<std::size_t>(rank)) {}
  std::span<std::byte> own() override { return part(rank_); }
  std::size_t bytes(int rank) const override { return sizes_[static_cast<std::size_t>(rank)]; }
  std::span<std::byte> part(std::size_t rank) { return mapping_->span().subspan(begins_[rank], sizes_[rank]); }

 private:
  const std::shared_ptr<Mapping> mapping_;
  const std::vector<std::size_t> sizes_, begins_;
  const std::size_t rank_;
};

}  // namespace

class ShmCommunicator::ShmWork final : public Work {
 public:
  ShmWork(std::shared_ptr<ShmCommunicator> communicator, OperationPtr operation)
      : communicator_(std::move(communicator)), operation_(std::move(operation)) {}
  // Also after a failure, done() implies that the operation uses its buffers no more.
  bool done() const override { return operation_->done() || (communicator_->failed() && communicator_->settle(operation_)); }
  Result<void> wait() override { return communicator_->wait(operation_); }

 private:
  const std::shared_ptr<ShmCommunicator> communicator_;
  const OperationPtr operation_;
};

// ---- setup and leaving -------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<ShmCommunicator>> ShmCommunicator::make(Options options, std::shared_ptr<Clock> clock) {
  return make_generation(std::move(options), std::move(clock), 1);
}

Result<std::shared_ptr<ShmCommunicator>> ShmCommunicator::make_generation(Options options, std::shared_ptr<Clock> clock,
                                                                          std::uint64_t generation) {
  if (options.world_size < 1 || options.world_size > ShmMemory::kMaxRanks) {
    return fail(invalid_argument(fmt::format("a group of {} ranks: there may be 1 to {}", options.world_size, ShmMemory::kMaxRanks)));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return fail(invalid_argument(fmt::format("rank {} of a group of {}", options.rank, options.world_size)));
  }
  if (options.chunk_bytes < 64 * static_cast<std::size_t>(options.world_size) || options.channel_bytes == 0) {
    return fail(invalid_argument(
        fmt::format("chunks of {} bytes are too small for {} ranks: 64 for each", options.chunk_bytes, options.world_size)));
  }
  const ShmMemory::Shape shape{options.world_size, options.chunk_bytes, options.channel_bytes};
  SHOAL_TRY(auto mapping, options.memory(fmt::format("{}/{}", options.name, generation), ShmMemory::bytes(shape), options.rank));
  std::shared_ptr<ShmCommunicator> made(new ShmCommunicator(std::move(options), std::move(clock), std::move(mapping), generation));
  made->memory_.rank(made->rank()).present.store(1, std::memory_order_release);
  made->membership_page_.notify_all();
  return made;
}

ShmCommunicator::ShmCommunicator(Options options, std::shared_ptr<Clock> clock, std::shared_ptr<Mapping> mapping, std::uint64_t generation)
    : pid_(getpid()),
      options_(std::move(options)),
      clock_(std::move(clock)),
      mapping_(std::move(mapping)),
      generation_(generation),
      memory_(mapping_->data(), {options_.world_size, options_.chunk_bytes, options_.channel_bytes}),
      membership_page_(memory_.membership_page()),
      ledger_(memory_.ledger(), membership_page_, options_.rank, options_.world_size),
      sends_(static_cast<std::size_t>(options_.world_size)),
      receives_(static_cast<std::size_t>(options_.world_size)) {}

ShmCommunicator::~ShmCommunicator() {
  if (forked()) {
    (void)lane_.release();  // the thread does not exist in the child; the parent is still a rank
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  membership_page_.notify_all();
  lane_.reset();
  leave();
}

void ShmCommunicator::leave() {
  if (forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
  }
  ledger_.leave();
}

bool ShmCommunicator::forked() const { return getpid() != pid_; }

std::optional<Error> ShmCommunicator::unusable() const {
  if (forked()) {
    return unavailable("this process was forked from one that is a rank of the group")
        .with_reason("Forked")
        .with_hint("make the calls in the parent");
  }
  if (gone_) return unavailable("this communicator was left").with_reason("Closed");
  return std::nullopt;
}

void ShmCommunicator::abort(const Error& cause) { ledger_.fail(cause); }

std::optional<Error> ShmCommunicator::failed() const { return ledger_.failure(); }

std::vector<int> ShmCommunicator::lost() const {
  std::vector<int> out;
  for (int r = 0; r < world_size(); ++r) {
    if (membership_page_.is_gone(static_cast<std::uint32_t>(r)) || (r != rank() && ledger_.has_left(r))) out.push_back(r);
  }
  return out;
}

Result<std::shared_ptr<Communicator>> ShmCommunicator::reform() {
  if (auto error = unusable()) return fail(*std::move(error));
  abort(unavailable(fmt::format("rank {} forms the group again, without the ranks that are lost", rank())).with_reason("Reformed"));
  std::uint64_t mask = 0;
  const auto without = lost();
  for (int r = 0; r < world_size(); ++r) {
    if (std::find(without.begin(), without.end(), r) == without.end()) mask |= std::uint64_t{1} << r;
  }
  std::uint64_t agreed = 0;
  if (memory_.survivors().compare_exchange_strong(agreed, mask)) agreed = mask;
  if ((agreed >> rank() & 1) == 0) {
    return fail(unavailable(fmt::format("the group was formed again without rank {}", rank())).with_reason("Reformed"));
  }
  Options options = options_;
  options.rank = 0;
  options.world_size = 0;
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if ((agreed >> r & 1) == 0) continue;
    if (r < rank()) ++options.rank;
    ++options.world_size;
    ranks.push_back(r);
  }
  SHOAL_TRY(auto made, make_generation(std::move(options), clock_, generation_ + 1));
  made->former_ = mapping_;
  made->former_ranks_ = std::move(ranks);
  return std::shared_ptr<Communicator>(std::move(made));
}

// ---- submitting --------------------------------------------------------------------------------------------------------------------

WorkPtr ShmCommunicator::submitted(std::unique_lock<std::mutex> lock, OperationPtr operation) {
  const auto self = std::this_thread::get_id();
  if (submitter_ == std::thread::id()) submitter_ = self;
  several_submitters_ |= submitter_ != self;
  queues_changed_.store(true, std::memory_order_release);
  if (operation->call().background) {
    ++num_background_;
    if (!lane_) lane_ = std::make_unique<SideThread>([this] { run_lane(); });
  }
  const bool wake = driving_;
  lock.unlock();
  changed_.notify_all();
  if (wake) membership_page_.notify_all();  // wakes the driving thread
  return std::make_shared<ShmWork>(shared_from_this(), std::move(operation));
}

WorkPtr ShmCommunicator::submit_collective(CollectiveSpec spec, Call call) {
  std::unique_lock lock(mutex_);
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto operation = std::make_shared<ShmCollective>(memory_, ledger_, rank(), ++sequence_, std::move(spec), std::move(call), clock_->now());
  if (failed()) return failed_work(cause_for(*operation));
  collectives_.push_back(operation);
  return submitted(std::move(lock), std::move(operation));
}

WorkPtr ShmCommunicator::submit_message(int from, int to, MutableBytes data, DType dtype, std::uint32_t tag, Call call) {
  std::unique_lock lock(mutex_);
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto operation = std::make_shared<ShmMessage>(memory_, rank(), from, to, data, dtype, tag, std::move(call), clock_->now());
  if (failed()) return failed_work(cause_for(*operation));
  auto& queue = from == rank() ? sends_[static_cast<std::size_t>(to)] : receives_[static_cast<std::size_t>(from)];
  queue.push_back(operation);
  return submitted(std::move(lock), std::move(operation));
}

WorkPtr ShmCommunicator::all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) {
  if (auto ok = check_all_gather(*this, input.size(), output.size(), counts, dtype); !ok) return failed_work(ok.error());
  return submit_collective({Collective::kAllGather, input, output, {counts.begin(), counts.end()}, {}, dtype}, std::move(call));
}

WorkPtr ShmCommunicator::reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) {
  if (auto ok = check_reduce_scatter(*this, input.size(), output.size(), counts, dtype, op); !ok) return failed_work(ok.error());
  return submit_collective({Collective::kReduceScatter, input, output, {counts.begin(), counts.end()}, {}, dtype, op}, std::move(call));
}

WorkPtr ShmCommunicator::all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) {
  if (auto ok = check_all_reduce(input.size(), output.size(), dtype, op); !ok) return failed_work(ok.error());
  return submit_collective({Collective::kAllReduce, input, output, {}, {}, dtype, op}, std::move(call));
}

WorkPtr ShmCommunicator::broadcast(MutableBytes data, int root, DType dtype, Call call) {
  if (auto ok = check_peer(*this, root, "root", true); !ok) return failed_work(ok.error());
  return submit_collective({Collective::kBroadcast, {}, data, {}, {}, dtype, ReduceOp::kSum, root}, std::move(call));
}

WorkPtr ShmCommunicator::all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype,
                                    Call call) {
  if (auto ok = check_all_to_all(*this, input.size(), output.size(), send_counts, receive_counts, dtype); !ok)
    return failed_work(ok.error());
  return submit_collective({Collective::kAllToAll,
                            input,
                            output,
                            {send_counts.begin(), send_counts.end()},
                            {receive_counts.begin(), receive_counts.end()},
                            dtype},
                           std::move(call));
}

WorkPtr ShmCommunicator::barrier(Call call) { return submit_collective({}, std::move(call)); }

WorkPtr ShmCommunicator::send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(*this, to, "destination", false); !ok) return failed_work(ok.error());
  // The const_cast is safe: a send only reads. ShmMessage has one span type for both directions.
  return submit_message(rank(), to, {const_cast<std::byte*>(data.data()), data.size()}, dtype, tag, std::move(call));
}

WorkPtr ShmCommunicator::receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(*this, from, "source", false); !ok) return failed_work(ok.error());
  return submit_message(from, rank(), data, dtype, tag, std::move(call));
}

Result<std::shared_ptr<Window>> ShmCommunicator::window(std::size_t bytes, Call call) {
  const auto world = static_cast<std::size_t>(world_size());
  std::vector<std::size_t> begins(world), counts(world, sizeof(std::size_t));
  if (call.label.empty()) call.label = "window";
  std::string name;
  // Members hold the sizes, because an interrupted wait leaves the all_gather under way, which keeps using them.
  std::vector<std::size_t>* gathered = nullptr;
  {
    const std::lock_guard lock(mutex_);
    name = fmt::format("{}/{}/window-{}", options_.name, generation_, num_windows_++);
    gathered = &window_sizes_.emplace_back(world + 1);
  }
  gathered->front() = bytes;
  const auto own = std::span(*gathered).first(1), all = std::span(*gathered).subspan(1);
  SHOAL_OK(all_gather(std::as_bytes(own), std::as_writable_bytes(all), counts, DType::kUInt64, call)->wait());
  std::vector<std::size_t> sizes(all.begin(), all.end());
  std::size_t total = 0;
  for (std::size_t r = 0; r < world; ++r) {
    begins[r] = total;
    total += (sizes[r] + 63) / 64 * 64;
  }
  SHOAL_TRY(auto mapping, options_.memory(name, std::max<std::size_t>(total, 64), -1));
  SHOAL_OK(barrier(call)->wait());  // keeps the mapping until all ranks have mapped it
  return std::shared_ptr<Window>(std::make_shared<ShmWindow>(std::move(mapping), std::move(sizes), std::move(begins), rank()));
}

Result<void> ShmCommunicator::read(Window& window, int from, std::size_t offset, MutableBytes out) {
  SHOAL_OK(check_peer(*this, from, "source", true));
  if (const auto error = failed()) return fail(*error);
  auto* const shared = dynamic_cast<ShmWindow*>(&window);
  if (shared == nullptr) return fail(invalid_argument("the window belongs to another communicator"));
  const auto part = shared->part(static_cast<std::size_t>(from));
  if (offset > part.size() || out.size() > part.size() - offset) {
    return fail(invalid_argument(
        fmt::format("bytes {} to {} of rank {}'s part of a window, which has {}", offset, offset + out.size(), from, part.size())));
  }
  if (!out.empty()) std::memcpy(out.data(), part.data() + offset, out.size());
  return {};
}

// ---- progress ----------------------------------------------------------------------------------------------------------------------

Result<void> ShmCommunicator::wait(const OperationPtr& operation) {
  if (operation->done()) return {};
  if (forked()) return fail(*unusable());
  std::unique_lock lock(mutex_);
  ++program_waits_;
  Result<void> out;
  while (!operation->done()) {
    if (driving_) {
      changed_.wait_for(lock, kLook);
      lock.unlock();
      const bool stop = options_.interrupted && options_.interrupted();
      lock.lock();
      if (stop) {
        out = fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
        break;
      }
      continue;
    }
    driving_ = true;
    lock.unlock();
    out = drive(operation, true);
    lock.lock();
    driving_ = false;
    changed_.notify_all();
    if (!out || failed()) break;
  }
  --program_waits_;
  if (!out || operation->done()) return out;
  operation->abandon();
  queues_changed_.store(true, std::memory_order_release);
  return fail(cause_for(*operation));
}

bool ShmCommunicator::settle(const OperationPtr& operation) {
  const auto ended = wait(operation);
  return ended || ended.error().reason() != "Interrupted";
}

void ShmCommunicator::run_lane() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (num_background_ == 0 || driving_ || failed()) {
      changed_.wait_for(lock, num_background_ > 0 ? Duration(kLook) : Duration(std::chrono::seconds(1)));
      continue;
    }
    driving_ = true;
    lock.unlock();
    (void)drive(nullptr, false);
    lock.lock();
    driving_ = false;
    changed_.notify_all();
  }
}

bool ShmCommunicator::collect_heads() {
  if (!queues_changed_.exchange(false, std::memory_order_acq_rel)) return !heads_.empty();
  const std::lock_guard lock(mutex_);
  heads_.clear();
  const auto collect = [this](const auto& queue) {
    if (!queue.empty() && !queue.front()->abandoned()) heads_.push_back(queue.front());
  };
  collect(collectives_);
  for (const auto* queues : {&sends_, &receives_}) {
    for (const auto& queue : *queues) collect(queue);
  }
  return !heads_.empty();
}

void ShmCommunicator::start_collective(const OperationPtr& operation) {
  auto* const collective = dynamic_cast<ShmCollective*>(operation.get());
  if (collective == nullptr || started_ == operation) return;
  started_ = operation;
  collective->start(round_);
}

void ShmCommunicator::finish(const OperationPtr& operation) {
  if (const auto* collective = dynamic_cast<const ShmCollective*>(operation.get())) {
    round_ = collective->end();
    started_ = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!collectives_.empty() && collectives_.front() == operation) collectives_.pop_front();
    for (auto* queues : {&sends_, &receives_}) {
      for (auto& queue : *queues) {
        if (!queue.empty() && queue.front() == operation) queue.pop_front();
      }
    }
    if (operation->call().background) --num_background_;
    queues_changed_.store(true, std::memory_order_release);
  }
  operation->set_done();
  changed_.notify_all();
}

bool ShmCommunicator::advance_all() {
  if (!met_) {
    met_ = first_absent() < 0;
    if (!met_) return false;
    former_.reset();
  }
  bool moved = false;
  while (collect_heads()) {
    bool finished = false;
    for (const auto& head : std::vector<OperationPtr>(heads_)) {
      start_collective(head);
      auto advanced = head->advance();
      if (!advanced) {
        ledger_.fail(advanced.error());
        return false;  // reported by trouble()
      }
      moved |= *advanced;
      if (!head->complete()) continue;
      finish(head);
      moved = finished = true;
    }
    if (!finished) break;
  }
  return moved;
}

Result<void> ShmCommunicator::drive(const OperationPtr& until, bool asking) {
  left_since_.reset();
  const auto over = [&] {
    if (until) return until->done();
    const std::lock_guard lock(mutex_);
    return num_background_ == 0 || stopping_;
  };
  Result<void> out;
  while (!over() && !trouble()) {
    if (advance_all()) {
      membership_page_.notify_all();
      continue;
    }
    bool moved = false;
    const auto due = [&] { return trouble() || (moved = advance_all()) || over(); };
    const auto received = membership_page_.wait_until(due, kLook, options_.spins);
    if (moved) membership_page_.notify_all();
    if (received == MembershipPage::WaitResult::kDone) continue;
    out = look(until, asking);
    if (!out) break;
  }
  // Completes operations whose inputs were all there before the failure.
  if (out && ledger_.failure()) {
    while (!over() && advance_all()) membership_page_.notify_all();
  }
  ledger_.unblock();
  late_ = nullptr;
  return out;
}

// ---- failure detection -------------------------------------------------------------------------------------------------------------

int ShmCommunicator::first_absent() const {
  for (int r = 0; r < world_size(); ++r) {
    if (memory_.rank(r).present.load(std::memory_order_acquire) == 0) return r;
  }
  return -1;
}

int ShmCommunicator::first_lost() const {
  const int gone = membership_page_.first_gone(static_cast<std::uint32_t>(world_size()));
  for (int r = gone; r >= 0 && r < world_size(); ++r) {
    if (membership_page_.is_gone(static_cast<std::uint32_t>(r)) && !ledger_.has_left(r)) return r;
  }
  return -1;
}

bool ShmCommunicator::trouble() {
  if (ledger_.failure()) return true;
  const auto lose = [this](const MembershipPage& membership_page, int member, int rank) {
    ledger_.fail(unavailable(fmt::format("rank {} is gone: {}", rank, membership_page.cause(static_cast<std::uint32_t>(member))))
                     .with_reason("ActorDied"));
    return true;
  };
  if (const int r = first_lost(); r >= 0) return lose(membership_page_, r, r);
  if (!met_ && former_) {
    const MembershipPage before(former_->data());
    for (std::size_t r = 0; r < former_ranks_.size(); ++r) {
      if (before.is_gone(static_cast<std::uint32_t>(former_ranks_[r]))) return lose(before, former_ranks_[r], static_cast<int>(r));
    }
  }
  return false;
}

Error ShmCommunicator::cause_for(const ShmOperation& operation) const {
  auto cause = ledger_.failure();
  if (!cause) return internal("an operation ended without a cause");
  return Error(*cause).in("in " + operation.what()).in(fmt::format("seen by rank {}", rank()));
}

void ShmCommunicator::warn_if_late(const ShmOperation& operation, int missing, TimePoint now) {
  if (late_ != &operation) {
    late_ = &operation;
    warned_ = operation.began() + options_.warn_after;
  }
  if (now < warned_ || !options_.warn) return;
  warned_ = now + 6 * options_.warn_after;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - operation.began()).count();
  options_.warn(fmt::format("rank {} waits in {} since {} s: {}", rank(), operation.what(), seconds,
                            missing < 0 ? "nobody in particular" : ledger_.describe(missing)));
}

void ShmCommunicator::check_left(const ShmOperation& operation, int missing, TimePoint now) {
  if (missing < 0 || !ledger_.has_left(missing)) {
    left_since_.reset();
    return;
  }
  // A rank that has left has completed its part before. The cause of its process's end, if it ended, follows soon.
  if (!left_since_) left_since_ = now;
  const bool gone = membership_page_.is_gone(static_cast<std::uint32_t>(missing));
  if (!gone && now - *left_since_ < kDepartureGrace) return;
  const std::string why = gone ? membership_page_.cause(static_cast<std::uint32_t>(missing)) : "it is done with the communicator";
  ledger_.fail(unavailable(fmt::format("rank {} has left, rank {} waits for it in {}: {}", missing, rank(), operation.what(), why))
                   .with_reason("ActorDied")
                   .with_hint(fmt::format("look at the output of rank {}; every rank must make the same calls", missing)));
}

Result<void> ShmCommunicator::look(const OperationPtr& until, bool asking) {
  if (asking && options_.interrupted && options_.interrupted()) {
    return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
  }
  collect_heads();
  if (heads_.empty()) return {};
  // The operation that blocks the program: `until` if it is at the head of a queue, otherwise the collective ahead of it.
  OperationPtr at = heads_.front();
  if (until && std::find(heads_.begin(), heads_.end(), until) != heads_.end()) at = until;
  const int missing = !met_ ? first_absent() : at->missing();
  const auto now = clock_->now();
  bool waits;
  {
    const std::lock_guard lock(mutex_);
    waits = program_waits_ > 0 && !several_submitters_;
  }
  if (waits) {
    ledger_.block(missing, at->what());
    if (auto ok = ledger_.check_circle(now); !ok) {
      ledger_.fail(ok.error());
      return {};
    }
  } else {
    ledger_.unblock();
  }
  check_left(*at, missing, now);
  warn_if_late(*at, missing, now);
  for (const auto& head : heads_) {
    const Duration limit = head->call().timeout > Duration{} ? head->call().timeout : options_.timeout;
    if (now - head->began() <= limit) continue;
    const int whom = !met_ ? first_absent() : head->missing();
    ledger_.fail(deadline_exceeded(fmt::format("rank {} waited {} ms in {}: {}", rank(),
                                               std::chrono::duration_cast<std::chrono::milliseconds>(now - head->began()).count(),
                                               head->what(), whom < 0 ? "nobody in particular" : ledger_.describe(whom)))
                     .with_reason("Late")
                     .with_hint("a rank made fewer calls, or is stuck outside the communicator"));
  }
  return {};
}

}  // namespace shoal::runtime
