// Standard streams for a process that was started without some of them.
#pragma once

namespace shoal::runtime {

// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, as in daemons. So no descriptor that is opened later gets one of
// these numbers. Output would be written into it, and a child's streams would replace it. Any thread, before this process opens other
// descriptors.
void open_standard_streams();

}  // namespace shoal::runtime
