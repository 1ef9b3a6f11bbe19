// An Error inside another message: for schemas that import error.capnp.
#pragma once

#include "runtime/core/error.h"
#include "runtime/wire/error.capnp.h"

namespace shoal::runtime {

// Cuts each text at 64 KiB, frames of the context at 4 KiB.
void fill_error(wire::ErrorMessage::Builder message, const Error& error);
// Inside read<>() only: the accessors may throw.
Error read_error(wire::ErrorMessage::Reader message);

}  // namespace shoal::runtime
