#include "runtime/shm/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace spill_file_test {

constexpr std::size_t kBytes = 100'000;
constexpr const char* kMemoryFolder = "/dev/shm";

bool is_memory(const char* folder) {
  struct statfs info {};
  return statfs(folder, &info) == 0 && info.f_type == TMPFS_MAGIC;
}

class SpillFileTest : public testing::Test {
 protected:
  SpillFileTest() {
    const Mapping mapping = map(memory_, kBytes, Access::kReadWrite).value();
    for (std::size_t k = 0; k < kBytes; ++k) mapping.data()[k] = static_cast<std::byte>(k % 251);
  }
  ~SpillFileTest() override { std::filesystem::remove_all(folder_); }

  const Fd memory_ = make_memory("object", kBytes).value();
  const std::string folder_ = [] {
    std::string name = testing::TempDir() + "/spill-file-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
};

TEST_F(SpillFileTest, HasTheContentsOfTheMemoryAndNoName) {
  if (is_memory(folder_.c_str())) GTEST_SKIP() << "tests have no disk here";
  const Fd file = spill_to_file(memory_, kBytes, folder_).value();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_EQ(memory_bytes(file).value(), kBytes);  // accepted like a memory from another process
  const Mapping there = map(file, kBytes, Access::kRead).value();
  for (std::size_t k = 0; k < kBytes; ++k) ASSERT_EQ(there.data()[k], static_cast<std::byte>(k % 251));
}

// A process killed during a spill leaves no file behind.
TEST_F(SpillFileTest, HasNoNameAtAnyTimeWhereTheFileSystemCanDoWithout) {
  if (is_memory(folder_.c_str())) GTEST_SKIP() << "tests have no disk here";
  if (!Fd(open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600))) GTEST_SKIP() << "this file system cannot";
  const Fd events(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!events) GTEST_SKIP() << "others watch as much as may be watched";
  ASSERT_GE(inotify_add_watch(events.get(), folder_.c_str(), IN_CREATE), 0);
  ASSERT_TRUE(spill_to_file(memory_, kBytes, folder_));
  alignas(inotify_event) char event[sizeof(inotify_event) + NAME_MAX + 1];
  EXPECT_EQ(read(events.get(), event, sizeof event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(SpillFileTest, AMissingFolderGivesNoFile) {
  EXPECT_NE(spill_to_file(memory_, kBytes, folder_ + "/none").error().message().find(folder_), std::string::npos);
}

TEST_F(SpillFileTest, AFolderInMemoryIsNoPlaceForIt) {
  if (!is_memory(kMemoryFolder)) GTEST_SKIP() << "this machine has no such folder";
  const auto refused = spill_to_file(memory_, kBytes, kMemoryFolder);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "NoDisk");
  if (is_memory(folder_.c_str())) return;
  const std::array<std::string, 3> folders = {"/nowhere", kMemoryFolder, folder_};
  EXPECT_EQ(folder_on_disk(folders), folder_);
  EXPECT_EQ(folder_on_disk(std::span(folders).first(2)), "/nowhere");
}

TEST_F(SpillFileTest, ADiskIsNotFilled) {
  struct statfs info {};
  ASSERT_EQ(statfs(folder_.c_str(), &info), 0);
  if (info.f_type == TMPFS_MAGIC) GTEST_SKIP() << "tests have no disk here";
  // As large as the free space, of which a part must stay free. The refusal comes before any write.
  const std::size_t all = info.f_bavail * static_cast<std::uint64_t>(info.f_bsize);
  const Fd large = make_memory("large", all).value();
  const auto refused = spill_to_file(large, all, folder_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "DiskFull");
  EXPECT_NE(refused.error().message().find(folder_), std::string::npos);
}

TEST(KeptFreeTest, IsAShareOfTheDiskUpToTheHeadsNeed) {
  EXPECT_EQ(kept_free(100'000'000), 5'000'000u);
  EXPECT_EQ(kept_free(std::uint64_t{10} << 40), std::uint64_t{5} << 30);
}

}  // namespace spill_file_test
}  // namespace shoal::runtime
