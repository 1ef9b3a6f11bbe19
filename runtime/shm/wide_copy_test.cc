#include "runtime/shm/wide_copy.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <vector>

namespace shoal::runtime {
namespace {

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint32_t x = 1;
  for (auto& b : out) b = static_cast<std::byte>((x = x * 1664525U + 1013904223U) >> 24);
  return out;
}

class WideCopy : public testing::TestWithParam<std::size_t> {};

TEST_P(WideCopy, CopiesEachByteAndNoOther) {
  const auto from = numbered(GetParam());
  std::vector<std::byte> to(from.size() + 2, std::byte{7});
  wide_copy(std::span(to).subspan(1, from.size()), from);
  EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin() + 1));
  EXPECT_EQ(to.front(), std::byte{7});
  EXPECT_EQ(to.back(), std::byte{7});
}

INSTANTIATE_TEST_SUITE_P(Sizes, WideCopy,
                         testing::Values(0, 1, 4097, (std::size_t{64} << 20) - 1, std::size_t{64} << 20, (std::size_t{96} << 20) + 12345));

TEST(WideCopySignals, TheMaskOfItsCallerIsAsBefore) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto from = numbered(std::size_t{64} << 20);
  std::vector<std::byte> to(from.size());
  wide_copy(to, from);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int s : {SIGINT, SIGTERM, SIGCHLD}) EXPECT_EQ(sigismember(&before, s), sigismember(&after, s));
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace shoal::runtime
