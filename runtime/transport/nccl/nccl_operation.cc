#include "runtime/transport/nccl/nccl_operation.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/transport/nccl/api/nccl_dtype.h"

namespace shoal::runtime {

namespace {

NcclOp op_of(DType dtype, ReduceOp op) {
  const bool logical = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? nccl::kMax : nccl::kSum;
    case ReduceOp::kAvg:
      return nccl::kAvg;
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kProduct:
      return logical ? nccl::kMin : nccl::kProduct;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;  // refused by NcclCommunicator
  }
  return nccl::kSum;
}

bool even(const std::vector<std::size_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

}  // namespace

Result<bool> NcclOperation::advance(const NcclApi& api, const Device& device, NcclChannel& channel) {
  switch (stage()) {
    case Stage::kQueued: {
      SHOAL_TRY(const bool can_begin, channel.ready());
      if (!can_begin) return false;
      if (ready) SHOAL_OK(device.wait(channel.stream(), ready));
      SHOAL_OK(copy_own(device, channel.stream()));
      if (moves()) SHOAL_OK(channel.issue([&](NcclComm comm, CudaStream stream) { return enqueue(api, comm, stream); }, what_));
      stage_ = Stage::kBegun;
      return true;
    }
    case Stage::kBegun: {
      SHOAL_TRY(const bool on_stream, channel.ready());
      if (!on_stream) return false;
      SHOAL_OK(device.record(end, channel.stream()));
      stage_ = Stage::kOnStream;
      return true;
    }
    case Stage::kOnStream: {
      SHOAL_TRY(const bool passed, device.passed(end));
      if (!passed) return false;
      // The stream may have passed `end` only because a rank has released it from the work of a dead one, which ready() reports.
      if (api.issues_in_polls) SHOAL_OK(channel.ready());
      stage_ = Stage::kPassed;
      return true;
    }
    case Stage::kPassed:
      return false;
  }
  return false;
}

// ---- collectives -------------------------------------------------------------------------------------------------------------------

NcclCollective::NcclCollective(Entry entry, std::vector<CollectiveSpec> specs, int rank, std::span<std::byte> scratch, Call call,
                               TimePoint began)
    : NcclOperation(describe(entry), std::move(call), began),
      entry_(std::move(entry)),
      specs_(std::move(specs)),
      rank_(static_cast<std::size_t>(rank)),
      scratch_(scratch) {}

std::int64_t NcclCollective::fingerprint() const {
  const bool reduces = entry_.kind == Collective::kReduceScatter || entry_.kind == Collective::kAllReduce;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::uint64_t part :
       {entry_.sequence, std::uint64_t{static_cast<std::uint8_t>(entry_.kind)}, std::uint64_t{static_cast<std::uint8_t>(entry_.dtype)},
        reduces ? std::uint64_t{static_cast<std::uint8_t>(entry_.op)} : 0, static_cast<std::uint64_t>(entry_.root), entry_.bytes,
        entry_.counts, std::uint64_t{specs_.size()}}) {
    hash = (hash ^ part) * 0x100000001b3ULL;
    hash ^= hash >> 29;
  }
  return static_cast<std::int64_t>(hash);
}

bool NcclCollective::moves() const {
  return std::any_of(specs_.begin(), specs_.end(),
                     [](const auto& spec) { return spec.kind == Collective::kBarrier || !spec.input.empty() || !spec.output.empty(); });
}

Result<void> NcclCollective::copy_own(const Device& device, CudaStream stream) const {
  for (const auto& spec : specs_) {
    const bool gathers = spec.kind == Collective::kAllGather && !even(spec.counts);
    if (!gathers && spec.kind != Collective::kAllToAll) continue;
    const auto* const from = spec.input.data() + (gathers ? 0 : begins_of(spec.counts)[rank_]);
    auto* const to = spec.output.data() + begins_of(gathers ? spec.counts : spec.receive)[rank_];
    // An all_to_all whose own counts differ has diverged; the agreement reports that.
    const std::size_t bytes = gathers ? spec.counts[rank_] : std::min(spec.counts[rank_], spec.receive[rank_]);
    if (from != to) SHOAL_OK(device.copy(to, from, bytes, stream));
  }
  return {};
}

NcclStatus NcclCollective::enqueue(const NcclApi& api, NcclComm comm, CudaStream stream) const {
  for (const auto& spec : specs_) {
    const auto status = enqueue(spec, api, comm, stream);
    if (status != nccl::kSuccess && status != nccl::kInProgress) return status;
  }
  return nccl::kSuccess;
}

