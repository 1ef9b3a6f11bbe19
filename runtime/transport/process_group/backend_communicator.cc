#include "runtime/transport/process_group/backend_communicator.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "runtime/transport/overlap.h"
#include "runtime/transport/reduction.h"

namespace shoal::runtime {

namespace {

// An all_reduce up to this size is one all_gather, after which every rank reduces all inputs.
constexpr std::size_t kGatheredBytes = 8 << 10;

class EndedWork final : public Work {
 public:
  bool ended() const override { return true; }
  Result<void> wait() override { return {}; }
};

// Names the collective with its reduction and dtype, for backends that compare calls as text. Empty for a barrier.
std::string text_of(const CollectiveSpec& spec) {
  if (spec.kind == Collective::kBarrier) return {};
  const bool reduces = spec.kind == Collective::kReduceScatter || spec.kind == Collective::kAllReduce;
  const std::string how = reduces                               ? fmt::format(" ({})", reduce_op_name(spec.op))
                          : spec.kind == Collective::kBroadcast ? fmt::format(" from rank {}", spec.root)
                                                                : "";
  return fmt::format("{}{} of {}", collective_name(spec.kind), how, dtype_name(spec.dtype));
}

std::vector<const std::byte*> pieces(const std::vector<std::byte>& all, std::size_t piece) {
  std::vector<const std::byte*> out;
  for (std::size_t at = 0; at < all.size(); at += piece) out.push_back(all.data() + at);
  return out;
}

}  // namespace

class BackendCommunicator::Failure {
 public:
  explicit Failure(std::shared_ptr<CollectiveBackend> backend) : backend_(std::move(backend)) {}
  // Records the first cause only, and reports it to the other ranks.
  void set(const Error& cause) {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) return;
      cause_ = cause;
    }
    backend_->abort(cause);
  }
  std::optional<Error> cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

 private:
  const std::shared_ptr<CollectiveBackend> backend_;
  mutable std::mutex mutex_;
  std::optional<Error> cause_;
};

// A send or receive, whose failure fails the group.
class BackendCommunicator::Message final : public Work {
 public:
  Message(WorkPtr work, std::shared_ptr<Failure> failure) : work_(std::move(work)), failure_(std::move(failure)) {}
  bool ended() const override { return work_->ended(); }
  Result<void> wait() override {
    auto ended = work_->wait();
    if (!ended && ended.error().reason() != "Interrupted") failure_->set(ended.error());
    return ended;
  }

 private:
  const WorkPtr work_;
  const std::shared_ptr<Failure> failure_;
};

Result<std::shared_ptr<Communicator>> BackendCommunicator::make(const CommunicatorRequest& request) {
  SHOAL_TRY(auto backend, request.bytes->open());
  return std::shared_ptr<Communicator>(new BackendCommunicator(request, std::move(backend)));
}

BackendCommunicator::BackendCommunicator(const CommunicatorRequest& request, std::shared_ptr<CollectiveBackend> backend)
    : rank_(request.rank),
      world_size_(request.world_size),
      backend_(std::move(backend)),
      transport_(request.bytes->name),
      failure_(std::make_shared<Failure>(backend_)) {}

BackendCommunicator::~BackendCommunicator() { leave(); }

std::optional<Error> BackendCommunicator::unusable(const Call& call) const {
  if (left_) return unavailable("this communicator was left").with_reason("Closed");
  if (auto error = failed()) return std::move(*error).in(fmt::format("'{}', step {}", call.label, call.step));
  return std::nullopt;
}

WorkPtr BackendCommunicator::start_collective(CollectiveSpec spec, Call call) {
  call.what = text_of(spec);
  if (auto error = unusable(call)) return failed_work(*std::move(error));
  std::vector<std::byte> copy;
  set_input_apart(spec, rank_, copy);
  Result<void> result = run(spec, call);
  if (result) return std::make_shared<EndedWork>();
  if (result.error().reason() != "Interrupted") abort(result.error());
  return failed_work(std::move(result).error().in(fmt::format("seen by rank {}", rank_)));
}

