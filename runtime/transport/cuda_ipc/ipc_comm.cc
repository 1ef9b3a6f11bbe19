#include "runtime/transport/cuda_ipc/ipc_comm.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include <fmt/format.h>

#include "runtime/device/kernels/reduction_body.h"

namespace shoal::runtime {

namespace {

using Kind = IpcOperation::Kind;

// Parts of a chunk begin at multiples of this, which the size of every element divides.
constexpr std::size_t kAlign = 16;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

kernels::Reduction reduction_of(NcclOp op) {
  switch (op) {
    case nccl::kProduct:
      return kernels::Reduction::kProduct;
    case nccl::kMax:
      return kernels::Reduction::kMax;
    case nccl::kMin:
      return kernels::Reduction::kMin;
    case nccl::kAvg:
      return kernels::Reduction::kMean;
    default:
      return kernels::Reduction::kSum;
  }
}

// True also for a zombie: a process that has ended, but that its parent has not reaped.
bool process_has_ended(std::int32_t pid) {
  if (pid == 0) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(stat, line)) return false;
  const auto name_ends = line.rfind(") ");
  return name_ends != std::string::npos && name_ends + 2 < line.size() && (line[name_ends + 2] == 'Z' || line[name_ends + 2] == 'X');
}

}  // namespace

// ---- joining and ending ------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<IpcComm>> IpcComm::join(std::shared_ptr<const Device> device, const std::string& name, int num_ranks, int rank,
                                               Options options) {
  if (num_ranks > IpcSegment::kMaxRanks)
    return fail(unimplemented(fmt::format("copies between processes connect at most {} ranks, not {}", IpcSegment::kMaxRanks, num_ranks)));
  SHOAL_TRY(auto segment, IpcSegment::open(name));
  std::unique_ptr<IpcComm> out(new IpcComm(std::move(device), name, std::move(segment), num_ranks, rank, options));
  SHOAL_OK(out->introduce());
  return out;
}

Result<void> IpcComm::introduce() {
  auto& mine = peers_[static_cast<std::size_t>(rank_)];
  for (std::size_t e = 0; e < mine.events.size(); ++e) {
    SHOAL_TRY(mine.events[e], device_->make_event(Device::EventUse::kInterprocess));
    SHOAL_TRY(own().events[e], device_->share(mine.events[e]));
  }
  if (device_->orders_by_words()) {
    auto registered = device_->register_memory(std::as_writable_bytes(std::span(segment_.get(), 1)));
    own().words = registered ? 1 : 0;
    if (registered) registered_ = *std::move(registered);
  }
  SHOAL_TRY(end_, device_->make_event());  // now, because at the end the device may have no memory left
  own().pid = getpid();
  own().stage = IpcSegment::Stage::kJoined;
  return {};
}

Result<bool> IpcComm::meet() {
  for (int r = 0; r < num_ranks(); ++r) {
    if (segment_->ranks[r].stage == IpcSegment::Stage::kAbsent) return false;
  }
  IpcSegment::forget(name_);
  by_words_ = std::all_of(segment_->ranks, segment_->ranks + num_ranks(), [](const auto& rank) { return rank.words == 1; });
  for (int r = 0; r < num_ranks(); ++r) {
    if (r == rank_) continue;
    for (std::size_t e = 0; e < IpcSegment::kEvents; ++e) {
      SHOAL_TRY(peers_[static_cast<std::size_t>(r)].events[e], device_->open_shared_event(segment_->ranks[r].events[e]));
    }
  }
  met_ = true;
  return true;
}

void IpcComm::end() {
  collectives_.clear();
  messages_.clear();
  if (!met_) IpcSegment::forget(name_);
  release(Released::kEnded);
  if (stream_ != nullptr && end_state_ == End::kNone) end_state_ = device_->record(end_, stream_) ? End::kRecorded : End::kUnknown;
}

bool IpcComm::has_ended(int rank) const {
  const std::int32_t pid = segment_->ranks[rank].pid;
  return options_.has_ended ? options_.has_ended(rank, pid) : process_has_ended(pid);
}

