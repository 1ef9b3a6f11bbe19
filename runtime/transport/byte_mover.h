// What a Communicator can be made of where others already move bytes: a process group, or whatever else has these few calls. It moves;
// the reductions are made here, by each owner, in the order of ranks: the same bits as in shared memory.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// Blocking; one call at a time, but for messages that were sent and not waited for. Counts are bytes.
class ByteMover {
 public:
  virtual ~ByteMover() = default;
  virtual Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                                  const Call& call) = 0;
  virtual Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                                  Communicator::Counts receives, const Call& call) = 0;
  virtual Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) = 0;
  virtual Result<void> barrier(const Call& call) = 0;
  // Returns before the other one receives.
  virtual WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) = 0;
  virtual WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) = 0;
  // The group has failed on this rank: the others shall hear of it, if they can.
  virtual void abort(const Error& cause) = 0;
  virtual void leave() = 0;
};

// Every operation but send and receive is done when its call returns. It has no windows, and is not formed again.
class MovedCommunicator final : public Communicator {
 public:
  // `transport`: a name for people.
  MovedCommunicator(int rank, int world_size, std::shared_ptr<ByteMover> mover, std::string transport);
  ~MovedCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::uint64_t generation() const override { return 1; }
  const char* transport() const override { return transport_.c_str(); }

  WorkPtr all_gather(ConstBytes input, MutableBytes output, Counts counts, DType dtype, Call call) override;
  WorkPtr reduce_scatter(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, Call call) override;
  WorkPtr all_reduce(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, Call call) override;
  WorkPtr broadcast(MutableBytes data, int root, DType dtype, Call call) override;
  WorkPtr all_to_all(ConstBytes input, MutableBytes output, Counts send_counts, Counts receive_counts, DType dtype, Call call) override;
  WorkPtr barrier(Call call) override;
  WorkPtr send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;
  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override;
  std::optional<Error> failed() const override;
  std::vector<int> lost() const override { return {}; }
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  Result<void> scatter_reduced(ConstBytes input, MutableBytes output, Counts counts, DType dtype, ReduceOp op, const Call& call);
  Result<void> reduce_everywhere(ConstBytes input, MutableBytes output, DType dtype, ReduceOp op, const Call& call);
  // Does it, unless the group has failed; a failure is the group's.
  template <class F>
  WorkPtr run(const Call& call, F&& operation);

  const int rank_, world_size_;
  const std::shared_ptr<ByteMover> mover_;
  const std::string transport_;
  struct Failure {
    std::mutex mutex;
    std::optional<Error> cause;
  };
  class Message;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::atomic<bool> left_{false};
};

}  // namespace shoal::runtime