Result<void> BackendCommunicator::run(const CollectiveSpec& spec, const Call& call) {
  switch (spec.kind) {
    case Collective::kNone:
      return {};
    case Collective::kAllGather:
      return backend_->all_gather(spec.input, spec.output, spec.counts, call);
    case Collective::kReduceScatter:
      return scatter_reduced(spec.input, spec.output, spec.counts, spec, call);
    case Collective::kAllReduce:
      return reduce_everywhere(spec, call);
    case Collective::kBroadcast:
      return backend_->broadcast(spec.output, spec.root, call);
    case Collective::kAllToAll:
      return backend_->all_to_all(spec.input, spec.output, spec.counts, spec.receive, call);
    case Collective::kBarrier:
      return backend_->barrier(call);
  }
  return {};
}

Result<void> BackendCommunicator::scatter_reduced(ConstBytes input, MutableBytes output, Counts counts, const CollectiveSpec& spec,
                                                  const Call& call) {
  const std::size_t own = counts[static_cast<std::size_t>(rank_)];
  std::vector<std::byte> all(own * static_cast<std::size_t>(world_size_));
  const std::vector<std::size_t> receives(static_cast<std::size_t>(world_size_), own);
  SHOAL_OK(backend_->all_to_all(input, all, counts, receives, call));
  if (own > 0) reduce(spec.dtype, spec.op, pieces(all, own), output.data(), own / dtype_bytes(spec.dtype));
  return {};
}

Result<void> BackendCommunicator::reduce_everywhere(const CollectiveSpec& spec, const Call& call) {
  const auto world = static_cast<std::size_t>(world_size_);
  const std::size_t bytes = spec.input.size(), element = dtype_bytes(spec.dtype), numel = bytes / element;
  if (bytes <= kGatheredBytes) {
    std::vector<std::byte> all(bytes * world);
    SHOAL_OK(backend_->all_gather(spec.input, all, std::vector<std::size_t>(world, bytes), call));
    if (numel > 0) reduce(spec.dtype, spec.op, pieces(all, bytes), spec.output.data(), numel);
    return {};
  }
  std::vector<std::size_t> counts;
  const std::size_t even = (numel + world - 1) / world;
  for (std::size_t r = 0; r < world; ++r) counts.push_back((std::min(numel, (r + 1) * even) - std::min(numel, r * even)) * element);
  std::vector<std::byte> own(counts[static_cast<std::size_t>(rank_)]);
  SHOAL_OK(scatter_reduced(spec.input, own, counts, spec, call));
  return backend_->all_gather(own, spec.output, counts, call);
}

WorkPtr BackendCommunicator::start_send(ConstBytes data, int to, DType, std::uint32_t tag, Call call) {
  if (auto error = unusable(call)) return failed_work(*std::move(error));
  return std::make_shared<Message>(backend_->send(data, to, tag, call), failure_);
}

WorkPtr BackendCommunicator::start_receive(MutableBytes data, int from, DType, std::uint32_t tag, Call call) {
  if (auto error = unusable(call)) return failed_work(*std::move(error));
  return std::make_shared<Message>(backend_->receive(data, from, tag, call), failure_);
}

Result<std::shared_ptr<Window>> BackendCommunicator::window(std::size_t, Call) {
  return fail(unimplemented("ranks that share no memory have no windows to read from yet").with_hint("send and receive instead"));
}

Result<void> BackendCommunicator::read(Window&, int, std::size_t, MutableBytes) {
  return fail(unimplemented("ranks that share no memory cannot read each other's").with_hint("send and receive instead"));
}

void BackendCommunicator::abort(const Error& cause) { failure_->set(cause); }

std::optional<Error> BackendCommunicator::failed() const { return failure_->cause(); }

Result<std::shared_ptr<Communicator>> BackendCommunicator::reform() {
  return fail(
      unimplemented(transport_ + " groups are not formed again without the ranks that are lost").with_hint("make a new process group"));
}

void BackendCommunicator::leave() {
  if (!left_.exchange(true)) backend_->leave();
}

}  // namespace shoal::runtime
