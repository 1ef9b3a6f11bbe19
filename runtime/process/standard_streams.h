// Replacement of closed standard streams.
#pragma once

namespace shoal::runtime {

// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, as in daemons. Descriptors opened later then never get these
// numbers, where output would be written into them and a child's streams would replace them. Any thread, before this process opens
// other descriptors.
void open_standard_streams();

}  // namespace shoal::runtime
