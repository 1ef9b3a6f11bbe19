// Calls on actors and their answers, encoded to frames and decoded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/value/value.h"
#include "runtime/loop/future.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// The answer to a call.
using ValueFuture = runtime::Future<Value>;

// Identifies a call in the process that runs it: the connection over which it came, and its number there.
struct CallKey {
  std::uint64_t peer = 0, request = 0;
  explicit operator bool() const { return peer != 0; }
  bool operator==(const CallKey&) const = default;
};

// How to cancel a call. A running one is interrupted where its worker can do that (Hosted::on_cancel).
struct CancelHow {
  bool recursive = true;  // also cancels the calls that the cancelled call has made
  bool force = false;     // ends the process that runs a function
};

// The error of a cancelled call.
Error call_cancelled(const std::string& what);
// The error that ends a generator whose caller is gone.
Error caller_gone(const std::string& what);

struct Call {
  ActorId actor;
  std::string method;
  std::string caller;  // the caller's description for errors: "driver", "actor Counter(..)"
  Value args;
  std::vector<Value> deps;  // values of the references among the arguments
  WorkerId from;            // the caller's process; only in the first call over a connection
  NodeId from_node;         // the node of that process; only in the first call over a connection
  CallKey parent;           // the call, run by this process, within which this one was made; not sent
  std::uint64_t task = 0;   // its number among the caller's tasks: see task_number
  // Number of attempts, counted by the code that repeats the call; null: there is one. Not sent.
  std::shared_ptr<std::int32_t> attempts;
  std::shared_ptr<const std::string> function;  // the name of the remote function; null: a method
  // How often it may be sent again after its actor's process ended and restarted. Below 0: without limit; nullopt: as the actor's options
  // have it. Not sent.
  std::optional<std::int32_t> retries;
  // The largest number of values in one message, and in all messages of a call. Values that do not fit are sent before the call (Portion).
  static constexpr std::size_t kMaxDeps = 128;
  static constexpr std::size_t kMaxAllDeps = 1 << 20;

  std::string_view function_name() const { return function ? std::string_view(*function) : std::string_view(); }
  // Bytes of all its inline values.
  std::size_t inline_bytes() const;
};

// The number of a task in the answers to inspections: its caller's count (below 2^56), with the attempt in the top 8 bits.
constexpr std::uint64_t task_number(std::uint64_t number, std::int32_t attempt) {
  return (number & ~(std::uint64_t{0xff} << 56)) | static_cast<std::uint64_t>(attempt < 255 ? attempt : 255) << 56;
}

// Tasks of pools are counted from 2^kPoolTaskBits on; lower numbers are a process's method calls.
inline constexpr int kPoolTaskBits = 42;
// The prefix of the runtime's own methods, which every actor has.
inline constexpr std::string_view kOurs = "__shoal_";
// The method that reports to an actor that no handle is left.
inline constexpr std::string_view kRelease = "__shoal_release__";
constexpr bool task_of_pool(std::uint64_t task) { return task_number(task, 0) >> kPoolTaskBits != 0; }

// Large values are sent as descriptors if both ends are on one host (`local`), else as bytes. The first `sent` values of `deps` were sent
// in earlier messages and are omitted.
Result<runtime::Message> to_message(const Call& call, bool local, std::size_t sent = 0);
// The readable parts of a message that is no valid call: its actor, and the objects in its values. The sender has counted those for this
// process, which has to release them.
struct Unread {
  ActorId actor;
  std::vector<ObjectKey> contains;
};
// Decodes a call. `memory` gives memory for large values that came as bytes; it must not block. `unread` is filled on failure.
Result<Call> call_from(runtime::Message message, ValueMemory* memory = nullptr);
Result<Call> call_from(runtime::Message message, ValueMemory* memory, Unread& unread);

// A portion: the values that fit into one message. Both the values' bytes and their descriptions in the message's body are limited.
class Portion {
 public:
  static constexpr std::size_t kMaxDescribed = 512 << 10, kMaxBytes = 16 << 20;
  explicit Portion(bool local) : local_(local) {}
  // A message that also carries the call and its arguments.
  Portion(const Call& call, bool local) : local_(local), with_call_(true), described_(described(call.args)) {}
  // Adds a value; false: it does not fit, and the portion is complete. A first value fits at any size, unless its description shares a
  // body with a call.
  bool add(const Value& value) {
    const bool alone = count_++ == 0;
    described_ += described(value);
    bytes_ += value.inline_bytes() + (value.shared() && !local_ ? value.total_bytes() : 0);
    return (described_ <= kMaxDescribed || (alone && !with_call_)) && (bytes_ <= kMaxBytes || alone) && count_ <= Call::kMaxDeps;
  }
  // A small value: kMaxDeps of them always fit into one message. Most values are small.
  static bool is_small(const Value& value, bool local) {
    return value.num_pieces() <= 256 && value.refs().empty() && (local || !value.shared());
  }

 private:
  std::size_t described(const Value& value) const {
    return 64 + (local_ && value.shared() ? 0 : 8 * value.num_pieces()) + 24 * value.refs().size();
  }

  const bool local_, with_call_ = false;
  std::size_t count_ = 0, described_ = 0, bytes_ = 0;
};

struct Arguments {
  ActorId actor;
  std::size_t first = 0;
  Result<std::vector<Value>> values;
  std::vector<ObjectKey> unread = {};  // the objects in the values, if `values` is an error
};
// goes_with_call() returns true if the values from `first` on fit into the call's own message. Otherwise the next ones go in
// a message of their own before the call: those from `first` up to end_of_portion().
bool goes_with_call(const Call& call, std::size_t first, bool local);
std::size_t end_of_portion(const Call& call, std::size_t first, bool local);
Result<runtime::Message> arguments_message(const Call& call, std::size_t first, std::size_t end, bool local);
// Decodes a message of arguments_message(). Fails if the body cannot be read, so that the actor is unknown. If only values cannot be read,
// `values` is the error.
Result<Arguments> arguments_from(runtime::Message message, ValueMemory* memory = nullptr);

// A message with an item that a call yields, sent over the call's connection before its answer. `stream`: the number that the caller gave
// to the sequence of items.
struct Item {
  std::uint64_t stream = 0, index = 0;
  Result<Value> value;
};
Result<runtime::Message> item_message(std::uint64_t stream, std::uint64_t index, const Value& value, bool local);
Result<Item> item_from(runtime::Message message, ValueMemory* memory = nullptr);

struct CancelCall {
  ActorId actor;
  std::uint64_t request = 0;  // number on this connection
  CancelHow how;
};
Bytes to_bytes(const CancelCall& cancel);
Result<CancelCall> cancel_from(const Bytes& bytes);

Result<runtime::Message> to_message(const Value& value, bool local);
Result<Value> value_from(runtime::Message message, ValueMemory* memory = nullptr);

}  // namespace shoal::actors
