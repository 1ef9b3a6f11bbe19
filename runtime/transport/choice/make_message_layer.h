// Chooses a network for messages among ranks on several hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/net/tls/tls.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

struct MessageNetwork {
  int rank = 0;
  int world_size = 1;
  // Returns what each rank has passed, in the order of ranks. Every rank makes the same calls. The bytes are secret, and trusted.
  std::function<Result<std::vector<std::string>>(const std::string& own)> exchange;
  // "tcp"; "tls", TCP with encryption; or "ucx". Empty: UCX if each rank's host has an RDMA device and a UCX library that can use it,
  // else TCP.
  std::string kind;
  bool encrypted = false;  // the cluster's data travels in TLS only; an empty `kind` is "tls" then
  // The user's choice of a network interface, "eth0", or of an address of this host. Empty: the interface with the address `host`.
  std::string interface;
  std::string host;                // this host's address in its cluster; where no interface has it, the network chooses
  std::string ucx_library;         // where the system has no UCX (UcxLibrary::load)
  std::shared_ptr<const Tls> tls;  // for "tls": the host's certificate
  // TcpOptions::may_go_on. UCX never calls it, because UCX connects without a wait.
  std::function<Result<void>()> may_go_on;
  Duration unanswered{};  // TcpOptions::unanswered; zero: its default. UCX has limits of its own
};

// Every rank makes the call, which waits for the others. Returns InvalidArgument for an unknown kind or interface, if the ranks' kinds
// differ, or for "tls" without a certificate. In an encrypted cluster it returns InvalidArgument for every kind but "tls". Returns
// Unavailable/NoUcx if a rank's host has no UCX.
Result<std::shared_ptr<MessageLayer>> make_message_layer(const MessageNetwork& network);

// The UCX that this process loads.
struct UcxDescription {
  std::string path, version;
  std::vector<std::pair<std::string, std::string>> transports;  // with their devices: ("tcp", "eth0")
  bool has_rdma = false;
};

// `ucx_library`: as in MessageNetwork. Unavailable/NoUcx if there is none.
Result<UcxDescription> describe_ucx(const std::string& ucx_library);

}  // namespace shoal::runtime
