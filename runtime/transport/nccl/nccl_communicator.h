// The Communicator of ranks that have a CUDA device each. Its buffers are memory of the devices, which NCCL moves.
//
// A second communicator of the same ranks, the control communicator, carries the agreements of the hosts: the id of the NCCL communicator,
// the comparison of calls, failures with their first cause, and the survivors. A generation has NCCL
// communicators of its own; a failure aborts them.
//
// NCCL adds in an order of its own, so sums may differ from other transports' in their last bits. They are the same on every rank.
#pragma once

#include "runtime/core/owner_process.h"
#include "runtime/transport/communicator_request.h"
#include "runtime/transport/nccl/nccl_driver.h"

namespace shoal::runtime {

class NcclCommunicator final : public Communicator, public std::enable_shared_from_this<NcclCommunicator> {
 public:
  // Connects the ranks, which all make this call; the request has `nccl`. Unavailable/NoCuda or NoNccl without the libraries,
  // InvalidArgument/DeviceShared if two ranks have one device, DeadlineExceeded/Late if NCCL does not connect in time.
  static Result<std::shared_ptr<Communicator>> make(CommunicatorRequest request, std::shared_ptr<Clock> clock,
                                                    std::shared_ptr<Communicator> control);
  ~NcclCommunicator() override;

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  std::uint64_t generation() const override { return control_->generation(); }
  const char* transport() const override { return request_.nccl->cuda_ipc ? "cuda_ipc" : "nccl"; }

  // Returns InvalidArgument for the Work of another communicator.
  Result<void> order_after(Work& work, CudaStream stream) override;
  const Device& device() const { return *device_; }

  // Return Unimplemented: a rank's memory is read over another transport.
  Result<std::shared_ptr<Window>> window(std::size_t bytes, Call call) override;
  Result<void> read(Window& window, int from, std::size_t offset, MutableBytes out) override;

  void abort(const Error& cause) override { control_->abort(cause); }
  std::optional<Error> failed() const override { return control_->failed(); }
  std::vector<int> lost() const override { return control_->lost(); }
  Result<std::shared_ptr<Communicator>> reform() override;
  void leave() override;

 private:
  class NcclWork;
  NcclCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<Communicator> control,
                   std::shared_ptr<const Device> device, DeviceMemory scratch);
  Result<void> start(const NcclApi& api);
  WorkPtr start_collective(CollectiveSpec spec, Call call) override;
  WorkPtr start_gathers(std::span<const Gather> gathers, DType dtype, Call call) override;
  WorkPtr start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) override;
  WorkPtr start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) override;

  WorkPtr start(std::vector<CollectiveSpec> specs, const CollectiveSpec& whole, Call call);
  WorkPtr start(NcclMessage::Way way, int other, MutableBytes data, DType dtype, std::uint32_t tag, Call call);
  WorkPtr work_of(Result<NcclDriver::OperationPtr> operation);
  std::optional<Error> unusable(std::string_view what) const;
  std::optional<CudaStream> after() const;

  const OwnerProcess process_;
  const CommunicatorRequest request_;
  const std::shared_ptr<Clock> clock_;
  const std::shared_ptr<Communicator> control_;
  const std::shared_ptr<const Device> device_;
  const DeviceMemory scratch_;  // for barriers
  std::atomic<bool> left_{false};
  std::unique_ptr<NcclDriver> driver_;
};

}  // namespace shoal::runtime
