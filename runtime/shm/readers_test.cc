#include "runtime/shm/readers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

constexpr std::size_t kBytes = 10'000;

TEST(ReadersTest, AReaderIsOneUntilItsLastDuplicateAndMappingAreGone) {
  const Fd memory = make_memory("object", kBytes).value();
  EXPECT_FALSE(has_holders(memory));
  Fd reader = reader_of(memory).value();
  EXPECT_TRUE(has_holders(memory));
  EXPECT_TRUE(has_readers(memory));
  Fd copy = duplicate(reader).value();
  std::optional<Mapping> mapping = map(copy, kBytes, Access::kRead).value();
  reader.reset();
  EXPECT_TRUE(has_readers(memory));
  copy.reset();
  EXPECT_TRUE(has_readers(memory));
  mapping.reset();
  EXPECT_FALSE(has_readers(memory));
  EXPECT_FALSE(has_holders(memory));
}

TEST(ReadersTest, AKeeperKeepsAndDoesNotRead) {
  const Fd memory = make_memory("object", kBytes).value();
  Fd keeper = keeper_of(memory).value();
  EXPECT_TRUE(has_holders(memory));
  EXPECT_FALSE(has_readers(memory));
  EXPECT_FALSE(has_readers(keeper));
  {
    const Fd first = reader_of(keeper).value();  // opened from the keeper
    EXPECT_TRUE(has_readers(keeper));
    const Fd second = keeper_of(first).value();
    EXPECT_TRUE(has_readers(second));
  }
  EXPECT_FALSE(has_readers(keeper));
  EXPECT_TRUE(has_holders(memory));
  keeper.reset();
  EXPECT_FALSE(has_holders(memory));
}

TEST(ReadersTest, AProcessThatIsGoneReadsNothing) {
  const Fd memory = make_memory("object", kBytes).value();
  Fd reader = reader_of(memory).value();
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(hold[1]);
    char c = 0;
    (void)!read(hold[0], &c, 1);
    _exit(0);
  }
  reader.reset();
  EXPECT_TRUE(has_readers(memory));  // the child's copy
  close(hold[1]);
  waitpid(child, nullptr, 0);
  close(hold[0]);
  EXPECT_FALSE(has_readers(memory));
}

}  // namespace
}  // namespace shoal::runtime
