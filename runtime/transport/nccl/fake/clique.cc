#include "runtime/transport/nccl/fake/clique.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/transport/reduction.h"

namespace shoal::runtime {

namespace {

using Kind = FakeOperation::Kind;

DType dtype_of(NcclType type) {
  switch (type) {
    case nccl::kInt8:
      return DType::kInt8;
    case nccl::kInt32:
      return DType::kInt32;
    case nccl::kInt64:
      return DType::kInt64;
    case nccl::kFloat16:
      return DType::kFloat16;
    case nccl::kFloat32:
      return DType::kFloat32;
    case nccl::kFloat64:
      return DType::kFloat64;
    case nccl::kBFloat16:
      return DType::kBFloat16;
    default:
      return DType::kUInt8;
  }
}

ReduceOp reduce_op_of(NcclOp op) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg};
  return kOps[op];
}

std::string describe(const FakeOperation& o) {
  constexpr const char* kNames[] = {"AllGather", "ReduceScatter", "AllReduce", "Reduce", "Broadcast", "Send", "Recv"};
  return fmt::format("{} of {} elements of type {}, op {}, other {}", kNames[static_cast<int>(o.kind)], o.count, o.type, o.op, o.other);
}

bool same(const FakeOperation& a, const FakeOperation& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.other == b.other;
}

}  // namespace

std::size_t FakeOperation::bytes() const { return count * dtype_bytes(dtype_of(type)); }

FakeClique::FakeClique(int num_ranks, std::function<void(std::string)> violation)
    : num_ranks_(num_ranks), violation_(std::move(violation)) {}

void FakeClique::count_running(Member& member, int by) {
  const std::lock_guard lock(mutex_);
  member.num_running += static_cast<std::size_t>(by);
  changed_.notify_all();
}

std::size_t FakeClique::num_running(const Member& member) {
  const std::lock_guard lock(mutex_);
  return member.num_running;
}

void FakeClique::abort(Member& member) {
  const std::lock_guard lock(mutex_);
  member.aborted = true;
  changed_.notify_all();
}

void FakeClique::run(Member& member, std::uint64_t first, const std::vector<FakeOperation>& operations) {
  std::vector<Part> parts;
  for (const auto& operation : operations) parts.push_back({&operation, &member, false});
  std::unique_lock lock(mutex_);
  if (!member.aborted && !hang) {
    for (auto& part : parts) add(part.operation->message() ? 0 : first++, part);
  }
  const auto over = [&] { return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.met; }); };
  changed_.wait(lock, [&] { return member.aborted || over(); });
  for (auto& part : parts) {
    for (auto& [number, meeting] : meetings_) {
      const auto found = meeting.parts.find(member.rank);
      if (found != meeting.parts.end() && found->second == &part) meeting.parts.erase(found);
    }
    for (auto& [pair, queues] : messages_) {
      for (auto* const queue : {&queues.first, &queues.second})
        queue->erase(std::remove(queue->begin(), queue->end(), &part), queue->end());
    }
  }
  --member.num_running;
  changed_.notify_all();
}

void FakeClique::add(std::uint64_t number, Part& part) {
  const auto& operation = *part.operation;
  const int rank = part.member->rank;
  if (operation.kind == Kind::kSend) {
    messages_[{rank, operation.other}].first.push_back(&part);
    return match(rank, operation.other);
  }
  if (operation.kind == Kind::kReceive) {
    messages_[{operation.other, rank}].second.push_back(&part);
    return match(operation.other, rank);
  }
  auto& meeting = meetings_[number];
  if (!meeting.parts.empty() && !same(*meeting.parts.begin()->second->operation, operation)) {
    meeting.broken = true;
    violation_(fmt::format("collective {}: rank {} calls {}, rank {} {}", number, meeting.parts.begin()->first,
                           describe(*meeting.parts.begin()->second->operation), rank, describe(operation)));
  }
  meeting.parts[rank] = &part;
  if (meeting.broken || meeting.parts.size() < static_cast<std::size_t>(num_ranks_)) return;
  complete(meeting);
  meetings_.erase(number);
  changed_.notify_all();
}

void FakeClique::match(int from, int to) {
  auto& [sends, receives] = messages_[{from, to}];
  if (sends.empty() || receives.empty()) return;
  auto &send = *sends.front(), &receive = *receives.front();
  if (send.operation->bytes() != receive.operation->bytes()) {
    violation_(
        fmt::format("rank {} sends {} bytes to rank {}, which receives {}", from, send.operation->bytes(), to, receive.operation->bytes()));
    return;
  }
  std::memmove(receive.operation->output, send.operation->input, send.operation->bytes());
  send.met = receive.met = true;
  sends.pop_front();
  receives.pop_front();
  changed_.notify_all();
}

void FakeClique::complete(Meeting& meeting) {
  const auto& first = *meeting.parts.at(0)->operation;
  const std::size_t bytes = first.bytes();
  const auto world = static_cast<std::size_t>(num_ranks_);
  std::vector<const std::byte*> inputs;
  for (auto& [rank, part] : meeting.parts) inputs.push_back(static_cast<const std::byte*>(part->operation->input));
  const auto reduced = [&](std::size_t offset) {
    std::vector<std::byte> out(bytes);
    std::vector<const std::byte*> sources;
    for (const auto* const input : inputs) sources.push_back(input + offset);
    reduce(dtype_of(first.type), reduce_op_of(first.op), sources, out.data(), first.count);
    return out;
  };
  // All inputs are read before an output is written, since an output may be an input.
  std::vector<std::vector<std::byte>> results(world);
  for (std::size_t r = 0; r < world; ++r) {
    const bool root = static_cast<int>(r) == first.other;
    if (first.kind == Kind::kAllGather) {
      for (const auto* const input : inputs) results[r].insert(results[r].end(), input, input + bytes);
    } else if (first.kind == Kind::kBroadcast) {
      results[r].assign(inputs[static_cast<std::size_t>(first.other)], inputs[static_cast<std::size_t>(first.other)] + bytes);
    } else if (first.kind == Kind::kReduceScatter) {
      results[r] = reduced(r * bytes);
    } else if (first.kind == Kind::kAllReduce || root) {
      results[r] = reduced(0);
    }
  }
  for (auto& [rank, part] : meeting.parts) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    if (!result.empty()) std::memcpy(part->operation->output, result.data(), result.size());
    part->met = true;
  }
}

}  // namespace shoal::runtime
