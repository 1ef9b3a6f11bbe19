#include "runtime/transport/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include "runtime/transport/cuda_ipc/ipc_api.h"
#include "runtime/transport/nccl/nccl_connect.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kScratchBytes = 16;

Error no_windows() {
  return unimplemented("a rank's memory on a device is not read by other ranks through NCCL").with_hint("gather or send it instead");
}

}  // namespace

class NcclCommunicator::NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclCommunicator> communicator, NcclDriver::OperationPtr operation)
      : communicator_(std::move(communicator)), operation_(std::move(operation)) {}
  bool ended() const override { return operation_->ended(); }
  Result<void> wait() override { return communicator_->driver_->wait(*operation_); }
  const NcclOperation& operation() const { return *operation_; }
  bool belongs_to(const NcclCommunicator& communicator) const { return communicator_.get() == &communicator; }

 private:
  const std::shared_ptr<NcclCommunicator> communicator_;
  const NcclDriver::OperationPtr operation_;
};

// ---- setup and leaving -------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Communicator>> NcclCommunicator::make(CommunicatorRequest request, std::shared_ptr<Clock> clock,
                                                             std::shared_ptr<Communicator> control) {
  const auto give_up = [&](Error error) {
    control->abort(error);  // ends the other ranks' waits for this rank
    return fail(std::move(error));
  };
  const NcclApi* nccl = request.nccl->api;
  const CudaApi* cuda = request.nccl->cuda;
  if (cuda == nullptr) {
    auto loaded = CudaApi::load();
    if (!loaded) return give_up(std::move(loaded).error());
    cuda = *loaded;
  }
  if (nccl == nullptr && request.nccl->cuda_ipc) {
    IpcComm::Options options;
    options.kernels = request.nccl->kernels != nullptr ? request.nccl->kernels : DeviceKernels::embedded();
    nccl = &cuda_ipc_api(*cuda, options);
  }
  if (nccl == nullptr) {
    auto loaded = NcclApi::load();
    if (!loaded) return give_up(std::move(loaded).error());
    nccl = *loaded;
  }
  auto device = Device::open(*cuda, request.nccl->device);
  if (!device) return give_up(std::move(device).error());
  auto scratch = (*device)->allocate(kScratchBytes);
  if (!scratch) return give_up(std::move(scratch).error());
  std::shared_ptr<NcclCommunicator> communicator(
      new NcclCommunicator(std::move(request), std::move(clock), std::move(control), *std::move(device), *std::move(scratch)));
  SHOAL_OK(communicator->start(*nccl));
  return std::shared_ptr<Communicator>(std::move(communicator));
}

NcclCommunicator::NcclCommunicator(CommunicatorRequest request, std::shared_ptr<Clock> clock, std::shared_ptr<Communicator> control,
                                   std::shared_ptr<const Device> device, DeviceMemory scratch)
    : request_(std::move(request)),
      clock_(std::move(clock)),
      control_(std::move(control)),
      device_(std::move(device)),
      scratch_(std::move(scratch)) {}

Result<void> NcclCommunicator::start(const NcclApi& api) {
  SHOAL_TRY(auto channel,
            connect_by_nccl(api, device_, *control_, *clock_, {request_.name, request_.nccl->connect_timeout, request_.interrupted}));
  SHOAL_OK(device_->zero(scratch_.get().data(), kScratchBytes, channel.stream()));
  driver_ = std::make_unique<NcclDriver>(
      NcclDriver::Parts{&api, device_, control_, clock_, request_.timeout, request_.nccl->in_flight, request_.interrupted},
      std::move(channel));
  return {};
}

NcclCommunicator::~NcclCommunicator() {
  // The thread and the device's context do not exist in a forked child, while the parent remains a rank.
  if (process_.forked()) {
    (void)driver_.release();
    return;
  }
  driver_.reset();
  leave();
}

void NcclCommunicator::leave() {
  if (!left_.exchange(true)) control_->leave();
}

std::optional<Error> NcclCommunicator::unusable(std::string_view what) const {
  if (process_.forked()) return forked_child_error();
  if (left_) return unavailable("this communicator was left").with_reason("Closed");
  if (auto cause = failed()) return std::move(*cause).in(std::string(what));
  return std::nullopt;
}

Result<std::shared_ptr<Communicator>> NcclCommunicator::reform() {
  if (left_) return fail(unavailable("this communicator was left").with_reason("Closed"));
  abort(unavailable(fmt::format("rank {} forms the group again, without the ranks that are lost", rank())).with_reason("Reformed"));
  SHOAL_OK(driver_->wait_until_closed());
  SHOAL_TRY(auto control, control_->reform());
  left_ = true;  // the control communicator has a next generation
  CommunicatorRequest request = request_;
  request.rank = control->rank();
  request.world_size = control->world_size();
  return make(std::move(request), clock_, std::move(control));
}

