// One NCCL communicator with the stream that its operations run on.
//
// The thread that issues an operation and the thread that watches the group both call it: each call of NCCL is made under a mutex, so that
// an abort ends a communicator between two calls. But abort() waits for another thread's call for a moment only: that thread may be stuck
// until the abort has emptied the stream.
//
// No call should block: the communicator is made with blocking=0, and ready() asks NCCL for its progress. NCCL has no time limit for
// connecting, so the owner watches the clock and aborts.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/device/device.h"
#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {

class NcclChannel {
 public:
  static Result<NcclChannel> make(const NcclApi& api, std::shared_ptr<const Device> device);
  NcclChannel(NcclChannel&& other) noexcept = default;
  // Aborts the communicator unless it is closed.
  ~NcclChannel();

  // Begins to connect `num_ranks` ranks, each of which passes the same id. Once only. `name`: for NCCL's log and profilers, from 2.26 on.
  Result<void> connect(const NcclUniqueId& id, int num_ranks, int rank, const std::string& name);
  bool connected() const;
  // False while NCCL still works on the calls that were begun last, and while another thread is in a call. Unavailable/Closed after
  // abort().
  Result<bool> ready();
  // Makes the calls in one group. Call it when ready() is true; then ready() is false until NCCL has put the calls on the stream.
  Result<void> issue(const std::function<NcclStatus(NcclComm comm, CudaStream stream)>& calls, std::string_view what);

  CudaStream stream() const { return stream_.get(); }
  NcclComm comm() const { return comm_.get(); }
  // Ends the communicator in order: waits for NCCL by calls of pause(). Once pause() returns false, it aborts the communicator. No other
  // thread uses the channel any more.
  void close(const std::function<bool()>& pause);
  // Ends the communicator at once. Work on the stream then ends without its effect. Another thread may be in issue(), which then returns
  // Unavailable/Closed.
  void abort();

 private:
  // The handle of the communicator; null after a move.
  class Comm {
   public:
    Comm() = default;
    Comm(Comm&& other) noexcept : comm_(other.release()), aborted_(other.aborted_.load()) {}
    NcclComm get() const { return comm_; }
    void set(NcclComm comm) { comm_ = comm; }
    NcclComm release() { return comm_.exchange(nullptr); }
    bool aborted() const { return aborted_; }
    // To be called before the abort: a call of another thread that the abort ends then returns Unavailable/Closed.
    void set_aborted() { aborted_ = true; }

   private:
    std::atomic<NcclComm> comm_{nullptr};
    std::atomic<bool> aborted_{false};
  };

  NcclChannel(const NcclApi& api, std::shared_ptr<const Device> device, Stream stream)
      : api_(&api), device_(std::move(device)), stream_(std::move(stream)) {}

  const NcclApi* api_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // null after a move
  std::shared_ptr<const Device> device_;
  Stream stream_;
  std::unique_ptr<const std::string> name_;  // NCCL has a pointer to its text
  Comm comm_;
  bool in_progress_ = false;
};

}  // namespace shoal::runtime
