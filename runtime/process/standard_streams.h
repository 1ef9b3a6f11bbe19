// Standard streams that were closed.
#pragma once

namespace shoal::runtime {

// Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed, as daemons close them. A descriptor that this process opens later
// then never gets one of these numbers, where a child's stream would replace it and prints would be written into it. Any thread, before
// this process opens descriptors of its own.
void open_standard_streams();

}  // namespace shoal::runtime