void IpcComm::release(Released which) {
  if (!by_words_) return;
  for (int r = 0; r < num_ranks(); ++r) {
    if (r == rank_ || (which == Released::kEnded && !has_ended(r))) continue;
    // No stream waits for more than the records. A rank whose stream has passed all of them has ended in order.
    if (segment_->ranks[r].passed.load(std::memory_order_acquire) >= segment_->ranks[r].records.load(std::memory_order_acquire)) continue;
    segment_->ranks[r].released.store(1, std::memory_order_release);  // first, so that a rank whose stream then passes sees it
    segment_->ranks[r].passed.store(IpcSegment::kReleased, std::memory_order_release);
  }
}

bool IpcComm::try_close(bool overdue) {
  // The stream's end is not known. So the other ranks keep their memory until this process ends.
  if (end_state_ == End::kUnknown) return false;
  if (end_state_ == End::kRecorded) {
    const auto passed = device_->passed(end_);
    if (passed && !*passed) {
      // Releases again at each call, since work of another rank may have written its word after the release.
      release(overdue ? Released::kAll : Released::kEnded);
      return false;
    }
  }
  for (int r = 0; r < num_ranks(); ++r) {
    if (r == rank_) continue;
    for (auto& memory : peers_[static_cast<std::size_t>(r)].memory) memory.reset();
  }
  own().stage = IpcSegment::Stage::kClosed;
  for (int r = 0; r < num_ranks(); ++r) {
    if (segment_->ranks[r].stage == IpcSegment::Stage::kJoined && !has_ended(r)) return false;
  }
  return true;
}

// ---- progress ----------------------------------------------------------------------------------------------------------------------

void IpcComm::begin(const std::vector<IpcOperation>& operations) {
  for (const auto& operation : operations) {
    if (operation.bytes() == 0) continue;
    stream_ = operation.stream;
    if (operation.message()) {
      messages_[{operation.other, operation.kind}].push_back({operation});
    } else {
      collectives_.push_back({operation});
    }
  }
}

Result<bool> IpcComm::advance() {
  if (!met_) return meet();
  for (int r = 0; r < num_ranks(); ++r) {
    if (segment_->ranks[r].released.load(std::memory_order_acquire) != 0)
      return fail(unavailable(fmt::format("rank {} has died or stood still, and its data are missing", r)).with_reason("ActorDied"));
  }
  for (bool moved = true; moved;) {
    SHOAL_TRY(moved, advance_collective());
    for (auto& [key, runs] : messages_) {
      if (runs.empty()) continue;
      SHOAL_TRY(const bool advanced, advance_message(runs.front()));
      moved |= advanced;
      if (runs.front().moved_bytes == runs.front().operation.bytes()) runs.pop_front();
    }
  }
  return collectives_.empty() && std::all_of(messages_.begin(), messages_.end(), [](const auto& m) { return m.second.empty(); });
}

Result<bool> IpcComm::advance_collective() {
  if (collectives_.empty()) return false;
  for (int r = 0; r < num_ranks(); ++r) {
    if (segment_->ranks[r].steps.load(std::memory_order_acquire) < steps_) return false;
  }
  for (int r = 0; r < num_ranks() && steps_ > 0; ++r) SHOAL_OK(wait_for(r));
  auto& run = collectives_.front();
  SHOAL_OK(step(run));
  SHOAL_OK(record());
  own().steps.store(++steps_, std::memory_order_release);
  if (over(run)) collectives_.pop_front();
  return true;
}

bool IpcComm::over(const Run& run) const { return run.phase == 0 && run.moved_bytes == run.operation.bytes(); }

Result<void> IpcComm::step(Run& run) {
  switch (run.operation.kind) {
    case Kind::kAllGather:
      return step_all_gather(run);
    case Kind::kReduceScatter:
      return step_reduce_scatter(run);
    case Kind::kAllReduce:
      return step_all_reduce(run);
    default:
      return step_to_or_from_root(run);
  }
}

