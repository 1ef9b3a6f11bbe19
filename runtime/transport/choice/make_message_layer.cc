#include "runtime/transport/choice/make_message_layer.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "runtime/net/interfaces.h"
#include "runtime/transport/tcp/tcp_layer.h"
#include "runtime/transport/ucx/rdma_devices.h"
#include "runtime/transport/ucx/ucx_layer.h"
#include "runtime/transport/ucx/ucx_library.h"

namespace shoal::runtime {

namespace {

// The interface of this rank; empty: the network's choice.
Result<Interface> interface_of(const MessageNetwork& network) {
  if (!network.interface.empty()) return find_interface(network.interface);
  if (network.host.empty()) return Interface();
  return find_interface(network.host).value_or(Interface());
}

// True if UCX reaches others by RDMA from the rank's interface, or from any of the host's if the user has not chosen one.
bool has_rdma(const MessageNetwork& network) {
  const auto chosen = network.interface.empty() ? Interface() : find_interface(network.interface).value_or(Interface());
  if ((chosen.name.empty() && !network.interface.empty()) || rdma_devices(chosen.name).empty()) return false;
  const auto library = UcxLibrary::load(network.ucx_library);
  return library && std::ranges::any_of((*library)->transports(), &UcxTransport::is_rdma);
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
  Result<std::shared_ptr<MessageLayer>> layer = make(exchange);
  if (!layer && !exchanged) (void)network.exchange(kError + layer.error().message());
  return layer;
}

Result<std::shared_ptr<MessageLayer>> make_ucx(const MessageNetwork& network) {
  // A rank without the library reports this, so that no other rank waits for it.
  const auto library = UcxLibrary::load(network.ucx_library);
  SHOAL_TRY(const auto reasons, network.exchange(library ? std::string() : library.error().message()));
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (!reasons[r].empty()) {
      return fail(unavailable(fmt::format("rank {} cannot use UCX: {}", r, reasons[r]))
                      .with_reason("NoUcx")
                      .with_hint("install UCX on every host (Debian: libucx0; or pip install 'shoal[ucx]'), or use tcp"));
    }
  }
  return make_together(network, [&](const auto& exchange) -> Result<std::shared_ptr<MessageLayer>> {
    SHOAL_TRY(const auto interface, interface_of(network));
    const auto devices = ucx_net_devices(interface.name, !network.interface.empty());
    return make_ucx_layer({network.rank, network.world_size, exchange, devices});
  });
}

Result<std::shared_ptr<MessageLayer>> make_tcp(const MessageNetwork& network, std::shared_ptr<const Tls> tls) {
  TcpOptions options;
  options.rank = network.rank;
  options.world_size = network.world_size;
  options.tls = std::move(tls);
  options.may_go_on = network.may_go_on;
  if (network.unanswered > Duration{}) options.unanswered = network.unanswered;
  return make_together(network, [&](const auto& exchange) -> Result<std::shared_ptr<MessageLayer>> {
    SHOAL_TRY(const auto interface, interface_of(network));
    options.interface = interface.address;
    options.exchange = exchange;
    return make_tcp_layer(std::move(options));
  });
}

// The reason why this rank cannot have the transport that it asks for.
std::optional<Error> refusal(const MessageNetwork& network, const std::string& kind) {
  if (network.encrypted && kind != "tls") {
    return invalid_argument(fmt::format("this cluster's data travels in TLS only, and SHOAL_TRANSPORT asks for '{}'", kind))
        .with_reason("NotEncrypted")
        .with_hint("unset SHOAL_TRANSPORT, or start the cluster without --data-tls");
  }
  if (!kind.empty() && kind != "tcp" && kind != "tls" && kind != "ucx")
    return invalid_argument(fmt::format("there is no transport '{}' between hosts", kind)).with_hint("tcp, tls or ucx");
  if (kind == "tls" && !network.tls) {
    return invalid_argument("tls needs the certificate of a cluster over several hosts, which this process does not have")
        .with_reason("NoCertificate")
        .with_hint("start the head with `shoal start --head --host ADDRESS`, or use tcp");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network) {
  const std::string kind = network.kind.empty() && network.encrypted ? "tls" : network.kind;
  const auto refused = refusal(network, kind);
  const std::string wish = refused ? fmt::format("{}, which is refused", kind) : !kind.empty() ? kind : has_rdma(network) ? "rdma" : "any";
  SHOAL_TRY(const auto wishes, network.exchange(wish));
  if (refused) return fail(*refused);
  const auto all = [&](const char* wished) { return std::ranges::all_of(wishes, [&](const std::string& w) { return w == wished; }); };
  // Ranks without a choice of their own take RDMA if all of them have it, else TCP.
  const auto open = [](const std::string& w) { return w == "any" || w == "rdma"; };
  for (std::size_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r] == wish || (open(wishes[r]) && open(wish))) continue;
    return fail(
        invalid_argument(fmt::format("the ranks' transports differ: {} on rank {}, {} on rank {}", wish, network.rank, wishes[r], r))
            .with_reason("Diverged")
            .with_hint("set SHOAL_TRANSPORT alike on every rank"));
  }
  if (wish == "ucx" || all("rdma")) return make_ucx(network);
  return make_tcp(network, wish == "tls" ? network.tls : nullptr);
}

Result<UcxDescription> describe_ucx(const std::string& ucx_library) {
  SHOAL_TRY(const UcxLibrary* library, UcxLibrary::load(ucx_library));
  UcxDescription out{library->path, library->version, {}, false};
  for (const auto& transport : library->transports()) {
    out.transports.emplace_back(transport.name, transport.device);
    out.has_rdma |= transport.is_rdma();
  }
  return out;
}

}  // namespace shoal::runtime
