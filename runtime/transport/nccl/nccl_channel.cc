#include "runtime/transport/nccl/nccl_channel.h"

#include <chrono>
#include <thread>

namespace shoal::runtime {

namespace {

// How often an abort looks whether another thread's call has ended, until it takes that thread for stuck.
constexpr int kAbortTries = 1000;
constexpr auto kAbortPause = std::chrono::microseconds(500);

Error channel_closed() { return unavailable("the communicator was aborted").with_reason("Closed"); }

}  // namespace

Result<NcclChannel> NcclChannel::make(const NcclApi& api, std::shared_ptr<const Device> device) {
  SHOAL_TRY(auto stream, device->make_stream());
  return NcclChannel(api, std::move(device), std::move(stream));
}

NcclChannel::~NcclChannel() { abort(); }

bool NcclChannel::connected() const { return comm_.get() != nullptr; }

Result<void> NcclChannel::connect(const NcclUniqueId& id, int num_ranks, int rank, const std::string& name) {
  const Device::Current current(*device_);
  name_ = std::make_unique<const std::string>(name);
  NcclConfig config = nccl_config_for(api_->version);
  config.comm_name = name_->c_str();
  NcclComm comm = nullptr;
  const auto status = api_->comm_init(&comm, num_ranks, id, rank, &config);
  comm_.set(comm);
  if (status != nccl::kSuccess && status != nccl::kInProgress) {
    Error error = from_nccl(*api_, status, comm, "connecting the ranks");
    abort();
    return fail(std::move(error));
  }
  in_progress_ = true;
  return {};
}

Result<bool> NcclChannel::ready() {
  if (comm_.aborted()) return fail(channel_closed());
  const std::unique_lock lock(*mutex_, std::try_to_lock);
  const auto comm = comm_.get();
  if (!lock.owns_lock() || comm == nullptr) return false;  // a call of another thread may be stuck
  NcclStatus state = nccl::kSuccess;
  const auto status = api_->comm_async_error(comm, &state);
  if (comm_.aborted()) return fail(channel_closed());
  if (status != nccl::kSuccess) return fail(from_nccl(*api_, status, comm, "asking for the state"));
  if (state == nccl::kInProgress) return false;
  if (state != nccl::kSuccess) return fail(from_nccl(*api_, state, comm, in_progress_ ? "what was begun" : "work on the device"));
  in_progress_ = false;
  return true;
}

Result<void> NcclChannel::issue(const std::function<NcclStatus(NcclComm comm, CudaStream stream)>& calls, std::string_view what) {
  const Device::Current current(*device_);
  const std::lock_guard lock(*mutex_);
  const auto comm = comm_.get();
  if (comm_.aborted() || comm == nullptr) return fail(channel_closed());
  auto status = api_->group_start();
  if (status != nccl::kSuccess) return fail(from_nccl(*api_, status, comm, what));
  const auto called = calls(comm, stream_.get());
  status = api_->group_end();  // in any case: a group left open would swallow the calls of every later one
  if (called != nccl::kSuccess && called != nccl::kInProgress) status = called;
  if (comm_.aborted()) return fail(channel_closed());
  if (status != nccl::kSuccess && status != nccl::kInProgress) return fail(from_nccl(*api_, status, comm, what));
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
  if (comm_.get() == nullptr) return;
  const Device::Current current(*device_);
  comm_.set_aborted();  // another thread makes no further call
  std::unique_lock lock(*mutex_, std::defer_lock);
  for (int i = 0; i < kAbortTries && !lock.try_lock(); ++i) std::this_thread::sleep_for(kAbortPause);
  (void)api_->comm_abort(comm_.release());
}

}  // namespace shoal::runtime
