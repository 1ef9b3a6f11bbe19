// Keeps what malloc has for large tensors in one piece. A training step takes and gives back the same blocks over and over; what lies
// between them decides whether they join again. glibc only: elsewhere these do nothing.
#pragma once

namespace shoal::runtime {

// From now on freed memory at the end of the heap stays for the next step, instead of going to the system and coming back page by page.
void keep_heap();

// Of each small size malloc keeps seven freed blocks at hand (tcache) and joins them with nothing. Those of a step's tensors lie among its
// activations and split the room that they leave: the next step's gradients find no place, and the heap grows by a tenth. This puts other
// blocks into their place, so that they join. Microseconds; between two steps, in the thread that runs them.
void free_small_blocks();

}  // namespace shoal::runtime
