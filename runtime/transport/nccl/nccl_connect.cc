#include "runtime/transport/nccl/nccl_connect.h"

#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr auto kPause = std::chrono::microseconds(200);          // between two looks at NCCL
constexpr auto kConnectSignals = std::chrono::milliseconds(50);  // between two looks at signals

// A rank's part of the exchange at the beginning: its device, and the id if it is rank 0.
struct Introduction {
  CudaUuid device;
  NcclUniqueId id;
  int version;
};

Result<std::vector<Introduction>> introduce(const NcclApi& api, const Device& device, Communicator& control, Duration timeout) {
  Introduction own{device.uuid(), {}, api.version};
  if (control.rank() == 0) {
    const auto status = api.get_unique_id(&own.id);
    if (status != nccl::kSuccess) return fail(from_nccl(api, status, nullptr, "naming the group"));
  }
  std::vector<Introduction> all(static_cast<std::size_t>(control.world_size()));
  Call call;
  call.label = "connecting by nccl";
  call.timeout = timeout;
  const std::vector<std::size_t> counts(all.size(), sizeof(Introduction));
  SHOAL_OK(
      control.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)), counts, DType::kUInt8, call)->wait());
  return all;
}

Result<void> check(const NcclApi& api, const std::vector<Introduction>& all, const Device& device, int rank) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].version != all[0].version) {
      return fail(invalid_argument(fmt::format("rank 0 has NCCL {}, rank {} has {}", nccl_version_text(all[0].version), r,
                                               nccl_version_text(all[r].version)))
                      .with_hint("run the same version on all hosts"));
    }
    for (std::size_t q = 0; q < r && !api.shares_devices; ++q) {
      if (std::memcmp(&all[q].device, &all[r].device, sizeof(CudaUuid)) != 0) continue;
      const bool own = static_cast<int>(q) == rank || static_cast<int>(r) == rank;
      return fail(invalid_argument(fmt::format("ranks {} and {} have the same device{}", q, r,
                                               own ? fmt::format(", number {} ({}) of this process", device.ordinal(), device.name()) : ""))
                      .with_reason("DeviceShared")
                      .with_hint("NCCL needs a device per rank: use torch.cuda.set_device(local_rank), or start fewer ranks"));
    }
  }
  return {};
}

}  // namespace

Result<NcclChannel> connect_by_nccl(const NcclApi& api, std::shared_ptr<const Device> device, Communicator& control, const Clock& clock,
                                    const ConnectOptions& options) {
  const auto until = clock.now() + options.timeout;
  auto signals_at = clock.now();
  const auto give_up = [&](Error error) {
    if (error.reason() != "Interrupted") {
      control.abort(error);
      return fail(control.failed().value_or(std::move(error)));
    }
    control.abort(cancelled(fmt::format("rank {} was interrupted by a signal while NCCL connected the ranks", control.rank()))
                      .with_reason("RankInterrupted"));
    return fail(std::move(error));
  };
  auto all = introduce(api, *device, control, options.timeout);
  if (!all) return give_up(std::move(all).error());
  if (auto checked = check(api, *all, *device, control.rank()); !checked) return give_up(std::move(checked).error());
  auto channel = NcclChannel::make(api, std::move(device));
  if (!channel) return give_up(std::move(channel).error());
  if (auto begun = channel->connect((*all)[0].id, control.world_size(), control.rank(), options.name); !begun)
    return give_up(std::move(begun).error());
  while (true) {
    const auto ready = channel->ready();
    if (!ready) return give_up(ready.error());
    if (*ready) return channel;
    if (auto cause = control.failed()) return fail(*std::move(cause));
    if (clock.now() > until) {
      return give_up(deadline_exceeded(fmt::format("{} has not connected {} ranks in {} s", nccl_name_text(api), control.world_size(),
                                                   std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count()))
                         .with_reason("Late")
                         .with_hint("NCCL_SOCKET_IFNAME names the network interface; NCCL_DEBUG=INFO prints what NCCL tries"));
    }
    if (options.interrupted && clock.now() >= signals_at) {
      signals_at = clock.now() + kConnectSignals;
      if (options.interrupted()) return give_up(cancelled("interrupted by a signal").with_reason("Interrupted"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace shoal::runtime
