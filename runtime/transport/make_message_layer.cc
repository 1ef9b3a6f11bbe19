#include "runtime/transport/make_message_layer.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "runtime/transport/tcp/tcp_layer.h"
#include "runtime/transport/ucx/ucx_layer.h"
#include "runtime/transport/ucx/ucx_library.h"

namespace shoal::runtime {

namespace {

constexpr const char* kRdmaDevices = "/sys/class/infiniband";

bool has_rdma() {
  std::error_code ignored;
  const std::filesystem::directory_iterator devices(kRdmaDevices, ignored);
  return !ignored && devices != std::filesystem::directory_iterator();
}

// The name of the interface with this IPv4 address; any other text is returned as it is.
std::string device_of(const std::string& interface) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return interface;
  std::string out = interface;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    char address[INET_ADDRSTRLEN] = {};
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    (void)inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, address, sizeof address);
    if (interface == address) out = i->ifa_name;
  }
  freeifaddrs(all);
  return out;
}

Result<std::shared_ptr<MessageLayer>> make_ucx(const MessageNetwork& network) {
  // A rank without the library reports that, so that no rank waits for it.
  const auto library = UcxLibrary::load();
  SHOAL_TRY(const auto reasons, network.exchange(library ? std::string() : library.error().message()));
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (!reasons[r].empty()) {
      return fail(unavailable(fmt::format("rank {} cannot use UCX: {}", r, reasons[r]))
                      .with_reason("NoUcx")
                      .with_hint("install UCX on every host (Debian: libucx0), or use tcp"));
    }
  }
  return make_ucx_layer({network.rank, network.world_size, network.exchange, device_of(network.interface)});
}

Result<std::shared_ptr<MessageLayer>> make_tcp(const MessageNetwork& network, std::shared_ptr<const Tls> tls) {
  TcpOptions options;
  options.rank = network.rank;
  options.world_size = network.world_size;
  options.exchange = network.exchange;
  options.interface = network.interface;
  options.tls = std::move(tls);
  return make_tcp_layer(std::move(options));
}

}  // namespace

Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network) {
  if (!network.kind.empty() && network.kind != "tcp" && network.kind != "tls" && network.kind != "ucx") {
    return fail(invalid_argument(fmt::format("there is no transport '{}' between hosts", network.kind)).with_hint("tcp, tls or ucx"));
  }
  if (network.kind == "tls" && !network.tls) {
    return fail(invalid_argument("tls needs the certificate of a cluster over several hosts, which this process does not have")
                    .with_reason("NoCertificate")
                    .with_hint("start the head with `shoal start --head --host ADDRESS`, or use tcp"));
  }
  const std::string wish = !network.kind.empty() ? network.kind : has_rdma() && UcxLibrary::load() ? "rdma" : "any";
  SHOAL_TRY(const auto wishes, network.exchange(wish));
  const auto all = [&](const char* kind) { return std::ranges::all_of(wishes, [&](const std::string& w) { return w == kind; }); };
  const auto any = [&](const char* kind) { return std::ranges::find(wishes, kind) != wishes.end(); };
  if (any("ucx") || any("tcp") || any("tls")) {
    for (std::size_t r = 0; r < wishes.size(); ++r) {
      if (wishes[r] == wish) continue;
      return fail(
          invalid_argument(fmt::format("the ranks' transports differ: {} on rank {}, {} on rank {}", wish, network.rank, wishes[r], r))
              .with_reason("Diverged")
              .with_hint("set SHOAL_TRANSPORT alike on every rank"));
    }
  }
  if (wish == "ucx" || all("rdma")) return make_ucx(network);
  return make_tcp(network, wish == "tls" ? network.tls : nullptr);
}

}  // namespace shoal::runtime
