// A call on an actor and its answer, to frames and back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/value/value.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A call as the process that runs it knows it: the connection over which it came, and its number there.
struct CallKey {
  std::uint64_t peer = 0, request = 0;
  explicit operator bool() const { return peer != 0; }
  bool operator==(const CallKey&) const = default;
};

// Of a call that nobody wants any more. What runs is interrupted where that can be done: see Hosted::on_cancel.
struct CancelHow {
  bool recursive = true;  // the calls that it made, too
  bool force = false;     // a function's process ends
};

// What becomes of it.
Error call_cancelled(const std::string& what);

struct Call {
  ActorId actor;
  std::string method;
  std::string caller;  // who asks, for errors: "driver", "actor Counter(..)"
  Value args;
  std::vector<Value> deps;  // values of arguments that were references
  WorkerId from;            // the process of the caller; in the first call over a connection
  NodeId from_node;         // its node, likewise
  CallKey parent;           // the call of this process in which it was made; does not travel
  // How often it is sent again when its actor's process ended and was started again (below 0: always); nothing: as its actor says. Does
  // not travel.
  std::optional<std::int32_t> retries;
  static constexpr std::size_t kMaxDeps = 1000;
};

// Large values travel as descriptors of their memory where both ends are on one host (`local`), as bytes otherwise.
Result<runtime::Message> to_message(const Call& call, bool local);
Result<Call> call_from(runtime::Message message);

struct CancelCall {
  ActorId actor;
  std::uint64_t request = 0;  // of this connection
  CancelHow how;
};
Bytes to_bytes(const CancelCall& cancel);
Result<CancelCall> cancel_from(const Bytes& bytes);

Result<runtime::Message> to_message(const Value& value, bool local);
Result<Value> value_from(runtime::Message message);

}  // namespace shoal::actors
