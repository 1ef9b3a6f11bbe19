#include "runtime/shm/segment_pool.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace segment_pool_test {

using namespace std::chrono_literals;

constexpr std::size_t kBytes = 100'000;

ino_t file_of(const Fd& fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  return info.st_ino;
}

class SegmentPoolTest : public testing::Test {
 protected:
  Fd filled(char with, std::size_t bytes = kBytes) {
    const std::string text(bytes, with);
    const SegmentPool::Part part{0, std::as_bytes(std::span(text))};
    return pool_.fill(bytes, std::span(&part, 1)).value();
  }
  static char first(const Fd& fd) {
    char out = 0;
    EXPECT_EQ(pread(fd.get(), &out, 1, 0), 1);
    return out;
  }
  SegmentPool pool_{{.min_bytes = 1000, .max_idle_bytes = 1'000'000, .idle = 5s, .max_segments = 10, .max_checks = 4}};
  SegmentPool::TimePoint now_{};
};

TEST_F(SegmentPoolTest, ReusesAMemoryWithoutReaders) {
  const ino_t first_file = file_of(filled('a'));
  for (int k = 0; k < 5; ++k) EXPECT_EQ(file_of(filled(static_cast<char>('b' + k))), first_file);
  EXPECT_EQ(first(filled('z')), 'z');
  EXPECT_EQ(pool_.num_segments(), 1u);
}

TEST_F(SegmentPoolTest, NeverOneThatAMappingADuplicateOrAMessageRefersTo) {
  Fd fd = filled('a');
  std::optional<Mapping> mapping = map(fd, kBytes, Access::kRead).value();
  Fd copy = duplicate(fd).value();
  const ino_t file = file_of(fd);
  fd.reset();
  EXPECT_NE(file_of(filled('b')), file);
  copy.reset();
  EXPECT_NE(file_of(filled('c')), file);
  EXPECT_EQ(mapping->data()[kBytes - 1], std::byte{'a'});
  mapping.reset();
  bool again = false;
  std::vector<Fd> held;
  for (int k = 0; k < 3; ++k) {
    held.push_back(filled('d'));
    again |= file_of(held.back()) == file;
  }
  EXPECT_TRUE(again);
}

TEST_F(SegmentPoolTest, AMemoryInASocketIsNotReused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const Fd here(ends[0]), there(ends[1]);
  Fd fd = filled('a');
  const ino_t file = file_of(fd);
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int raw = fd.get();
  std::memcpy(CMSG_DATA(header), &raw, sizeof raw);
  ASSERT_EQ(sendmsg(here.get(), &message, 0), 1);
  fd.reset();
  EXPECT_NE(file_of(filled('b')), file);
}

TEST_F(SegmentPoolTest, AProcessThatDiesLetsGo) {
  Fd fd = filled('a');
  const ino_t file = file_of(fd);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    char c = 0;
    _exit(read(ends[0], &c, 1) == 0 ? 0 : 1);  // until the parent closes its end
  }
  close(ends[0]);
  fd.reset();
  EXPECT_NE(file_of(filled('b')), file);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ends[1]);
  const Fd one = filled('c'), other = filled('d');
  EXPECT_TRUE(file_of(one) == file || file_of(other) == file);
}

TEST_F(SegmentPoolTest, ReadersCannotWrite) {
  const Fd fd = filled('a');
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_LT(pwrite(fd.get(), "x", 1, 0), 0);
}

TEST_F(SegmentPoolTest, AMuchLargerMemoryIsLeftForOthers) {
  const ino_t large = file_of(filled('a', 10 * kBytes));
  EXPECT_NE(file_of(filled('b', kBytes)), large);
  EXPECT_EQ(file_of(filled('c', 9 * kBytes)), large);
}

