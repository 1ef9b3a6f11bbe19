#include "runtime/transport/nccl/nccl_channel.h"

namespace shoal::runtime {

Result<NcclChannel> NcclChannel::make(const NcclApi& api, std::shared_ptr<const Device> device) {
  SHOAL_TRY(auto stream, device->make_stream());
  return NcclChannel(api, std::move(device), std::move(stream));
}

NcclChannel::~NcclChannel() { abort(); }

bool NcclChannel::connected() const {
  const std::lock_guard lock(*mutex_);
  return comm_.get() != nullptr;
}

Result<void> NcclChannel::connect(const NcclUniqueId& id, int num_ranks, int rank) {
  const Device::Current current(*device_);
  NcclConfig config;
  const auto status = api_->comm_init(comm_.address(), num_ranks, id, rank, &config);
  if (status != nccl::kSuccess && status != nccl::kInProgress) {
    Error error = from_nccl(*api_, status, comm_.get(), "connecting the ranks");
    abort();
    return fail(std::move(error));
  }
  in_progress_ = true;
  return {};
}

Result<bool> NcclChannel::ready() {
  const std::lock_guard lock(*mutex_);
  if (aborted_) return fail(unavailable("the communicator was aborted").with_reason("Closed"));
  if (comm_.get() == nullptr) return false;
  NcclStatus state = nccl::kSuccess;
  const auto status = api_->comm_async_error(comm_.get(), &state);
  if (status != nccl::kSuccess) return fail(from_nccl(*api_, status, comm_.get(), "asking for the state"));
  if (state == nccl::kInProgress) return false;
  if (state != nccl::kSuccess) return fail(from_nccl(*api_, state, comm_.get(), in_progress_ ? "what was begun" : "work on the device"));
  in_progress_ = false;
  return true;
}

Result<void> NcclChannel::issue(const std::function<NcclStatus(NcclComm comm, CudaStream stream)>& calls, std::string_view what) {
  const Device::Current current(*device_);
  const std::lock_guard lock(*mutex_);
  if (aborted_) return fail(unavailable("the communicator was aborted").with_reason("Closed"));
  auto status = api_->group_start();
  if (status != nccl::kSuccess) return fail(from_nccl(*api_, status, comm_.get(), what));
  const auto called = calls(comm_.get(), stream_.get());
  status = api_->group_end();  // in any case: a group left open would swallow the calls of every later one
  if (called != nccl::kSuccess && called != nccl::kInProgress) status = called;
  if (status != nccl::kSuccess && status != nccl::kInProgress) return fail(from_nccl(*api_, status, comm_.get(), what));
  in_progress_ = true;
  return {};
}

void NcclChannel::close(const std::function<bool()>& pause) {
  if (!connected()) return;
  const Device::Current current(*device_);
  const auto settled = [&] {
    NcclStatus state = nccl::kInProgress;
    while (api_->comm_async_error(comm_.get(), &state) == nccl::kSuccess && state == nccl::kInProgress && pause()) {
    }
    return state == nccl::kSuccess;
  };
  if (!settled()) return abort();
  const auto finalized = api_->comm_finalize(comm_.get());
  if ((finalized != nccl::kSuccess && finalized != nccl::kInProgress) || !settled()) return abort();
  (void)api_->comm_destroy(comm_.release());
}

void NcclChannel::abort() {
  if (mutex_ == nullptr) return;
  const std::lock_guard lock(*mutex_);
  if (comm_.get() == nullptr) return;
  const Device::Current current(*device_);
  aborted_ = true;
  (void)api_->comm_abort(comm_.release());
}

}  // namespace shoal::runtime
