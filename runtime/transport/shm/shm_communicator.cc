#include "runtime/transport/shm/shm_communicator.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/transport/shm/shm_operation.h"

namespace shoal::runtime {

namespace {

class ShmWindow final : public Window {
 public:
  ShmWindow(std::shared_ptr<Mapping> mapping, std::vector<std::size_t> sizes, std::vector<std::size_t> begins, int rank)
      : mapping_(std::move(mapping)), sizes_(std::move(sizes)), begins_(std::move(begins)), rank_(static_cast<std::size_t>(rank)) {}
  std::span<std::byte> own() override { return part(rank_); }
  std::size_t bytes(int rank) const override { return sizes_[static_cast<std::size_t>(rank)]; }
  std::span<std::byte> mapped(int rank) override { return part(static_cast<std::size_t>(rank)); }
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
  // After a failure, ended() is true only once the operation uses its buffers no more.
  bool ended() const override { return operation_->ended() || (communicator_->failed() && communicator_->pending_.settle(operation_)); }
  Result<void> wait() override { return communicator_->pending_.wait(operation_); }

 private:
  const std::shared_ptr<ShmCommunicator> communicator_;
  const OperationPtr operation_;
};

// ---- setup and leaving -------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Communicator>> ShmCommunicator::make(CommunicatorRequest request, std::shared_ptr<Clock> clock) {
  if (request.world_size < 1 || request.world_size > ShmMemory::kMaxRanks) {
    return fail(invalid_argument(fmt::format("a group of {} ranks: there may be 1 to {}", request.world_size, ShmMemory::kMaxRanks)));
  }
  const auto& memory = *request.memory;
  if (memory.chunk_bytes < 64 * static_cast<std::size_t>(request.world_size) || memory.channel_bytes == 0) {
    return fail(invalid_argument(
        fmt::format("chunks of {} bytes are too small for {} ranks: 64 for each", memory.chunk_bytes, request.world_size)));
  }
  return make_generation(std::move(request), std::move(clock), 1, std::nullopt);
}

Result<std::shared_ptr<Communicator>> ShmCommunicator::make_generation(CommunicatorRequest request, std::shared_ptr<Clock> clock,
                                                                       std::uint64_t generation, std::optional<ShmGroup::Former> former) {
  const auto& memory = *request.memory;
  const ShmMemory::Shape shape{request.world_size, memory.chunk_bytes, memory.channel_bytes};
  SHOAL_TRY(auto mapping, memory.open(fmt::format("{}/{}", request.name, generation), ShmMemory::bytes(shape), request.rank));
  std::shared_ptr<ShmCommunicator> communicator(
      new ShmCommunicator(std::move(request), std::move(clock), std::move(mapping), generation, std::move(former)));
  communicator->group_.join();
  return std::shared_ptr<Communicator>(std::move(communicator));
}

ShmCommunicator::ShmCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<Mapping> mapping,
                                 std::uint64_t generation, std::optional<ShmGroup::Former> former)
    : request_(std::move(request)),
      clock_(std::move(clock)),
      generation_(generation),
      group_(std::move(mapping), {request_.world_size, request_.memory->chunk_bytes, request_.memory->channel_bytes}, request_.rank,
             std::move(former)),
      pending_(request_.world_size, *this, request_.interrupted),
      progress_(group_, pending_, request_, *clock_) {}

ShmCommunicator::~ShmCommunicator() {
  if (pending_.forked()) return;  // the parent remains a rank
  pending_.stop();
  leave();
}

void ShmCommunicator::leave() {
  if (pending_.forked() || left_.exchange(true)) return;
  group_.ledger().leave();
}

std::optional<Error> ShmCommunicator::unusable() const {
  if (pending_.forked()) return forked_child_error();
  if (left_) return unavailable("this communicator was left").with_reason("Closed");
  return std::nullopt;
}

void ShmCommunicator::abort(const Error& cause) {
  if (!pending_.forked()) group_.ledger().fail(cause);
}

std::optional<Error> ShmCommunicator::failed() const { return group_.ledger().failure(); }

std::vector<int> ShmCommunicator::lost() const { return group_.lost(); }

