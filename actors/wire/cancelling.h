// The request to cancel another process's call. An extension of messages.h.
#pragma once

#include "actors/wire/messages.h"

namespace shoal::actors {

// To a node, which forwards it to the object's home node, which forwards it to the process that made the call. The process cancels the
// call and answers, with an error if it refuses. Success if there is nothing left to cancel.
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
