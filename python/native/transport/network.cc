#include "python/native/transport/network.h"

#include <optional>

#include "python/native/session/session.h"
#include "runtime/net/sealed.h"

namespace shoal::python {

runtime::MessageNetwork message_network(const actors::Credentials& credentials, int rank, int world_size, const PyNetwork& network,
                                        const PyExchange& call, const std::string& name) {
  runtime::MessageNetwork out;
  out.rank = rank;
  out.world_size = world_size;
  out.exchange = [&call, name, rank, token = network.sealed ? std::optional(credentials.token) : std::nullopt](
                     const std::string& own) -> Result<std::vector<std::string>> {
    const auto context = [&](std::size_t r) { return name + " of rank " + std::to_string(r); };
    SHOAL_TRY(auto all, call.call(name, token ? runtime::seal(*token, context(static_cast<std::size_t>(rank)), own) : own));
    for (std::size_t r = 0; token && r < all.size(); ++r) {
      SHOAL_TRY(auto opened, runtime::unseal(*token, context(r), all[r]));
      all[r] = std::move(opened);
    }
    return all;
  };
  out.may_go_on = call.check;
  out.kind = network.kind;
  out.encrypted = credentials.data_tls;
  out.interface = network.interface;
  out.host = network.host.empty() ? credentials.host : network.host;
  out.ucx_library = network.ucx_library;
  out.tls = credentials.tls;
  out.unanswered = duration_of(network.unanswered);
  return out;
}

void bind_network(nb::module_& m) {
  nb::class_<PyNetwork>(m, "Network", "How ranks on several hosts reach each other.")
      .def(
          "__init__",
          [](PyNetwork* out, std::string kind, std::string interface, std::string host, bool sealed, std::string ucx_library,
             double unanswered) {
            new (out) PyNetwork{std::move(kind), std::move(interface), std::move(host), sealed, std::move(ucx_library), unanswered};
          },
          nb::kw_only(), nb::arg("kind") = "", nb::arg("interface") = "", nb::arg("host") = "", nb::arg("sealed") = false,
          nb::arg("ucx_library") = "", nb::arg("unanswered") = 0.0,
          "kind: tcp, tls, ucx, a backend's name, or empty for the best of the hosts. interface: of this host, by name or address. host: "
          "this host's address, by default that in its cluster. sealed: all ranks are of one cluster. ucx_library: the path of a UCX for "
          "hosts without one. unanswered: seconds after which a host that answers nothing is lost; 0: the transport's own limit.");
  m.def(
      "load_ucx",
      [](const std::string& packaged) {
        const auto ucx = unwrap(runtime::describe_ucx(packaged));
        return std::make_tuple(ucx.path, ucx.version, ucx.transports, ucx.has_rdma);
      },
      nb::arg("packaged"),
      "Loads UCX: the system's, else the library `packaged`. Returns its path, its version, the transports with their devices on this "
      "host, and whether RDMA is among them. Raises Unavailable without a UCX.");
}

}  // namespace shoal::python