Result<void> IpcComm::step_all_gather(Run& run) {
  const auto& o = run.operation;
  const std::size_t each = o.bytes(), now = std::min(options_.chunk_bytes, each - run.moved_bytes);
  if (run.phase == 0) {
    SHOAL_TRY(auto* const staged, memory(Region::kCollective));
    SHOAL_OK(copy(staged, o.input + run.moved_bytes, now));
    run.phase = 1;
    return {};
  }
  // Each rank begins with its own part and goes on with its neighbour's, so that not all ranks read from one.
  for (int i = 0; i < num_ranks(); ++i) {
    const int r = (rank_ + i) % num_ranks();
    const std::byte* from = o.input + run.moved_bytes;
    if (r != rank_) {
      SHOAL_TRY(from, memory_of(r, Region::kCollective));
    }
    SHOAL_OK(copy(o.output + static_cast<std::size_t>(r) * each + run.moved_bytes, from, now));
  }
  run.moved_bytes += now;
  run.phase = 0;
  return {};
}

Result<void> IpcComm::step_reduce_scatter(Run& run) {
  const auto& o = run.operation;
  const auto world = static_cast<std::size_t>(num_ranks());
  const std::size_t each = o.bytes(), room = options_.chunk_bytes / world / kAlign * kAlign, now = std::min(room, each - run.moved_bytes);
  if (run.phase == 0) {
    SHOAL_TRY(auto* const staged, memory(Region::kCollective));
    for (std::size_t r = 0; r < world; ++r) SHOAL_OK(copy(staged + r * room, o.input + r * each + run.moved_bytes, now));
    run.phase = 1;
    return {};
  }
  SHOAL_OK(reduce(o, static_cast<std::size_t>(rank_) * room, o.output + run.moved_bytes, now));
  run.moved_bytes += now;
  run.phase = 0;
  return {};
}

// Each rank reduces one part of a chunk, then all ranks read the parts.
Result<void> IpcComm::step_all_reduce(Run& run) {
  const auto& o = run.operation;
  const auto world = static_cast<std::size_t>(num_ranks());
  const std::size_t left = o.bytes() - run.moved_bytes, room = options_.chunk_bytes / world / kAlign * kAlign;
  const std::size_t now = std::min(room * world, left), each = std::min(room, aligned((now + world - 1) / world));
  const auto part = [&](std::size_t r) { return std::min(each, now - std::min(now, r * each)); };
  SHOAL_TRY(auto* const staged, memory(Region::kCollective));
  if (run.phase == 0) {
    SHOAL_OK(copy(staged, o.input + run.moved_bytes, now));
    run.phase = 1;
    return {};
  }
  const auto mine = static_cast<std::size_t>(rank_);
  if (run.phase == 1) {
    SHOAL_OK(reduce(o, mine * each, staged + mine * each, part(mine)));
    run.phase = 2;
    return {};
  }
  for (std::size_t i = 0; i < world; ++i) {
    const std::size_t r = (mine + i) % world;
    if (part(r) == 0) continue;
    SHOAL_TRY(const auto* const from, memory_of(static_cast<int>(r), Region::kCollective));
    SHOAL_OK(copy(o.output + run.moved_bytes + r * each, from + r * each, part(r)));
  }
  run.moved_bytes += now;
  run.phase = 0;
  return {};
}

Result<void> IpcComm::step_to_or_from_root(Run& run) {
  const auto& o = run.operation;
  const std::size_t now = std::min(options_.chunk_bytes, o.bytes() - run.moved_bytes);
  const bool reduces = o.kind == Kind::kReduce, root = o.other == rank_;
  if (run.phase == 0) {
    if (reduces || root) {
      SHOAL_TRY(auto* const staged, memory(Region::kCollective));
      SHOAL_OK(copy(staged, o.input + run.moved_bytes, now));
    }
    run.phase = 1;
    return {};
  }
  if (reduces && root) SHOAL_OK(reduce(o, 0, o.output + run.moved_bytes, now));
  if (!reduces && root) SHOAL_OK(copy(o.output + run.moved_bytes, o.input + run.moved_bytes, now));
  if (!reduces && !root) {
    SHOAL_TRY(const auto* const from, memory_of(o.other, Region::kCollective));
    SHOAL_OK(copy(o.output + run.moved_bytes, from, now));
  }
  run.moved_bytes += now;
  run.phase = 0;
  return {};
}