TEST_F(SegmentPoolTest, FreesLongIdleMemoryAndKeepsMemoryThatIsRead) {
  const Fd read = filled('a');
  { const Fd idle = filled('b'); }
  pool_.tend(now_);
  EXPECT_EQ(pool_.num_segments(), 2u);
  pool_.tend(now_ + 4s);
  EXPECT_EQ(pool_.num_segments(), 2u);
  pool_.tend(now_ + 5s);
  EXPECT_EQ(pool_.num_segments(), 1u);
  pool_.tend(now_ + 100s);
  EXPECT_EQ(pool_.num_segments(), 1u);
  EXPECT_EQ(first(read), 'a');
}

TEST_F(SegmentPoolTest, FreesMemoryBeyondTheLimitAtOnce) {
  {
    std::vector<Fd> held;
    for (int k = 0; k < 5; ++k) held.push_back(filled('a', 300'000));
  }
  pool_.tend(now_);
  EXPECT_LE(pool_.bytes(), 1'000'000u);
  EXPECT_EQ(pool_.num_segments(), 3u);
  EXPECT_GT(pool_.trim(), 900'000u);
  EXPECT_EQ(pool_.bytes(), 0u);
}

TEST_F(SegmentPoolTest, SmallOnesAndThoseBeyondTheBoundAreNotKept) {
  EXPECT_EQ(first(filled('s', 10)), 's');
  EXPECT_EQ(pool_.num_segments(), 0u);
  std::vector<Fd> held;
  for (int k = 0; k < 20; ++k) held.push_back(filled(static_cast<char>('a' + k)));
  EXPECT_EQ(pool_.num_segments(), 10u);
  for (int k = 0; k < 20; ++k) EXPECT_EQ(first(held[static_cast<std::size_t>(k)]), 'a' + k);
}

// In any sequence of fills and releases, every reader sees the bytes that were written for it.
TEST_F(SegmentPoolTest, ReadersSeeTheirOwnBytesAlways) {
  std::mt19937 random(7);
  std::map<int, std::pair<Mapping, char>> readers;
  for (int k = 0; k < 3000; ++k) {
    const std::size_t bytes = 1000 + random() % 50'000;
    const char with = static_cast<char>('a' + k % 26);
    const Fd fd = filled(with, bytes);
    if (random() % 2 == 0) readers[k] = {map(fd, bytes, Access::kRead).value(), with};
    if (readers.size() > 12) readers.erase(std::next(readers.begin(), static_cast<long>(random() % readers.size())));
    if (random() % 50 == 0) pool_.tend(now_ += 1s);
    for (const auto& [number, reader] : readers) {
      ASSERT_EQ(reader.first.data()[0], std::byte(reader.second)) << number << " at " << k;
      ASSERT_EQ(reader.first.data()[reader.first.size() - 1], std::byte(reader.second)) << number << " at " << k;
    }
  }
}

TEST_F(SegmentPoolTest, ReportsThatItIsFullAndCountsAllItsMemory) {
  std::vector<Fd> read;
  std::size_t before = 0;
  for (int k = 0; k < 10; ++k) {
    EXPECT_FALSE(pool_.full());
    read.push_back(filled('a'));
    EXPECT_GT(pool_.bytes(), before);
    before = pool_.bytes();
  }
  EXPECT_TRUE(pool_.full());
  read.push_back(filled('b'));  // one more fill, without a check of full()
  EXPECT_EQ(pool_.num_segments(), 10u);
  read.clear();
  pool_.trim();
  EXPECT_FALSE(pool_.full());
}

TEST(SegmentPoolLimitTest, IsAShareOfTheDescriptorLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 400;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  SegmentPool small{{.min_bytes = 1000}};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<Fd> read;
  const std::string text(kBytes, 'a');
  const SegmentPool::Part part{0, std::as_bytes(std::span(text))};
  for (int k = 0; k < 100; ++k) {
    EXPECT_FALSE(small.full());
    read.push_back(small.fill(kBytes, std::span(&part, 1)).value());
  }
  EXPECT_TRUE(small.full());
}

}  // namespace segment_pool_test
}  // namespace shoal::runtime
