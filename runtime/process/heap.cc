#include "runtime/process/heap.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace shoal::runtime {

#ifdef __GLIBC__

namespace {

constexpr int kKept = 7;           // blocks of a size, in a thread's tcache
constexpr std::size_t kStep = 16;  // from size to size
constexpr std::size_t kLargest = 1032;

// The optimizer would see that nothing is done with the block.
void* block(std::size_t bytes) {
  void* p = std::malloc(bytes);
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

}  // namespace

// A threshold that is set stops malloc from raising the other one by itself, above which blocks are mapped one by one: it is set, too, to
// the greatest that there may be.
void keep_heap() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);  // unsigned inside: never
}

void free_small_blocks() {
  for (std::size_t size = 24; size <= kLargest; size += kStep) {
    void *kept[kKept], *fresh[kKept];
    for (auto& p : kept) p = block(size);
    for (auto& p : fresh) p = block(size);
    for (auto* p : fresh) std::free(p);  // at hand from now on
    for (auto* p : kept) std::free(p);   // no room for them any more: they join their neighbours
  }
}

#else

void keep_heap() {}
void free_small_blocks() {}

#endif

}  // namespace shoal::runtime
