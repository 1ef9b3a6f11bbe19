#include "runtime/transport/ucx/ucx_layer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_set>

#include <fmt/format.h>

#include "runtime/core/fd.h"
#include "runtime/core/owner_process.h"
#include "runtime/transport/ucx/ucx_library.h"

namespace shoal::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kProtocol = 0x53484c02;  // "SHL" and a version; also shows the byte order
constexpr auto kClosing = std::chrono::seconds(1);
constexpr auto kMeeting = std::chrono::seconds(10);
constexpr auto kMeetingChannel = static_cast<MessageLayer::Channel>(0xff);
constexpr int kPolls = 64;  // calls of ucp_worker_progress at once

// Epoch, channel and sender of a message.
std::uint64_t tag_of(std::uint32_t epoch, MessageLayer::Channel channel, int sender) {
  return static_cast<std::uint64_t>(epoch) << 32 | static_cast<std::uint64_t>(channel) << 24 | static_cast<std::uint32_t>(sender);
}
constexpr std::uint64_t kWholeTag = ~std::uint64_t{0}, kEpochOfTag = ~std::uint64_t{0} << 32;

class UcxLayer final : public MessageLayer {
 public:
  UcxLayer(const UcxLibrary& ucx, int rank, int world_size) : ucx_(ucx), rank_(rank), peers_(static_cast<std::size_t>(world_size)) {}
  ~UcxLayer() override;

  Result<void> open(const UcxOptions& options);

  const char* name() const override { return "ucx"; }
  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) override;
  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) override;
  bool progress() override;
  void wait(Duration limit) override;
  void wake() override;
  std::optional<Error> lost(int rank) const override { return peers_[static_cast<std::size_t>(rank)].lost; }
  void flush(Duration limit) override;
  void reset(std::span<const int> gone) override;
  void begin_epoch() override;

 private:
  struct Peer {
    UcxLayer* layer = nullptr;
    std::vector<std::byte> address;
    ucp_ep_h endpoint = nullptr;
    std::optional<Error> lost;
  };

  Error error(const char* what, ucs_status_t status) const {
    return unavailable(fmt::format("{} failed in UCX {}: {}", what, ucx_.version, ucx_.status_string(status)));
  }
  // True in a child that was forked from the rank's process: UCX has no use there.
  bool forked() const { return process_.forked(); }
  void connect(Peer& peer);
  void meet();
  void close_endpoints(std::uint32_t flags);
  void cancel_receives();
  void drop_unexpected(std::uint32_t epoch);
  // Advances until `condition` holds, at most `limit`. Returns condition().
  template <class Condition>
  bool progress_until(const Condition& condition, Duration limit);
  void ended(Transfer& transfer, ucs_status_t status, std::size_t bytes);

  const UcxLibrary& ucx_;
  const OwnerProcess process_;
  const int rank_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  // the worker's descriptor
  Fd wake_;
  std::vector<Peer> peers_;
  std::uint32_t epoch_ = 0;
  std::vector<Transfer> meeting_;  // the empty messages of meet(): first one to each rank, then one from each
  std::unordered_set<Transfer*> receives_;
  std::size_t num_sends_ = 0;
  std::uint64_t num_ended_ = 0;
};

Result<void> UcxLayer::open(const UcxOptions& options) {
  ucp_config_t* config = nullptr;
  if (const auto status = ucx_.config_read(nullptr, nullptr, &config); status != UCS_OK) return fail(error("reading the settings", status));
  // Ranks of one host share memory without UCX. UCX would drop its shared memory under peer error handling in any case.
  if (std::getenv("UCX_TLS") == nullptr) (void)ucx_.config_modify(config, "TLS", "^posix,sysv,cma,knem,xpmem");
  if (!options.devices.empty() && std::getenv("UCX_NET_DEVICES") == nullptr) {
    if (const auto status = ucx_.config_modify(config, "NET_DEVICES", options.devices.c_str()); status != UCS_OK) {
      ucx_.config_release(config);
      return fail(error("choosing the network's devices", status));
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  const auto opened = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  if (opened != UCS_OK) {
    context_ = nullptr;
    return fail(error("opening the network", opened).with_hint("check UCX_TLS, UCX_NET_DEVICES and the interface"));
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto status = ucx_.worker_create(context_, &worker_params, &worker_); status != UCS_OK) {
    worker_ = nullptr;
    return fail(error("making a worker", status));
  }
  if (const auto status = ucx_.worker_get_efd(worker_, &events_); status != UCS_OK) return fail(error("opening its events", status));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake_.get() < 0) return fail(from_errno(errno, "eventfd"));

  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = ucx_.worker_get_address(worker_, &address, &bytes); status != UCS_OK)
    return fail(error("reading its address", status));
  std::string own(sizeof kProtocol, '\0');
  std::memcpy(own.data(), &kProtocol, sizeof kProtocol);
  own.append(reinterpret_cast<const char*>(address), bytes);
  ucx_.worker_release_address(worker_, address);
  SHOAL_TRY(const auto all, options.exchange(own));
  if (all.size() != peers_.size()) return fail(invalid_argument(fmt::format("{} addresses of {} ranks", all.size(), peers_.size())));
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::uint32_t protocol = 0;
    if (all[r].size() > sizeof protocol) std::memcpy(&protocol, all[r].data(), sizeof protocol);
    if (protocol != kProtocol) {
      return fail(invalid_argument(fmt::format("rank {} has another byte order, or another version of Shoal", r))
                      .with_hint("run the same version on hosts of one kind"));
    }
    const auto* data = reinterpret_cast<const std::byte*>(all[r].data());
    peers_[r].layer = this;
    peers_[r].address.assign(data + sizeof protocol, data + all[r].size());
    if (static_cast<int>(r) != rank_) connect(peers_[r]);  // at once: a rank that only receives learns of the other's end, too
  }
  meet();
  return {};
}

