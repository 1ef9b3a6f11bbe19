// A call on an actor and its answer, to frames and back.
#pragma once

#include <string>
#include <vector>

#include "actors/value/value.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

struct Call {
  ActorId actor;
  std::string method;
  std::string caller;  // who asks, for errors: "driver", "actor Counter(..)"
  Value args;
  std::vector<Value> deps;  // values of arguments that were references
  static constexpr std::size_t kMaxDeps = 1000;
};

Result<runtime::Message> to_message(const Call& call);
Result<Call> call_from(runtime::Message message);

Result<runtime::Message> to_message(const Value& value);
Result<Value> value_from(runtime::Message message);

}  // namespace shoal::actors
