// Inputs of collectives that overlap their output.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// Replaces the input by a copy of it if the output overlaps it: the other ranks' data may arrive before this rank has read its input. Does
// nothing where this rank's own part is the only common memory and lies at the same place, because each element is read before it is
// written. `copy`: holds the copy, and lives as long as the collective.
void set_input_apart(CollectiveSpec& spec, int rank, std::vector<std::byte>& copy);

}  // namespace shoal::runtime
