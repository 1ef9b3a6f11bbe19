// The Communicator of ranks that share memory: every rank writes its inputs into it and reads those of the others.
//
// Data goes chunk by chunk, with one copy into shared memory and one reduction or copy out of it (shm_operation.h). A thread that waits for
// an operation advances all pending ones (shm_progress.h).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/transport/communicator_request.h"
#include "runtime/transport/shm/shm_progress.h"

namespace shoal::runtime {

class ShmCommunicator final : public Communicator, private OperationDriver, public std::enable_shared_from_this<ShmCommunicator> {
 public:
  // Makes the first generation. The request has shared memory. Does not wait for the other ranks; the first operation does.
  static Result<std::shared_ptr<Communicator>> make(CommunicatorRequest request, std::shared_ptr<Clock> clock);
  ~ShmCommunicator() override;

  int rank() const override { return request_.rank; }
  int world_size() const override { return request_.world_size; }
  std::uint64_t generation() const override { return generation_; }
  const char* transport() const override { return "shm"; }

  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override;
  std::optional<Error> failed() const override;
  std::vector<int> lost() const override;
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  class ShmWork;

  ShmCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<Mapping> mapping, std::uint64_t generation,
                  std::optional<ShmGroup::Former> former);
  static Result<std::shared_ptr<Communicator>> make_generation(CommunicatorRequest request, std::shared_ptr<Clock> clock,
                                                               std::uint64_t generation, std::optional<ShmGroup::Former> former);
  WorkPtr start_collective(CollectiveSpec spec, Call call) override;
  WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;
  OperationPtr message(int from, int to, MutableBytes data, DType dtype, std::uint32_t tag, Call call) const;
  WorkPtr submitted(PendingOperations::Lock lock, OperationPtr operation);

  std::optional<Error> unusable() const;

  Result<void> drive(const OperationPtr& until) override;
  void wake() override;
  bool has_failed() const override;
  bool over(bool drove) const override;
  Error failure_in(const std::string& what) const override;

  const CommunicatorRequest request_;
  const std::shared_ptr<Clock> clock_;
  const std::uint64_t generation_;
  ShmGroup group_;
  PendingOperations pending_;
  ShmProgress progress_;
  std::atomic<bool> left_{false};

  std::mutex windows_mutex_;
  // For each window: the size of this rank's part, then the sizes of all ranks' parts.
  std::deque<std::vector<std::size_t>> window_sizes_;
};

}  // namespace shoal::runtime
