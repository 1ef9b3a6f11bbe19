// A call on an actor and its answer, to frames and back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  std::vector<Value> deps;                      // values of arguments that were references
  WorkerId from;                                // the process of the caller; in the first call over a connection
  NodeId from_node;                             // its node, likewise
  CallKey parent;                               // the call of this process in which it was made; does not travel
  std::uint64_t task = 0;                       // which of its caller's it is: see task_number
  std::shared_ptr<std::int32_t> attempts;       // how often it was made: whoever makes it once more counts; null: one call. Travels not
  std::shared_ptr<const std::string> function;  // the name of the remote function that it runs; null: it runs none
  // How often it is sent again when its actor's process ended and was started again (below 0: always); nothing: as its actor says. Does
  // not travel.
  std::optional<std::int32_t> retries;
  static constexpr std::size_t kMaxDeps = 1000;

  std::string_view function_name() const { return function ? std::string_view(*function) : std::string_view(); }
};

// Of a call, for those who look at the cluster: whose it is and which of those, and the attempt. What one counts for itself is below 2^56.
constexpr std::uint64_t task_number(std::uint64_t number, std::int32_t attempt) {
  return (number & ~(std::uint64_t{0xff} << 56)) | static_cast<std::uint64_t>(attempt < 255 ? attempt : 255) << 56;
}

// Tasks of pools are counted from here on: the others are a process's calls of methods.
inline constexpr int kPoolTaskBits = 42;
constexpr bool task_of_pool(std::uint64_t task) { return task_number(task, 0) >> kPoolTaskBits != 0; }

// Large values travel as descriptors of their memory where both ends are on one host (`local`), as bytes otherwise.
Result<runtime::Message> to_message(const Call& call, bool local);
// `memory`, which must not wait: for large ones that came as bytes.
Result<Call> call_from(runtime::Message message, ValueMemory* memory = nullptr);

struct CancelCall {
  ActorId actor;
  std::uint64_t request = 0;  // of this connection
  CancelHow how;
};
Bytes to_bytes(const CancelCall& cancel);
Result<CancelCall> cancel_from(const Bytes& bytes);

Result<runtime::Message> to_message(const Value& value, bool local);
Result<Value> value_from(runtime::Message message, ValueMemory* memory = nullptr);

}  // namespace shoal::actors
