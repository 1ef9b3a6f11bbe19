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

struct Interface {
  std::string name, address;  // empty: the network's choice
};

// The first of these interfaces, or IPv4 addresses, that this host has.
Interface first_of_host(const std::vector<std::string>& interfaces) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  Interface out;
  for (const auto& wished : interfaces) {
    for (const ifaddrs* i = all; i != nullptr && out.name.empty() && !wished.empty(); i = i->ifa_next) {
      char address[INET_ADDRSTRLEN] = {};
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
      (void)inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, address, sizeof address);
      if (wished == address || wished == i->ifa_name) out = {i->ifa_name, address};
    }
  }
  freeifaddrs(all);
  return out;
}

constexpr char kOwn = '+', kError = '!';

// Makes a layer by make(exchange). A rank that fails before its exchange reports that, so that no other rank waits for it.
template <class Make>
Result<std::shared_ptr<MessageLayer>> make_together(const MessageNetwork& network, const Make& make) {
  bool exchanged = false;
  const auto exchange = [&](const std::string& own) -> Result<std::vector<std::string>> {
    exchanged = true;
    SHOAL_TRY(auto all, network.exchange(kOwn + own));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!all[r].empty() && all[r].front() == kError)
        return fail(unavailable(fmt::format("rank {} has no connection to the others: {}", r, all[r].substr(1))));
      if (!all[r].empty()) all[r].erase(0, 1);
    }
    return all;
  };
  Result<std::shared_ptr<MessageLayer>> made = make(exchange);
  if (!made && !exchanged) (void)network.exchange(kError + made.error().message());
  return made;
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
  return make_together(network, [&](const auto& exchange) {
    return make_ucx_layer({network.rank, network.world_size, exchange, first_of_host(network.interfaces).name});
  });
}

Result<std::shared_ptr<MessageLayer>> make_tcp(const MessageNetwork& network, std::shared_ptr<const Tls> tls) {
  TcpOptions options;
  options.rank = network.rank;
  options.world_size = network.world_size;
  options.interface = first_of_host(network.interfaces).address;
  options.tls = std::move(tls);
  return make_together(network, [&](const auto& exchange) {
    options.exchange = exchange;
    return make_tcp_layer(std::move(options));
  });
}

}  // namespace

Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network) {
  const std::string wish = !network.kind.empty() ? network.kind : has_rdma() && UcxLibrary::load() ? "rdma" : "any";
  SHOAL_TRY(const auto wishes, network.exchange(network.kind == "tls" && !network.tls ? "tls without a certificate" : wish));
  if (!network.kind.empty() && network.kind != "tcp" && network.kind != "tls" && network.kind != "ucx") {
    return fail(invalid_argument(fmt::format("there is no transport '{}' between hosts", network.kind)).with_hint("tcp, tls or ucx"));
  }
  if (network.kind == "tls" && !network.tls) {
    return fail(invalid_argument("tls needs the certificate of a cluster over several hosts, which this process does not have")
                    .with_reason("NoCertificate")
                    .with_hint("start the head with `shoal start --head --host ADDRESS`, or use tcp"));
  }
  const auto all = [&](const char* kind) { return std::ranges::all_of(wishes, [&](const std::string& w) { return w == kind; }); };
  const auto any = [&](const char* kind) { return std::ranges::find(wishes, kind) != wishes.end(); };
  if (!all("any") && (!network.kind.empty() || any("ucx") || any("tcp") || any("tls"))) {
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
