#include "runtime/process/heap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <malloc.h>

namespace shoal::runtime {
namespace {

constexpr std::size_t kLarge = 8 << 20, kSmall = 232;

void* block(std::size_t bytes) {
  void* p = std::malloc(bytes);
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

// Two large blocks with a small one between, all freed: by how much the heap grows for one that is as large as both.
std::size_t growth(bool frees_small_blocks) {
  void* const one = block(kLarge);
  void* const small = block(kSmall);
  void* const two = block(kLarge);
  std::vector<void*> places;  // for small blocks, elsewhere, and so that the large ones are not at the heap's end
  for (int i = 0; i < 1000; ++i) places.push_back(block(2000));
  for (std::size_t i = 0; i < places.size(); i += 2) std::free(places[i]);
  std::free(one);
  std::free(small);
  std::free(two);
  if (frees_small_blocks) free_small_blocks();
  const std::size_t before = mallinfo2().arena;
  std::free(block(2 * kLarge));
  return mallinfo2().arena - before;
}

// In a process of its own, whose heap nothing else has shaped.
void says(bool frees_small_blocks, bool grows) {
  const auto child = [&] {
    keep_heap();
    std::exit(growth(frees_small_blocks) > kLarge / 2);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(grows), "");
}

TEST(Heap, SmallBlocksKeepLargeOnesApart) { says(false, true); }
TEST(Heap, UntilTheyAreFreed) { says(true, false); }

// Else each would come from the system page by page, each time.
TEST(Heap, LargeBlocksAreNotMappedOneByOne) {
  const auto child = [] {
    keep_heap();
    const auto before = mallinfo2().hblks;
    void* const large = block(16 << 20);
    const bool mapped = mallinfo2().hblks > before;
    std::free(large);
    std::exit(mapped);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace shoal::runtime
#endif
