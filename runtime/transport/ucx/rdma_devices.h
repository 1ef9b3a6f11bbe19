// The RDMA devices of this host, by the kernel's folders, and the choice of devices for UCX.
#pragma once

#include <string>
#include <vector>

namespace shoal::runtime {

// The RDMA devices behind a network interface, as "mlx5_0:1"; without a name, those of the host. `sys`: the kernel's folder, in tests
// another.
std::vector<std::string> rdma_devices(const std::string& interface, const std::string& sys = "/sys");

// The value of UCX_NET_DEVICES for an interface: its RDMA devices and itself. Empty if UCX has to choose: there is no interface, or only
// other interfaces have RDMA and the user has not `chosen` this one.
std::string ucx_net_devices(const std::string& interface, bool chosen, const std::string& sys = "/sys");

}  // namespace shoal::runtime
