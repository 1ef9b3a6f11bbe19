// to_bytes and from_bytes convert each message, a struct that lists its fields (actors/protocol/cluster/fields.h).
//
// to_bytes never fails. from_bytes<T> returns InvalidArgument for hostile input: unknown enums, lists beyond their bound, bad pointers.
// SHOAL_MESSAGE defines both for each message (messages.inc, inspection.cc).
#pragma once

#include "actors/protocol/cluster/fields.h"
#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

namespace shoal::actors {

template <ListsFields T>
Bytes to_bytes(const T& message);
template <ListsFields T>
Result<T> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