Result<std::shared_ptr<Communicator>> ShmCommunicator::reform() {
  if (auto error = unusable()) return fail(*std::move(error));
  abort(unavailable(fmt::format("rank {} forms the group again, without the ranks that are lost", rank())).with_reason("Reformed"));
  auto ranks = group_.agree_on_survivors();
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end())
    return fail(unavailable(fmt::format("the group was formed again without rank {}", rank())).with_reason("Reformed"));
  CommunicatorRequest request = request_;
  request.rank = static_cast<int>(own - ranks.begin());
  request.world_size = static_cast<int>(ranks.size());
  return make_generation(std::move(request), clock_, generation_ + 1, group_.as_former(std::move(ranks)));
}

// ---- submitting --------------------------------------------------------------------------------------------------------------------
// Each function checks first that this process is no forked child: another thread of the parent may have held the locks when it was forked.

WorkPtr ShmCommunicator::submitted(PendingOperations::Lock lock, OperationPtr operation) {
  pending_.submitted(std::move(lock), *operation);
  return std::make_shared<ShmWork>(shared_from_this(), std::move(operation));
}

WorkPtr ShmCommunicator::start_collective(CollectiveSpec spec, Call call) {
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto lock = pending_.lock();
  auto operation = std::make_shared<ShmCollective>(group_.memory(), group_.ledger(), group_.direct_reads(), rank(),
                                                   pending_.next_sequence(lock), std::move(spec), std::move(call), clock_->now());
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_collective(lock, operation);
  return submitted(std::move(lock), std::move(operation));
}

OperationPtr ShmCommunicator::message(int from, int to, MutableBytes data, DType dtype, std::uint32_t tag, Call call) const {
  return std::make_shared<ShmMessage>(group_.memory(), rank(), from, to, data, dtype, tag, std::move(call), clock_->now());
}

WorkPtr ShmCommunicator::start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) {
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto lock = pending_.lock();
  // ShmMessage takes one type of span for both directions. The const_cast is safe, since a send only reads.
  auto operation = message(rank(), to, {const_cast<std::byte*>(data.data()), data.size()}, dtype, tag, std::move(call));
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_send(lock, to, operation);
  return submitted(std::move(lock), std::move(operation));
}

WorkPtr ShmCommunicator::start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) {
  if (auto error = unusable()) return failed_work(*std::move(error));
  auto lock = pending_.lock();
  auto operation = message(from, rank(), data, dtype, tag, std::move(call));
  if (failed()) return failed_work(group_.failure_in(operation->what()));
  pending_.add_receive(lock, from, operation);
  return submitted(std::move(lock), std::move(operation));
}

// ---- windows -----------------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Window>> ShmCommunicator::window(std::size_t bytes, Call call) {
  if (auto error = unusable()) return fail(*std::move(error));
  const auto world = static_cast<std::size_t>(world_size());
  std::vector<std::size_t> begins(world), counts(world, sizeof(std::size_t));
  if (call.label.empty()) call.label = "window";
  std::string name;
  // The vectors are members, since an all_gather whose wait was interrupted remains pending and uses them further.
  std::vector<std::size_t>* gathered = nullptr;
  {
    const std::lock_guard lock(windows_mutex_);
    name = fmt::format("{}/{}/window-{}", request_.name, generation_, window_sizes_.size());
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
  SHOAL_TRY(auto mapping, request_.memory->open(name, std::max<std::size_t>(total, 64), -1));
  mapping->populate(begins[static_cast<std::size_t>(rank())], bytes);
  // No rank drops its mapping before all ranks have mapped the memory.
  SHOAL_OK(barrier(call)->wait());
  return std::shared_ptr<Window>(std::make_shared<ShmWindow>(std::move(mapping), std::move(sizes), std::move(begins), rank()));
}

Result<void> ShmCommunicator::read(Window& window, int from, std::size_t offset, MutableBytes out) {
  SHOAL_OK(check_peer(from, "source", Self::kAllowed));
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

// ---- driving -----------------------------------------------------------------------------------------------------------------------

Result<void> ShmCommunicator::drive(const OperationPtr& until) { return until ? progress_.drive(until) : progress_.drive_background(); }

void ShmCommunicator::wake() { group_.notify_all(); }  // the thread that drives sleeps on the membership page

bool ShmCommunicator::has_failed() const { return group_.ledger().failure().has_value(); }

// A wait drives once after a failure, because operations whose inputs were all there before it still complete.
bool ShmCommunicator::over(bool drove) const { return drove && has_failed(); }

Error ShmCommunicator::failure_in(const std::string& what) const { return group_.failure_in(what); }

}  // namespace shoal::runtime
