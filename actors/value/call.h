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
// What becomes of one that yields what nobody hears.
Error caller_gone(const std::string& what);

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
  // In one message; those of a call with more, or with much in them, go before it.
  static constexpr std::size_t kMaxDeps = 128;
  static constexpr std::size_t kMaxAllDeps = 1 << 20;

  std::string_view function_name() const { return function ? std::string_view(*function) : std::string_view(); }
  // Of all its values.
  std::size_t inline_bytes() const;
};

// Of a call, for those who look at the cluster: whose it is and which of those, and the attempt. What one counts for itself is below 2^56.
constexpr std::uint64_t task_number(std::uint64_t number, std::int32_t attempt) {
  return (number & ~(std::uint64_t{0xff} << 56)) | static_cast<std::uint64_t>(attempt < 255 ? attempt : 255) << 56;
}

// Tasks of pools are counted from here on: the others are a process's calls of methods.
inline constexpr int kPoolTaskBits = 42;
// So begin the methods of every actor that are the runtime's own.
inline constexpr std::string_view kOurs = "__shoal_";
constexpr bool task_of_pool(std::uint64_t task) { return task_number(task, 0) >> kPoolTaskBits != 0; }

// Large values travel as descriptors of their memory where both ends are on one host (`local`), as bytes otherwise. Without the first
// `sent` values of its references, which went before it.
Result<runtime::Message> to_message(const Call& call, bool local, std::size_t sent = 0);
// Of a message that could not be read: for which actor it is, and what its values contain, which their sender has counted for this process.
struct Unread {
  ActorId actor;
  std::vector<ObjectKey> contains;
};
// `memory`, which must not wait: for large ones that came as bytes. `unread` is filled when it fails.
Result<Call> call_from(runtime::Message message, ValueMemory* memory = nullptr);
Result<Call> call_from(runtime::Message message, ValueMemory* memory, Unread& unread);

// What the values of one message take of its bounds: that of its body, and what is worth a message of its own.
class Portion {
 public:
  static constexpr std::size_t kMaxDescribed = 512 << 10, kMaxBytes = 16 << 20;
  explicit Portion(bool local) : local_(local) {}
  // With the arguments of a call, which go in one with it.
  Portion(const Call& call, bool local) : local_(local), with_call_(true), described_(described(call.args)) {}
  // Whether it goes in this one, too; if not it is over. The first goes in whatever one, but for one with a call.
  bool add(const Value& value) {
    const bool alone = count_++ == 0;
    described_ += described(value);
    bytes_ += value.inline_bytes() + (value.shared() && !local_ ? value.total_bytes() : 0);
    return (described_ <= kMaxDescribed || (alone && !with_call_)) && (bytes_ <= kMaxBytes || alone) && count_ <= Call::kMaxDeps;
  }
  // Of these a message has as many as it has values at all, whatever they are: most are such.
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

// Values of references of a call that comes later over the same connection, as kCallOfArguments, and that has too much for one message: in
// order, `first` of them came before these. Notices; with first = 0 what came before is forgotten.
inline constexpr std::uint16_t kArguments = 122;
inline constexpr std::uint16_t kCallOfArguments = 123;
struct Arguments {
  ActorId actor;
  std::size_t first = 0;
  Result<std::vector<Value>> values;
  std::vector<ObjectKey> unread = {};  // what they contain, of values that are an error
};
// Whether what is left from `first` on goes in one message with the call itself; and where those end that otherwise go in one before it.
bool goes_with_call(const Call& call, std::size_t first, bool local);
std::size_t end_of_portion(const Call& call, std::size_t first, bool local);
Result<runtime::Message> arguments_message(const Call& call, std::size_t first, std::size_t end, bool local);
// Nothing when nobody can tell whose they are.
Result<Arguments> arguments_from(runtime::Message message, ValueMemory* memory = nullptr);

// What a call yields before its answer, over its connection: a notice. `stream`: its caller's number for it.
inline constexpr std::uint16_t kItem = 124;
struct Item {
  std::uint64_t stream = 0, index = 0;
  Result<Value> value;
};
Result<runtime::Message> item_message(std::uint64_t stream, std::uint64_t index, const Value& value, bool local);
Result<Item> item_from(runtime::Message message, ValueMemory* memory = nullptr);

// From the actors' process to each that calls it, once it has made what it hosts, before anything else of its own: only calls behind this
// may have begun. A notice without a body.
inline constexpr std::uint16_t kMade = 125;

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
