#include "runtime/transport/process_group/collective_backend.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "runtime/transport/reduction.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kGatheredBytes = 8 << 10;  // an all_reduce up to this size is one all_gather, and every rank reduces everything

class DoneWork final : public Work {
 public:
  bool done() const override { return true; }
  Result<void> wait() override { return {}; }
};

std::vector<const std::byte*> pieces(const std::vector<std::byte>& all, std::size_t piece) {
  std::vector<const std::byte*> out;
  for (std::size_t at = 0; at < all.size(); at += piece) out.push_back(all.data() + at);
  return out;
}

}  // namespace

class BackendCommunicator::Failure {
 public:
  explicit Failure(std::shared_ptr<CollectiveBackend> backend) : backend_(std::move(backend)) {}
  // Keeps the first cause, and reports it to the other ranks.
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

// A message whose failure fails the group.
class BackendCommunicator::Message final : public Work {
 public:
  Message(WorkPtr work, std::shared_ptr<Failure> failure) : work_(std::move(work)), failure_(std::move(failure)) {}
  bool done() const override { return work_->done(); }
  Result<void> wait() override {
    auto ended = work_->wait();
    if (!ended && ended.error().reason() != "Interrupted") failure_->set(ended.error());
    return ended;
  }

 private:
  const WorkPtr work_;
  const std::shared_ptr<Failure> failure_;
};

BackendCommunicator::BackendCommunicator(int rank, int world_size, std::shared_ptr<CollectiveBackend> backend, std::string transport)
    : rank_(rank),
      world_size_(world_size),
      backend_(std::move(backend)),
      transport_(std::move(transport)),
      failure_(std::make_shared<Failure>(backend_)) {}

BackendCommunicator::~BackendCommunicator() { leave(); }

std::optional<Error> BackendCommunicator::unusable(const Call& call) const {
  if (left_) return unavailable("this communicator was left").with_reason("Closed");
  if (auto error = failed()) return std::move(*error).in(fmt::format("'{}', step {}", call.label, call.step));
  return std::nullopt;
}

template <class F>
WorkPtr BackendCommunicator::run(const Call& call, F&& operation) {
  if (auto error = unusable(call)) return failed_work(*std::move(error));
  Result<void> done = operation();
  if (done) return std::make_shared<DoneWork>();
  if (done.error().reason() != "Interrupted") abort(done.error());
  return failed_work(std::move(done).error().in(fmt::format("seen by rank {}", rank_)));
}

Result<void> BackendCommunicator::scatter_reduced(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op,
                                                  const Call& call) {
  const std::size_t own = counts[static_cast<std::size_t>(rank_)];
  std::vector<std::byte> all(own * static_cast<std::size_t>(world_size_));
  const std::vector<std::size_t> receives(static_cast<std::size_t>(world_size_), own);
  SHOAL_OK(backend_->all_to_all(input, all, counts, receives, call));
  if (own > 0) reduce(dtype, op, pieces(all, own), output.data(), own / dtype_bytes(dtype));
  return {};
}

Result<void> BackendCommunicator::reduce_everywhere(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, const Call& call) {
  const auto world = static_cast<std::size_t>(world_size_);
  const std::size_t element = dtype_bytes(dtype), numel = input.size() / element;
  if (input.size() <= kGatheredBytes) {
    std::vector<std::byte> all(input.size() * world);
    SHOAL_OK(backend_->all_gather(input, all, std::vector<std::size_t>(world, input.size()), call));
    if (numel > 0) reduce(dtype, op, pieces(all, input.size()), output.data(), numel);
    return {};
  }
  std::vector<std::size_t> counts;
  const std::size_t even = (numel + world - 1) / world;
  for (std::size_t r = 0; r < world; ++r) counts.push_back((std::min(numel, (r + 1) * even) - std::min(numel, r * even)) * element);
  std::vector<std::byte> own(counts[static_cast<std::size_t>(rank_)]);
  SHOAL_OK(scatter_reduced(input, own, counts, dtype, op, call));
  return backend_->all_gather(own, output, counts, call);
}

WorkPtr BackendCommunicator::all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) {
  call.what = fmt::format("all_gather of {}", dtype_name(dtype));
  if (auto ok = check_all_gather(*this, input.size(), output.size(), counts, dtype); !ok) return failed_work(ok.error());
  return run(call, [&] { return backend_->all_gather(input, output, counts, call); });
}

WorkPtr BackendCommunicator::reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) {
  call.what = fmt::format("reduce_scatter ({}) of {}", reduce_op_name(op), dtype_name(dtype));
  if (auto ok = check_reduce_scatter(*this, input.size(), output.size(), counts, dtype, op); !ok) return failed_work(ok.error());
  return run(call, [&] { return scatter_reduced(input, output, counts, dtype, op, call); });
}

WorkPtr BackendCommunicator::all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) {
  call.what = fmt::format("all_reduce ({}) of {}", reduce_op_name(op), dtype_name(dtype));
  if (auto ok = check_all_reduce(input.size(), output.size(), dtype, op); !ok) return failed_work(ok.error());
  return run(call, [&] { return reduce_everywhere(input, output, dtype, op, call); });
}

WorkPtr BackendCommunicator::broadcast(MutableBytes data, int root, DType dtype, Call call) {
  call.what = fmt::format("broadcast from rank {} of {}", root, dtype_name(dtype));
  if (auto ok = check_peer(*this, root, "root", true); !ok) return failed_work(ok.error());
  return run(call, [&] { return backend_->broadcast(data, root, call); });
}

WorkPtr BackendCommunicator::all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype,
                                        Call call) {
  call.what = fmt::format("all_to_all of {}", dtype_name(dtype));
  if (auto ok = check_all_to_all(*this, input.size(), output.size(), send_counts, receive_counts, dtype); !ok)
    return failed_work(ok.error());
  return run(call, [&] { return backend_->all_to_all(input, output, send_counts, receive_counts, call); });
}

WorkPtr BackendCommunicator::barrier(Call call) {
  return run(call, [&] { return backend_->barrier(call); });
}

WorkPtr BackendCommunicator::send(ConstBytes data, int to, DType, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(*this, to, "destination", false); !ok) return failed_work(ok.error());
  if (auto error = unusable(call)) return failed_work(*std::move(error));
  return std::make_shared<Message>(backend_->send(data, to, tag, call), failure_);
}

WorkPtr BackendCommunicator::receive(MutableBytes data, int from, DType, std::uint32_t tag, Call call) {
  if (auto ok = check_peer(*this, from, "source", false); !ok) return failed_work(ok.error());
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
