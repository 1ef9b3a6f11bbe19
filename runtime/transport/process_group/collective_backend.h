// A Communicator over another byte transport, such as a process group. The transport only moves bytes. Reductions happen here, on the rank
// that owns the result, in rank order, with the same bits as in shared memory.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// A blocking byte transport. One call at a time, apart from pending sends and receives. Counts are bytes.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                                  const Call& call) = 0;
  virtual Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                                  Communicator::Counts receives, const Call& call) = 0;
  virtual Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) = 0;
  virtual Result<void> barrier(const Call& call) = 0;
  // Returns before the other rank receives.
  virtual WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) = 0;
  virtual WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) = 0;
  // Called after a failure on this rank, to report it to the other ranks if possible.
  virtual void abort(const Error& cause) = 0;
  virtual void leave() = 0;
};

// All operations except send and receive are complete when the call returns. Windows and reform() are unimplemented.
class BackendCommunicator final : public Communicator {
 public:
  // `transport`: a name for messages.
  BackendCommunicator(int rank, int world_size, std::shared_ptr<CollectiveBackend> backend, std::string transport);
  ~BackendCommunicator() override;

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
  // The reason why this rank may make no call any more: it has left, or the group has failed.
  std::optional<Error> unusable(const Call& call) const;
  // Runs the operation unless unusable(); its failure fails the group.
  template <class F>
  WorkPtr run(const Call& call, F&& operation);

  const int rank_, world_size_;
  const std::shared_ptr<CollectiveBackend> backend_;
  const std::string transport_;
  // The group's failure. Messages share it, because they may outlive the communicator.
  class Failure;
  class Message;
  const std::shared_ptr<Failure> failure_;
  std::atomic<bool> left_{false};
};

}  // namespace shoal::runtime
