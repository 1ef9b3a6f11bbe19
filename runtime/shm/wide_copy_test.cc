#include "runtime/shm/wide_copy.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

// Random bytes with a prime period; the repetition is copied, because per-byte loops are slow under sanitizers.
std::vector<std::byte> numbered(std::size_t bytes) {
  constexpr std::size_t kPeriod = 100'003;
  std::vector<std::byte> out(bytes);
  std::uint32_t x = 1;
  const auto first = std::span(out).first(std::min(bytes, kPeriod));
  for (auto& b : first) b = static_cast<std::byte>((x = x * 1664525U + 1013904223U) >> 24);
  for (std::size_t at = first.size(); at < bytes; at += kPeriod) {
    std::memcpy(out.data() + at, first.data(), std::min(kPeriod, bytes - at));
  }
  return out;
}

bool same(const std::byte* a, const std::vector<std::byte>& b) { return b.empty() || std::memcmp(a, b.data(), b.size()) == 0; }

class WideCopy : public testing::TestWithParam<std::size_t> {};

TEST_P(WideCopy, CopiesEachByteAndNoOther) {
  const auto from = numbered(GetParam());
  std::vector<std::byte> to(from.size() + 2, std::byte{7});
  wide_copy(std::span(to).subspan(1, from.size()), from);
  EXPECT_TRUE(same(to.data() + 1, from));
  EXPECT_EQ(to.front(), std::byte{7});
  EXPECT_EQ(to.back(), std::byte{7});
}

INSTANTIATE_TEST_SUITE_P(Sizes, WideCopy,
                         testing::Values(0, 1, 4097, (std::size_t{64} << 20) - 1, std::size_t{64} << 20, (std::size_t{96} << 20) + 12345));

// Sizes and offsets around a line (64 bytes), a page, and the four pages that a core copies at a time.
TEST(CopyPastCaches, CopiesEachByteAndNoOther) {
  for (const std::size_t bytes : {0, 1, 64, 127, 4096, 16'383, 16'384, 16'640, 16'703, 33'024, 70'001}) {
    for (const std::size_t offset : {0, 1, 64, 100}) {
      const auto from = numbered(bytes);
      std::vector<std::byte> to(offset + bytes + 4096, std::byte{7});
      copy_past_caches(std::span(to).subspan(offset, bytes), from);
      EXPECT_TRUE(same(to.data() + offset, from)) << bytes << " at " << offset;
      EXPECT_EQ(std::ranges::count(std::span(to).first(offset), std::byte{7}), offset);
      EXPECT_EQ(std::ranges::count(std::span(to).subspan(offset + bytes), std::byte{7}), 4096);
    }
  }
}

TEST(WideCopySignals, TheMaskOfItsCallerIsAsBefore) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto from = numbered(std::size_t{64} << 20);
  std::vector<std::byte> to(from.size());
  wide_copy(to, from);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int s : {SIGINT, SIGTERM, SIGCHLD}) EXPECT_EQ(sigismember(&before, s), sigismember(&after, s));
  EXPECT_TRUE(same(to.data(), from));
}

class WideFill : public testing::TestWithParam<std::size_t> {};

TEST_P(WideFill, FillsFreshPagesAndTakesNoOthers) {
  const auto from = numbered(GetParam());
  const std::size_t capacity = from.size() + (std::size_t{8} << 20);
  const Fd memory = make_memory("shoal:test", capacity).value();
  const Mapping mapping = map(memory, capacity, Access::kReadWrite).value();
  const auto to = std::span(mapping.data() + 12345, from.size());
  ASSERT_TRUE(wide_fill(to, from));
  EXPECT_TRUE(same(to.data(), from));
  struct stat info {};
  ASSERT_EQ(fstat(memory.get(), &info), 0);
  EXPECT_LE(static_cast<std::size_t>(info.st_blocks) * 512, from.size() + 2 * 4096);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WideFill, testing::Values(0, 1, 4097, (std::size_t{3} << 20) + 1, (std::size_t{96} << 20) + 12345));

TEST(WideFillRefused, ReportsThatMemoryIsExhausted) {
  constexpr std::size_t kBytes = std::size_t{80} << 20;
  const Fd memory(memfd_create("shoal:test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), kBytes / 2), 0);  // the memory has no pages beyond
  void* const at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  const std::vector<std::byte> from(kBytes);
  const auto done = wide_fill({static_cast<std::byte*>(at), kBytes}, from);
  munmap(at, kBytes);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), Code::kResourceExhausted) << done.error().message();
}

}  // namespace
}  // namespace shoal::runtime
