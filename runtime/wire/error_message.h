// An Error inside another message: for schemas that import error.capnp.
#pragma once

#include "runtime/core/error.h"
#include "runtime/wire/error.capnp.h"

namespace shoal::runtime {

// Cuts each text at 64 KiB and frames of the context at 4 KiB, so that an error takes at most 330 KiB of a message.
void fill_error(wire::ErrorMessage::Builder message, const Error& error);
// Inside read<>() only: the accessors may throw.
Error read_error(wire::ErrorMessage::Reader message);

}  // namespace shoal::runtime
