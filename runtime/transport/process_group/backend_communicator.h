// A Communicator over a CollectiveBackend, which only moves bytes. This class reduces, on the rank that gets the result, in rank order. So
// results have the same bits as in shared memory.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/transport/collective_backend.h"
#include "runtime/transport/communicator_request.h"

namespace shoal::runtime {

// All operations except send and receive are complete when the call returns. window(), read() and reform() return Unimplemented.
class BackendCommunicator final : public Communicator {
 public:
  // Opens the request's backend.
  static Result<std::shared_ptr<Communicator>> make(const CommunicatorRequest& request);
  ~BackendCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::uint64_t generation() const override { return 1; }
  const char* transport() const override { return transport_.c_str(); }

  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override;
  std::optional<Error> failed() const override;
  std::vector<int> lost() const override { return {}; }
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  BackendCommunicator(const CommunicatorRequest& request, std::shared_ptr<CollectiveBackend> backend);
  WorkPtr start_collective(CollectiveSpec spec, Call call) override;
  WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;

  Result<void> run(const CollectiveSpec& spec, const Call& call);
  Result<void> scatter_reduced(ConstBytes input, MutableBytes output, Counts counts, const CollectiveSpec& spec, const Call& call);
  Result<void> reduce_everywhere(const CollectiveSpec& spec, const Call& call);
  // The error of calls if this rank may make no more calls, because it has left or the group has failed; else nullopt.
  std::optional<Error> unusable(const Call& call) const;

  const int rank_, world_size_;
  const std::shared_ptr<CollectiveBackend> backend_;
  const std::string transport_;
  // The failure of the group. Messages share it, since they may outlive the communicator.
  class Failure;
  class Message;
  const std::shared_ptr<Failure> failure_;
  std::atomic<bool> left_{false};
};

}  // namespace shoal::runtime
