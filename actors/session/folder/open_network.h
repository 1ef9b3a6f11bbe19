// Opens the network of a process, with the options that its credentials demand. No other file bounds what a peer may send.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "actors/protocol/wire/method.h"
#include "actors/session/folder/credentials.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/process/memory_limit.h"

namespace shoal::actors {

// The largest payload that a peer may send with a message of this method. Calls and their values have any size, and so have answers, which
// this process has requested. Control messages carry little, such as measurements. All lines of a log so far are one message
// (scheduler/node/logs/worker_logs.cc).
inline std::uint64_t max_payload_bytes(runtime::FrameKind kind, std::uint16_t method) {
  constexpr std::uint64_t kControl = 8u << 20, kLog = 32u << 20, kAny = ~std::uint64_t{0};
  if (kind == runtime::FrameKind::kReply) return kAny;
  switch (static_cast<Method>(method)) {
    case Method::kCall:
    case Method::kCallOfArguments:
    case Method::kArguments:
    case Method::kItem:
      return kAny;
    case Method::kLogLines:
      return kLog;
    default:
      return kControl;
  }
}

// For a process of actors, whose peers send and get values: half of the machine's memory may be on its way.
inline runtime::SocketOptions socket_options(const Credentials& credentials) {
  runtime::SocketOptions out;
  out.tls = credentials.tls;
  out.host = credentials.host;
  out.limits.max_payload_of = &max_payload_bytes;
  const std::uint64_t half = runtime::machine_memory().total / 2;
  out.budget.max_arriving_bytes = std::max(out.budget.max_arriving_bytes, half);
  out.budget.max_unsent_bytes = std::max(out.budget.max_unsent_bytes, half);
  return out;
}

// For a head or a node: no message is larger than a frame, and no peer calls so often that it needs rings.
inline runtime::SocketOptions control_socket_options(const Credentials& credentials) {
  runtime::SocketOptions out = socket_options(credentials);
  out.budget = {};
  out.max_message_bytes = out.limits.max_payload_bytes;
  out.rings.bytes = 0;
  return out;
}

}  // namespace shoal::actors
