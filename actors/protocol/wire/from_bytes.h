// from_bytes<T> reads a message of type T. Each T is declared beside its to_bytes.
//
// to_bytes never fails. from_bytes returns InvalidArgument for hostile input: unknown enums, lists beyond their bound, bad pointers.
#pragma once

#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

namespace shoal::actors {

template <class T>
Result<T> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
