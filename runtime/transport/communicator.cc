#include "runtime/transport/communicator.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

class FailedWork final : public Work {
 public:
  explicit FailedWork(Error error) : error_(std::move(error)) {}
  bool ended() const override { return true; }
  Result<void> wait() override { return fail(error_); }

 private:
  const Error error_;
};

// Several operations, which are done when all are.
class AllOf final : public Work {
 public:
  explicit AllOf(std::vector<WorkPtr> works) : works_(std::move(works)) {}
  bool ended() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->ended(); });
  }
  Result<void> wait() override {
    for (const auto& work : works_) SHOAL_OK(work->wait());
    return {};
  }

 private:
  const std::vector<WorkPtr> works_;
};

Result<void> check_own(std::size_t bytes, std::size_t count, const char* what) {
  if (bytes == count) return {};
  return fail(invalid_argument(fmt::format("the {} has {} bytes, this rank's part {}", what, bytes, count)));
}

Result<void> check_all_reduce(std::size_t input, std::size_t output, DType dtype, ReduceOp op) {
  SHOAL_OK(check_reducible(dtype, op));
  if (input != output) return fail(invalid_argument(fmt::format("the input has {} bytes, the output {}", input, output)));
  if (input % dtype_bytes(dtype) != 0)
    return fail(invalid_argument(fmt::format("{} bytes are no whole number of {}", input, dtype_name(dtype))));
  return {};
}

}  // namespace

WorkPtr failed_work(Error error) { return std::make_shared<FailedWork>(std::move(error)); }

Error forked_child_error() {
  return unavailable("this process was forked from one that is a rank of the group")
      .with_reason("Forked")
      .with_hint("make the calls in the parent");
}

Result<DType> parse_dtype(std::string_view name) {
  if (const auto dtype = find_dtype(name)) return *dtype;
  std::string known;
  for (int i = 0; i < kNumDTypes; ++i) known += (i > 0 ? ", " : "") + std::string(dtype_name(static_cast<DType>(i)));
  return fail(invalid_argument("tensors of dtype " + std::string(name) + " are not moved between ranks").with_hint("use one of " + known));
}

const char* collective_name(Collective kind) {
  switch (kind) {
    case Collective::kNone:
      return "nothing";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBarrier:
      return "barrier";
  }
  return "nothing";
}

Result<void> Communicator::check_counts(Counts counts, std::size_t total, const char* what, DType dtype) const {
  if (counts.size() != static_cast<std::size_t>(world_size())) {
    return fail(invalid_argument(fmt::format("{} counts for {} ranks", counts.size(), world_size())));
  }
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] % dtype_bytes(dtype) != 0)
      return fail(invalid_argument(fmt::format("rank {}'s part of {} bytes is no whole number of {}", r, counts[r], dtype_name(dtype))));
  }
  const std::size_t sum = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (sum != total) return fail(invalid_argument(fmt::format("the {} has {} bytes, the ranks' parts add up to {}", what, total, sum)));
  return {};
}

Result<void> Communicator::check_peer(int rank, const char* what, Self self) const {
  if (rank < 0 || rank >= world_size()) {
    return fail(invalid_argument(fmt::format("the {} is rank {} of a group of {}", what, rank, world_size())));
  }
  if (rank == this->rank() && self == Self::kRefused) return fail(invalid_argument(fmt::format("the {} is rank {} itself", what, rank)));
  return {};
}

WorkPtr Communicator::all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) {
  if (auto ok = check_counts(counts, output.size(), "output", dtype); !ok) return failed_work(std::move(ok).error());
  if (auto ok = check_own(input.size(), counts[static_cast<std::size_t>(rank())], "input"); !ok) return failed_work(std::move(ok).error());
  return start_collective({Collective::kAllGather, input, output, {counts.begin(), counts.end()}, {}, dtype}, std::move(call));
}

WorkPtr Communicator::all_gather_each(std::span<const Gather> gathers, DType dtype, Call call) {
  if (gathers.empty()) return failed_work(invalid_argument("no all_gather to begin"));
  for (std::size_t i = 0; i < gathers.size(); ++i) {
    const auto& gather = gathers[i];
    auto ok = check_counts(gather.counts, gather.output.size(), "output", dtype);
    if (ok) ok = check_own(gather.input.size(), gather.counts[static_cast<std::size_t>(rank())], "input");
    if (!ok) return failed_work(std::move(ok).error().in(fmt::format("gather {}", i)));
  }
  return start_gathers(gathers, dtype, std::move(call));
}

WorkPtr Communicator::start_gathers(std::span<const Gather> gathers, DType dtype, Call call) {
  std::vector<WorkPtr> works;
  for (const auto& gather : gathers)
    works.push_back(start_collective({Collective::kAllGather, gather.input, gather.output, gather.counts, {}, dtype}, call));
  return std::make_shared<AllOf>(std::move(works));
}

WorkPtr Communicator::reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) {
  if (auto ok = check_reducible(dtype, op); !ok) return failed_work(std::move(ok).error());
  if (auto ok = check_counts(counts, input.size(), "input", dtype); !ok) return failed_work(std::move(ok).error());
  if (auto ok = check_own(output.size(), counts[static_cast<std::size_t>(rank())], "output"); !ok)
    return failed_work(std::move(ok).error());
  return start_collective({Collective::kReduceScatter, input, output, {counts.begin(), counts.end()}, {}, dtype, op}, std::move(call));
}

WorkPtr Communicator::all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) {
  if (auto ok = check_all_reduce(input.size(), output.size(), dtype, op); !ok) return failed_work(std::move(ok).error());
  return start_collective({Collective::kAllReduce, input, output, {}, {}, dtype, op}, std::move(call));
}

WorkPtr Communicator::broadcast(MutableBytes data, int root, DType dtype, Call call) {
  if (auto ok = check_peer(root, "root", Self::kAllowed); !ok) return failed_work(std::move(ok).error());
  return start_collective({Collective::kBroadcast, {}, data, {}, {}, dtype, ReduceOp::kSum, root}, std::move(call));
}

WorkPtr Communicator::all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call) {
  if (auto ok = check_counts(send_counts, input.size(), "input", dtype); !ok) return failed_work(std::move(ok).error());
  if (auto ok = check_counts(receive_counts, output.size(), "output", dtype); !ok) return failed_work(std::move(ok).error());
  const auto self = static_cast<std::size_t>(rank());
  if (send_counts[self] != receive_counts[self]) {
    return failed_work(
        invalid_argument(fmt::format("this rank sends itself {} bytes and expects {}", send_counts[self], receive_counts[self])));
  }
  return start_collective({Collective::kAllToAll,
                           input,
                           output,
                           {send_counts.begin(), send_counts.end()},
                           {receive_counts.begin(), receive_counts.end()},
                           dtype},
                          std::move(call));
}

WorkPtr Communicator::barrier(Call call) { return start_collective({}, std::move(call)); }

WorkPtr Communicator::send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(to, "destination", Self::kRefused); !ok) return failed_work(std::move(ok).error());
  return start_send(data, to, dtype, tag, std::move(call));
}

WorkPtr Communicator::receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(from, "source", Self::kRefused); !ok) return failed_work(std::move(ok).error());
  return start_receive(data, from, dtype, tag, std::move(call));
}

}  // namespace shoal::runtime
