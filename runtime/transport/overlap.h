// Inputs of collectives that overlap their output.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// Replaces the input by a copy if the output overlaps it, because other ranks' data may arrive before this rank has read its input. Does
// nothing if this rank's own part, at the same place, is the only common memory: each element is read before it is written. `copy`: holds
// the copy, and lives as long as the collective.
void set_input_apart(CollectiveSpec& spec, int rank, std::vector<std::byte>& copy);

}  // namespace shoal::runtime
