// UCX, loaded at run time: one binary runs with and without it.
#pragma once

#include <ucp/api/ucp.h>

#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::runtime {

// A way to the network that UCX has found on this host.
struct UcxTransport {
  std::string name;    // "tcp", "rc_mlx5"
  std::string device;  // "eth0", "mlx5_0:1"

  bool is_rdma() const;
  bool operator==(const UcxTransport&) const = default;
};

struct UcxLibrary {
  // The libraries to try, in this order. `named`, from SHOAL_UCX_LIBRARY, is the only one if it is set. Otherwise the system's comes first,
  // because it may have the drivers of the host's network cards; `packaged`, of a Python package, comes second.
  static std::vector<std::string> candidates(const std::string& named, const std::string& packaged);
  // Opens the first of these that is a UCX. Unavailable/NoUcx with all attempts if there is none.
  static Result<UcxLibrary> open(std::span<const std::string> paths);
  // The library of this process, which the first call opens.
  static Result<const UcxLibrary*> load(const std::string& packaged = "");

  // Opens the network for a moment, which takes milliseconds. Empty if that fails.
  std::vector<UcxTransport> transports() const;

  std::string path;     // the library
  std::string version;  // "1.13.1"

  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_context_print_info) context_print_info;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_flush_nbx) worker_flush_nbx;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close_nbx;
  decltype(&ucp_tag_send_nbx) tag_send_nbx;
  decltype(&ucp_tag_recv_nbx) tag_recv_nbx;
  decltype(&ucp_tag_probe_nb) tag_probe_nb;
  decltype(&ucp_tag_msg_recv_nbx) tag_msg_recv_nbx;
  decltype(&ucp_request_cancel) request_cancel;
  decltype(&ucp_request_check_status) request_check_status;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;
};

}  // namespace shoal::runtime