// Waits until each connection stands in both directions. If a rank left before, UCX 1.13 would answer the other's late part of connecting
// on a new connection to a closed socket, which ends the process ("tcp_ep.c:478 Assertion"). If a rank is late, this wait
// ends at its limit, without that protection.
void UcxLayer::meet() {
  const auto world_size = peers_.size();
  meeting_.resize(2 * world_size);
  for (std::size_t r = 0; r < world_size; ++r) {
    if (static_cast<int>(r) == rank_) continue;
    send(static_cast<int>(r), kMeetingChannel, {}, meeting_[r]);
    receive(static_cast<int>(r), kMeetingChannel, {}, meeting_[world_size + r]);
  }
  const auto met = [&] {
    for (std::size_t i = 0; i < meeting_.size(); ++i) {
      if (meeting_[i].state == Transfer::State::kPending && !peers_[i % world_size].lost) return false;
    }
    return true;
  };
  (void)progress_until(met, kMeeting);
  cancel_receives();
}

UcxLayer::~UcxLayer() {
  if (forked()) return;
  if (worker_ != nullptr) {
    close_endpoints(0);
    cancel_receives();
    ucx_.worker_destroy(worker_);
  }
  if (context_ != nullptr) ucx_.cleanup(context_);
}

void UcxLayer::connect(Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &peer;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    auto& broken = *static_cast<Peer*>(arg);
    if (!broken.lost) broken.lost = broken.layer->error("its connection", status);
    ++broken.layer->num_ended_;
  };
  if (const auto status = ucx_.ep_create(worker_, &params, &peer.endpoint); status != UCS_OK) {
    peer.endpoint = nullptr;
    peer.lost = error("connecting", status);
  }
}

void UcxLayer::ended(Transfer& transfer, ucs_status_t status, std::size_t bytes) {
  transfer.state = status == UCS_OK ? Transfer::State::kComplete : Transfer::State::kFailed;
  transfer.bytes = bytes;
  transfer.request = nullptr;
  ++num_ended_;
}

void UcxLayer::send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) {
  Peer& peer = peers_[static_cast<std::size_t>(to)];
  transfer.state = Transfer::State::kPending;
  if (peer.endpoint == nullptr || peer.lost) {
    ended(transfer, UCS_ERR_NOT_CONNECTED, 0);
    return;
  }
  struct Context {
    UcxLayer* layer;
    Transfer* transfer;
  };
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = [](void* request, ucs_status_t status, void* user) {
    const std::unique_ptr<Context> context(static_cast<Context*>(user));
    --context->layer->num_sends_;
    context->layer->ended(*context->transfer, status, 0);
    context->layer->ucx_.request_free(request);
  };
  auto context = std::make_unique<Context>(Context{this, &transfer});
  param.user_data = context.get();
  const auto request = ucx_.tag_send_nbx(peer.endpoint, data.data(), data.size(), tag_of(epoch_, channel, rank_), &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    ended(transfer, UCS_PTR_STATUS(request), 0);
    return;
  }
  (void)context.release();
  ++num_sends_;
  transfer.request = request;
}