Result<void> IpcComm::reduce(const IpcOperation& operation, std::size_t offset, std::byte* out, std::size_t bytes) {
  if (bytes == 0) return {};
  if (!kernels_) {
    SHOAL_TRY(kernels_, DeviceKernels::load(device_, options_.kernels));
  }
  std::vector<const void*> sources;
  for (int r = 0; r < num_ranks(); ++r) {
    SHOAL_TRY(const auto* const from, memory_of(r, Region::kCollective));
    sources.push_back(from + offset);
  }
  const auto dtype = dtype_of(operation.type);
  return kernels_->reduce(dtype, reduction_of(operation.op), sources, out, bytes / dtype_bytes(dtype), stream_);
}

// A sender has two places for each receiver, and fills one while the other is read.
Result<bool> IpcComm::advance_message(Run& run) {
  const auto& o = run.operation;
  const bool sends = o.kind == Kind::kSend;
  auto& other = segment_->ranks[o.other];
  auto& own_count = sends ? own().sent[o.other] : own().taken[o.other];
  const std::uint64_t number = own_count.load(std::memory_order_relaxed);
  const std::uint64_t of_other = (sends ? other.taken[rank_] : other.sent[rank_]).load(std::memory_order_acquire);
  if (sends ? of_other + 2 <= number : of_other <= number) return false;
  if (!sends || number >= 2) SHOAL_OK(wait_for(o.other));
  const std::size_t now = std::min(options_.message_bytes, o.bytes() - run.moved_bytes);
  const auto place = [&](int receiver) { return (static_cast<std::size_t>(receiver) * 2 + number % 2) * options_.message_bytes; };
  if (sends) {
    SHOAL_TRY(auto* const to, memory(Region::kMessages));
    SHOAL_OK(copy(to + place(o.other), o.input + run.moved_bytes, now));
  } else {
    SHOAL_TRY(const auto* const from, memory_of(o.other, Region::kMessages));
    SHOAL_OK(copy(o.output + run.moved_bytes, from + place(rank_), now));
  }
  SHOAL_OK(record());
  own_count.store(number + 1, std::memory_order_release);
  run.moved_bytes += now;
  return true;
}

// ---- memory and order --------------------------------------------------------------------------------------------------------------

std::size_t IpcComm::region_bytes(Region region) const {
  return region == Region::kCollective ? options_.chunk_bytes : options_.message_bytes * 2 * peers_.size();
}

Result<std::byte*> IpcComm::memory(Region region) {
  auto& memory = memory_[static_cast<std::size_t>(region)];
  if (!memory) {
    SHOAL_TRY(memory, device_->allocate(region_bytes(region)));
    SHOAL_TRY(own().memory[static_cast<std::size_t>(region)], device_->share(memory));
  }
  return memory.get().data();
}

Result<const std::byte*> IpcComm::memory_of(int rank, Region region) {
  if (rank == rank_) return memory(region);
  const auto index = static_cast<std::size_t>(region);
  auto& memory = peers_[static_cast<std::size_t>(rank)].memory[index];
  if (!memory) {
    SHOAL_TRY(memory, device_->open_shared(segment_->ranks[rank].memory[index], region_bytes(region)));
  }
  return memory.get().data();
}

Result<void> IpcComm::wait_for(int rank) {
  if (rank == rank_) return {};
  const auto& other = segment_->ranks[rank];
  const auto records = other.records.load(std::memory_order_acquire);
  if (by_words_) return device_->wait(stream_, other.passed, records);
  return device_->wait(stream_, peers_[static_cast<std::size_t>(rank)].events[records % IpcSegment::kEvents]);
}

Result<void> IpcComm::record() {
  const auto next = own().records.load(std::memory_order_relaxed) + 1;
  SHOAL_OK(by_words_ ? device_->write(stream_, own().passed, next)
                     : device_->record(peers_[static_cast<std::size_t>(rank_)].events[next % IpcSegment::kEvents], stream_));
  own().records.store(next, std::memory_order_release);
  return {};
}

Result<void> IpcComm::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  return to == from || bytes == 0 ? Result<void>() : device_->copy(to, from, bytes, stream_);
}

}  // namespace shoal::runtime
