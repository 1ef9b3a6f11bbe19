// That nobody wants what a call of another process comes to. As messages.h, of which its method is one.
#pragma once

#include "actors/wire/messages.h"

namespace shoal::actors {

// To a node, which passes it on to the object's home, and that to the process that made the call. Answered once that one has cancelled it
// as its own, with its error if it refuses; also when there is nothing to cancel any more.
inline constexpr auto kCancelResult = static_cast<Method>(77);

struct CancelResult {
  ObjectKey object;
  WorkerId owner;
  bool recursive = true;
  bool force = false;
};

Bytes to_bytes(const CancelResult& m);
template <>
Result<CancelResult> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