NcclStatus NcclCollective::enqueue(const CollectiveSpec& spec, const NcclApi& api, NcclComm comm, CudaStream stream) const {
  const std::size_t element = dtype_bytes(spec.dtype);
  const auto type = nccl_type_of(spec.dtype);
  const auto op = op_of(spec.dtype, spec.op);
  switch (spec.kind) {
    case Collective::kNone:
      return nccl::kSuccess;
    case Collective::kAllGather:
      if (!even(spec.counts)) return exchange(spec, api, comm, stream);
      return api.all_gather(spec.input.data(), spec.output.data(), spec.input.size(), nccl::kUInt8, comm, stream);
    case Collective::kReduceScatter: {
      if (even(spec.counts))
        return api.reduce_scatter(spec.input.data(), spec.output.data(), spec.output.size() / element, type, op, comm, stream);
      const auto begins = begins_of(spec.counts);
      for (std::size_t r = 0; r < spec.counts.size(); ++r) {
        if (spec.counts[r] == 0) continue;
        const auto status = api.reduce(spec.input.data() + begins[r], spec.output.data(), spec.counts[r] / element, type, op,
                                       static_cast<int>(r), comm, stream);
        if (status != nccl::kSuccess && status != nccl::kInProgress) return status;
      }
      return nccl::kSuccess;
    }
    case Collective::kAllReduce:
      return api.all_reduce(spec.input.data(), spec.output.data(), spec.input.size() / element, type, op, comm, stream);
    case Collective::kBroadcast:
      return api.broadcast(spec.output.data(), spec.output.data(), spec.output.size(), nccl::kUInt8, spec.root, comm, stream);
    case Collective::kAllToAll:
      return exchange(spec, api, comm, stream);
    case Collective::kBarrier:
      return api.all_reduce(scratch_.data(), scratch_.data(), scratch_.size(), nccl::kUInt8, nccl::kSum, comm, stream);
  }
  return nccl::kSuccess;
}

NcclStatus NcclCollective::exchange(const CollectiveSpec& spec, const NcclApi& api, NcclComm comm, CudaStream stream) const {
  const bool gathers = spec.kind == Collective::kAllGather;
  const auto& receive = gathers ? spec.counts : spec.receive;
  const auto sends_at = begins_of(spec.counts), receives_at = begins_of(receive);
  const std::size_t world = spec.counts.size();
  // Each rank begins with its neighbour, so that not all send to one.
  for (std::size_t i = 1; i < world; ++i) {
    const std::size_t to = (rank_ + i) % world, from = (rank_ + world - i) % world;
    const std::size_t sent = gathers ? spec.counts[rank_] : spec.counts[to];
    if (sent > 0) {
      const auto* const data = spec.input.data() + (gathers ? 0 : sends_at[to]);
      const auto status = api.send(data, sent, nccl::kUInt8, static_cast<int>(to), comm, stream);
      if (status != nccl::kSuccess && status != nccl::kInProgress) return status;
    }
    if (receive[from] > 0) {
      const auto status =
          api.receive(spec.output.data() + receives_at[from], receive[from], nccl::kUInt8, static_cast<int>(from), comm, stream);
      if (status != nccl::kSuccess && status != nccl::kInProgress) return status;
    }
  }
  return nccl::kSuccess;
}

// ---- messages ----------------------------------------------------------------------------------------------------------------------

NcclMessage::NcclMessage(Way way, int rank, int other, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call,
                         TimePoint began)
    : NcclOperation(way == Way::kSend
                        ? fmt::format("a send of {} bytes with tag {} from rank {} to rank {}", data.size(), tag, rank, other)
                        : fmt::format("a receive of {} bytes with tag {} on rank {} from rank {}", data.size(), tag, rank, other),
                    std::move(call), began),
      way_(way),
      other_(other),
      data_(data),
      dtype_(dtype),
      tag_(tag) {}

NcclStatus NcclMessage::enqueue(const NcclApi& api, NcclComm comm, CudaStream stream) const {
  return way_ == Way::kSend ? api.send(data_.data(), data_.size(), nccl::kUInt8, 1, comm, stream)
                            : api.receive(data_.data(), data_.size(), nccl::kUInt8, 0, comm, stream);
}

}  // namespace shoal::runtime