Result<std::shared_ptr<Window>> NcclCommunicator::window(std::size_t, Call) { return fail(no_windows()); }

Result<void> NcclCommunicator::read(Window&, int, std::size_t, MutableBytes) { return fail(no_windows()); }

// ---- operations --------------------------------------------------------------------------------------------------------------------

std::optional<CudaStream> NcclCommunicator::after() const {
  if (!request_.nccl->current_stream) return std::nullopt;
  return request_.nccl->current_stream();
}

WorkPtr NcclCommunicator::work_of(Result<NcclDriver::OperationPtr> operation) {
  if (!operation) {
    // The other ranks wait for this rank's part. But a signal concerns this rank's caller alone, who may make the call again.
    if (operation.error().reason() != "Interrupted") abort(Error(operation.error()).in(fmt::format("rank {}", rank())));
    return failed_work(std::move(operation).error());
  }
  return std::make_shared<NcclWork>(shared_from_this(), *std::move(operation));
}

WorkPtr NcclCommunicator::start_collective(CollectiveSpec spec, Call call) {
  if (spec.op == ReduceOp::kBand || spec.op == ReduceOp::kBor || spec.op == ReduceOp::kBxor) {
    return failed_work(unimplemented(fmt::format("ranks on devices have no reduction {}", reduce_op_name(spec.op)))
                           .with_hint("reduce on the host, or gather the values and combine them"));
  }
  const CollectiveSpec whole = spec;
  return start({std::move(spec)}, whole, std::move(call));
}

WorkPtr NcclCommunicator::start(std::vector<CollectiveSpec> specs, const CollectiveSpec& whole, Call call) {
  if (auto error = unusable(collective_name(whole.kind))) return failed_work(*std::move(error));
  for (const auto& spec : specs) {
    for (const auto& [data, what] : {std::pair(spec.input, "the input"), std::pair(ConstBytes(spec.output), "the output")}) {
      if (auto on_device = device_->check_memory(data, what); !on_device) return failed_work(std::move(on_device).error());
    }
  }
  return work_of(driver_->submit(
      [&](std::uint64_t sequence) {
        return std::make_shared<NcclCollective>(entry_of(sequence, whole, call), std::move(specs), rank(), scratch_.get(), call,
                                                clock_->now());
      },
      after(), call.timeout));
}

WorkPtr NcclCommunicator::start_gathers(std::span<const Gather> gathers, DType dtype, Call call) {
  CollectiveSpec whole;
  whole.kind = Collective::kAllGather;
  whole.dtype = dtype;
  std::vector<CollectiveSpec> specs;
  for (const auto& gather : gathers) {
    whole.counts.insert(whole.counts.end(), gather.counts.begin(), gather.counts.end());
    specs.push_back({Collective::kAllGather, gather.input, gather.output, gather.counts, {}, dtype});
  }
  return start(std::move(specs), whole, std::move(call));
}

WorkPtr NcclCommunicator::start_send(ConstBytes data, int to, DType dtype, std::uint32_t tag, Call call) {
  // The const_cast is safe: a send only reads. NcclMessage has one span type for both directions.
  return start(NcclMessage::Way::kSend, to, {const_cast<std::byte*>(data.data()), data.size()}, dtype, tag, std::move(call));
}

WorkPtr NcclCommunicator::start_receive(MutableBytes data, int from, DType dtype, std::uint32_t tag, Call call) {
  return start(NcclMessage::Way::kReceive, from, data, dtype, tag, std::move(call));
}

WorkPtr NcclCommunicator::start(NcclMessage::Way way, int other, MutableBytes data, DType dtype, std::uint32_t tag, Call call) {
  const bool sends = way == NcclMessage::Way::kSend;
  if (auto error = unusable(sends ? "send" : "receive")) return failed_work(*std::move(error));
  if (auto on_device = device_->check_memory(data, "the message"); !on_device) return failed_work(std::move(on_device).error());
  return work_of(
      driver_->submit(std::make_shared<NcclMessage>(way, rank(), other, data, dtype, tag, std::move(call), clock_->now()), after()));
}

Result<void> NcclCommunicator::order_after(Work& work, CudaStream stream) {
  const auto* const own = dynamic_cast<const NcclWork*>(&work);
  if (own == nullptr && work.ended()) return work.wait();  // it failed before it began
  if (own == nullptr || !own->belongs_to(*this)) return fail(invalid_argument("the work belongs to another communicator"));
  return driver_->order_after(own->operation(), stream);
}

}  // namespace shoal::runtime
