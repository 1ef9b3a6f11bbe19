#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/shm/membership_page.h"
#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

TEST(Memory, IsZeroedSharedAndOfAFixedSize) {
  const Fd fd = make_memory("test", 10'000).value();
  EXPECT_EQ(memory_bytes(fd).value(), 10'000u);
  const Mapping a = map(fd, 10'000, Access::kReadWrite).value();
  const Mapping b = map(fd, 10'000, Access::kRead).value();
  EXPECT_EQ(b.data()[9'999], std::byte{0});
  a.data()[9'999] = std::byte{7};
  EXPECT_EQ(b.data()[9'999], std::byte{7});
  EXPECT_NE(ftruncate(fd.get(), 5), 0);
}

TEST(Memory, WritesToACopyOnWriteMappingStayThere) {
  const Fd fd = make_memory("test", 10'000).value();
  const Mapping shared = map(fd, 10'000, Access::kReadWrite).value();
  shared.data()[0] = std::byte{1};
  const Mapping own = map(fd, 10'000, Access::kCopyOnWrite).value();
  EXPECT_EQ(own.data()[0], std::byte{1});
  own.data()[1] = std::byte{2};
  EXPECT_EQ(shared.data()[1], std::byte{0});
}

TEST(Memory, AnUnsealedDescriptorIsRefused) {
  const Fd fd(memfd_create("loose", MFD_CLOEXEC));
  EXPECT_EQ(memory_bytes(fd).error().code(), Code::kInvalidArgument);
}

TEST(Memory, TooMuchIsAnErrorNotACrash) { EXPECT_FALSE(make_memory("huge", std::size_t{1} << 63)); }

TEST(MemoryDeathTest, AForbiddenMappingFaultsAndAnAllowedOneDoesNot) {
  const Fd fd = make_memory("test", 4096).value();
  const Mapping m = map(fd, 4096, Access::kReadWrite).value();
  m.forbid();
  EXPECT_DEATH(std::memset(m.data(), 1, 1), "");
  m.allow(Access::kRead);
  EXPECT_EQ(m.data()[0], std::byte{0});
}

// Bytes that this process maps as huge pages of shared memory with this name.
std::size_t huge_bytes(const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  std::size_t found = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) inside = line.find("memfd:" + name) != std::string::npos;
    if (inside && line.starts_with("ShmemPmdMapped:")) found += std::stoul(line.substr(line.find_first_of("0123456789"))) * 1024;
  }
  return found;
}

// True if a plain madvise() makes a huge page of shared memory here.
bool kernel_collapses() {
  constexpr std::size_t kHuge = 2 << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const Fd fd = make_memory("tried", kHuge).value();
  auto* const place = static_cast<std::byte*>(mmap(nullptr, 2 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::byte* const at = place + (kHuge - reinterpret_cast<std::uintptr_t>(place) % kHuge) % kHuge;
  auto* const mapped = static_cast<std::byte*>(mmap(at, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0));
  mapped[0] = std::byte{1};
  const bool collapses = madvise(mapped, kHuge, kCollapse) == 0;
  munmap(place, 2 * kHuge);
  return collapses;
}

TEST(Memory, PopulateMakesHugePagesThatOtherMappingsHaveToo) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")) GTEST_SKIP() << "/sys does not show the size of huge pages";
  if (!kernel_collapses()) GTEST_SKIP() << "this kernel makes no huge pages of shared memory";
  constexpr std::size_t kHuge = 2 << 20, kBytes = 8 * kHuge + 5000;
  const Fd fd = make_memory("populated", kBytes).value();
  const Mapping mapping = map(fd, kBytes, Access::kReadWrite).value();
  for (std::size_t i = 0; i < 3; ++i) mapping.populate_part(i, 3);
  EXPECT_EQ(huge_bytes("populated"), 8 * kHuge);
  const Mapping other = map(fd, kBytes, Access::kRead).value();
  for (std::size_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(other.data()[i], std::byte{0});
  EXPECT_EQ(huge_bytes("populated"), 16 * kHuge);
}

std::size_t bytes_with_memory(const Fd& fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

TEST(Memory, PopulateGivesMemoryToThePagesOfItsRangeAlone) {
  constexpr std::size_t kPage = 4096, kBytes = 100 * kPage - 1;
  if (madvise(private_memory(kPage).value().data(), kPage, MADV_POPULATE_WRITE) != 0) GTEST_SKIP() << "a kernel before 5.14";
  const Fd fd = make_memory("small", kBytes).value();
  const Mapping mapping = map(fd, kBytes, Access::kReadWrite).value();
  mapping.populate(kPage + 1, 2 * kPage);  // a part of the second page, the third, and a part of the fourth
  EXPECT_EQ(bytes_with_memory(fd), 3 * kPage);
  mapping.populate(0, 0);
  EXPECT_EQ(bytes_with_memory(fd), 3 * kPage);
  mapping.populate_part(2, 3);
  EXPECT_EQ(bytes_with_memory(fd), (3 + 32) * kPage);  // two parts have 34 pages, and the last one the rest
  for (std::size_t i = 0; i < 2; ++i) mapping.populate_part(i, 3);
  EXPECT_EQ(bytes_with_memory(fd), 100 * kPage);
}

TEST(Memory, PopulateKeepsWhatAnotherProcessWritesMeanwhile) {
  constexpr std::size_t kBytes = 32 << 20, kStep = 1000;
  const Fd fd = make_memory("written", kBytes).value();
  const pid_t writer = fork();
  const Mapping mapping = map(fd, kBytes, Access::kReadWrite).value();
  if (writer == 0) {
    for (std::size_t i = 0; i < kBytes; i += kStep) mapping.data()[i] = std::byte(1 + i / kStep % 250);
    _exit(0);
  }
  for (std::size_t i = 0; i < 8; ++i) mapping.populate_part(i, 8);
  int status = -1;
  waitpid(writer, &status, 0);
  ASSERT_EQ(status, 0);
  for (std::size_t i = 0; i < kBytes; i += kStep) ASSERT_EQ(mapping.data()[i], std::byte(1 + i / kStep % 250)) << i;
}

class MembershipPageTest : public testing::Test {
 protected:
  Fd fd_ = make_memory("board", MembershipPage::kBytes + 4096).value();
  Mapping mapping_ = map(fd_, MembershipPage::kBytes + 4096, Access::kReadWrite).value();
  MembershipPage membership_page_{mapping_.data()};
};

TEST_F(MembershipPageTest, TheFirstCauseOfADeathCounts) {
  EXPECT_EQ(membership_page_.first_gone(4), -1);
  membership_page_.mark_gone(2, "killed by signal 9");
  membership_page_.mark_gone(2, "something later");
  EXPECT_EQ(membership_page_.first_gone(4), 2);
  EXPECT_EQ(membership_page_.first_gone(2), -1);
  EXPECT_EQ(membership_page_.cause(2), "killed by signal 9");
  membership_page_.mark_gone(3, std::string(1000, 'x'));
  EXPECT_EQ(membership_page_.cause(3).size(), 251u);
}

TEST_F(MembershipPageTest, ACauseIsValidUtf8WithAnyContent) {
  std::string euros;
  for (int i = 0; i < 200; ++i) euros += "\xe2\x82\xac";
  membership_page_.mark_gone(1, euros);
  EXPECT_EQ(membership_page_.cause(1), euros.substr(0, 249));  // cut between characters
  membership_page_.mark_gone(2, "bad \xff");
  EXPECT_EQ(membership_page_.cause(2), "bad \xef\xbf\xbd");
}

TEST_F(MembershipPageTest, AWaitEndsAtItsLimit) {
  EXPECT_EQ(membership_page_.wait_until([] { return false; }, 5ms, 10), MembershipPage::WaitResult::kTimeout);
}

TEST_F(MembershipPageTest, EveryRingWakesAcrossProcesses) {
  auto* word = reinterpret_cast<std::atomic<int>*>(mapping_.data() + MembershipPage::kBytes);
  constexpr int kRounds = 2000;
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < kRounds; ++i) {
      if (membership_page_.wait_until([&] { return word->load() == 2 * i + 1; }, 10s, 50) != MembershipPage::WaitResult::kReady) _exit(1);
      word->store(2 * i + 2);
      membership_page_.notify_all();
    }
    _exit(0);
  }
  for (int i = 0; i < kRounds; ++i) {
    word->store(2 * i + 1);
    membership_page_.notify_all();
    ASSERT_EQ(membership_page_.wait_until([&] { return word->load() == 2 * i + 2; }, 10s, 50), MembershipPage::WaitResult::kReady);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(MembershipPageTest, ADeathWakesAllWaiters) {
  std::thread node([this] {
    std::this_thread::sleep_for(20ms);
    membership_page_.mark_gone(1, "killed by signal 9");
  });
  EXPECT_EQ(membership_page_.wait_until([this] { return membership_page_.first_gone(2) == 1; }, 10s, 10),
            MembershipPage::WaitResult::kReady);
  node.join();
}

}  // namespace
}  // namespace shoal::runtime