void UcxLayer::receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) {
  transfer.state = Transfer::State::kPending;
  struct Context {
    UcxLayer* layer;
    Transfer* transfer;
  };
  ucp_request_param_t param{};
  // Without the flag, UCX 1.13 does not report the size of a message that had arrived before.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* received, void* user) {
    const std::unique_ptr<Context> context(static_cast<Context*>(user));
    context->layer->receives_.erase(context->transfer);
    context->layer->ended(*context->transfer, status, status == UCS_OK ? received->length : 0);
    context->layer->ucx_.request_free(request);
  };
  auto* const context = new Context{this, &transfer};  // the callback frees it
  param.user_data = context;
  receives_.insert(&transfer);
  const auto request = ucx_.tag_recv_nbx(worker_, data.data(), data.size(), tag_of(epoch_, channel, from), kWholeTag, &param);
  if (UCS_PTR_IS_ERR(request)) {
    delete context;
    receives_.erase(&transfer);
    ended(transfer, UCS_PTR_STATUS(request), 0);
  } else if (transfer.state == Transfer::State::kPending) {
    transfer.request = request;
  }
}

bool UcxLayer::progress() {
  const auto before = num_ended_;
  for (int i = 0; i < kPolls && ucx_.worker_progress(worker_) != 0; ++i) {
  }
  return num_ended_ != before;
}

void UcxLayer::wait(Duration limit) {
  if (ucx_.worker_arm(worker_) != UCS_OK) return;  // there is something to advance
  pollfd fds[] = {{events_, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(limit, Duration{})).count();
  if (::poll(fds, 2, static_cast<int>(ms)) > 0 && fds[1].revents != 0) {
    std::uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof count);
  }
}

void UcxLayer::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

template <class Condition>
bool UcxLayer::progress_until(const Condition& condition, Duration limit) {
  const auto until = Clock::now() + limit;
  while (!condition()) {
    if (ucx_.worker_progress(worker_) != 0) continue;
    const auto left = until - Clock::now();
    if (left <= Duration{}) return condition();
    wait(std::min<Duration>(left, std::chrono::milliseconds(10)));
  }
  return true;
}

void UcxLayer::flush(Duration limit) {
  ucp_request_param_t param{};
  const auto request = ucx_.worker_flush_nbx(worker_, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
  (void)progress_until([&] { return ucx_.request_check_status(request) != UCS_INPROGRESS; }, limit);
  ucx_.request_free(request);
}

void UcxLayer::close_endpoints(std::uint32_t flags) {
  std::vector<ucs_status_ptr_t> closing;
  for (auto& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = peer.lost ? static_cast<std::uint32_t>(UCP_EP_CLOSE_FLAG_FORCE) : flags;
    const auto request = ucx_.ep_close_nbx(peer.endpoint, &param);
    peer.endpoint = nullptr;
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing.push_back(request);
  }
  const auto closed = [&] {
    return std::all_of(closing.begin(), closing.end(), [&](auto r) { return ucx_.request_check_status(r) != UCS_INPROGRESS; });
  };
  (void)progress_until(closed, kClosing);
  for (const auto request : closing) ucx_.request_free(request);
}

void UcxLayer::cancel_receives() {
  for (auto* transfer : std::vector<Transfer*>(receives_.begin(), receives_.end())) {
    if (transfer->request != nullptr) ucx_.request_cancel(worker_, transfer->request);
  }
  (void)progress_until([&] { return receives_.empty(); }, kClosing);
}

void UcxLayer::drop_unexpected(std::uint32_t epoch) {
  ucp_tag_recv_info_t info{};
  while (auto* const message = ucx_.tag_probe_nb(worker_, static_cast<std::uint64_t>(epoch) << 32, kEpochOfTag, /*remove=*/1, &info)) {
    std::vector<std::byte> unused(info.length);
    ucp_request_param_t param{};
    const auto request = ucx_.tag_msg_recv_nbx(worker_, unused.data(), unused.size(), message, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) continue;
    (void)progress_until([&] { return ucx_.request_check_status(request) != UCS_INPROGRESS; }, kClosing);
    ucx_.request_free(request);
  }
}

void UcxLayer::reset(std::span<const int> gone) {
  if (forked()) return;
  close_endpoints(UCP_EP_CLOSE_FLAG_FORCE);
  begin_epoch();
  (void)progress_until([&] { return num_sends_ == 0; }, kClosing);
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) == rank_ || std::find(gone.begin(), gone.end(), static_cast<int>(r)) != gone.end()) continue;
    peers_[r].lost.reset();
    connect(peers_[r]);
  }
}

void UcxLayer::begin_epoch() {
  cancel_receives();
  drop_unexpected(epoch_);
  ++epoch_;
}

}  // namespace

Result<std::shared_ptr<MessageLayer>> make_ucx_layer(const UcxOptions& options) {
  SHOAL_TRY(const UcxLibrary* ucx, UcxLibrary::load());
  auto layer = std::make_shared<UcxLayer>(*ucx, options.rank, options.world_size);
  SHOAL_OK(layer->open(options));
  return std::shared_ptr<MessageLayer>(std::move(layer));
}

}  // namespace shoal::runtime
