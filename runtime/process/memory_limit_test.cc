#include "runtime/process/memory_limit.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

constexpr std::uint64_t kGiB = 1 << 30;

class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() { write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\nMemAvailable:   12582912 kB\n"); }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    const auto path = std::filesystem::path(root_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void write(const std::string& file, std::uint64_t number) { write(file, std::to_string(number) + "\n"); }

  const std::string root_ = [] {
    std::string name = testing::TempDir() + "/memory-limit-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
};

TEST_F(MemoryLimitTest, IsTheMachinesWhereThereAreNoGroups) {
  const auto m = machine_memory(root_);
  EXPECT_EQ(m.total, 16 * kGiB);
  EXPECT_EQ(m.available, 12 * kGiB);
}

TEST_F(MemoryLimitTest, IsTheGroupsOfVersion2) {
  write("proc/self/cgroup", "0::/batch/job\n");
  write("sys/fs/cgroup/batch/job/memory.max", 4 * kGiB);
  write("sys/fs/cgroup/batch/job/memory.current", 3 * kGiB);
  write("sys/fs/cgroup/batch/job/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 536870912\nshmem 5\n");
  const auto m = machine_memory(root_);
  EXPECT_EQ(m.total, 4 * kGiB);
  EXPECT_EQ(m.available, 2 * kGiB);
}

TEST_F(MemoryLimitTest, IsThatOfAGroupAroundIt) {
  write("proc/self/cgroup", "0::/batch/job\n");
  write("sys/fs/cgroup/batch/job/memory.max", "max\n");
  write("sys/fs/cgroup/batch/memory.max", 2 * kGiB);
  EXPECT_EQ(machine_memory(root_).total, 2 * kGiB);
  EXPECT_EQ(machine_memory(root_).available, 2 * kGiB);
}

TEST_F(MemoryLimitTest, IsThatOfVersion1AlsoWhereThePathIsTheHosts) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:hugetlb,memory:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", kGiB);
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", kGiB);
  write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\n");
  EXPECT_EQ(machine_memory(root_).total, kGiB);
  EXPECT_EQ(machine_memory(root_).available, 1u << 20);
}

TEST_F(MemoryLimitTest, AHugeLimitCountsAsNone) {
  write("proc/self/cgroup", "4:memory:/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::uint64_t{9223372036854771712u});
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", kGiB);
  EXPECT_EQ(machine_memory(root_).total, 16 * kGiB);
  EXPECT_EQ(machine_memory(root_).available, 12 * kGiB);
}

TEST_F(MemoryLimitTest, WithoutReadableFilesTheTotalIsUnknownAndNothingIsRefused) {
  const auto m = machine_memory(root_ + "/nothing");
  EXPECT_EQ(m.total, 0u);
  EXPECT_GT(m.available, 1000 * kGiB);
}

TEST(MemoryLimitHereTest, ThereIsSome) {
  EXPECT_GT(machine_memory().total, 0u);
  EXPECT_LE(machine_memory().available, machine_memory().total);
}

TEST_F(MemoryLimitTest, AProcessHasItsShareOrItsOwnLimit) {
  write("proc/7/status", "Name:\tpython\nVmHWM:\t   9 kB\nVmRSS:\t    2048 kB\n");
  EXPECT_EQ(process_memory(7, root_), 2048u << 10);
  write("proc/7/smaps_rollup", "55c9-7ffc ---p 00000000 00:00 0      [rollup]\nRss:    1840 kB\nPss:     371 kB\nPss_Dirty:  1 kB\n");
  EXPECT_EQ(process_memory(7, root_), 371u << 10);
  EXPECT_EQ(process_memory(8, root_), 0u);
  // Includes the children of all its threads, and their children.
  write("proc/7/task/7/children", "9 10 \n");
  write("proc/7/task/8/children", "11 \n");
  write("proc/9/smaps_rollup", "Pss:     1 kB\n");
  write("proc/11/smaps_rollup", "Pss:     2 kB\n");
  write("proc/11/task/11/children", "12 \n");
  write("proc/12/smaps_rollup", "Pss:     4 kB\n");
  EXPECT_EQ(process_memory(7, root_), (371u + 1 + 2 + 4) << 10);
}

TEST_F(MemoryLimitTest, KillsOfTheKernelAreTheGroupsWhereOneCountsThem) {
  EXPECT_EQ(kernel_oom_kills(root_), 0u);
  write("proc/vmstat", "nr_free_pages 5\noom_kill 3\n");
  EXPECT_EQ(kernel_oom_kills(root_), 3u);
  write("proc/self/cgroup", "0::/batch/job\n");
  write("sys/fs/cgroup/batch/memory.events", "low 0\noom 9\noom_kill 4\n");
  EXPECT_EQ(kernel_oom_kills(root_), 4u);
  write("sys/fs/cgroup/batch/job/memory.events", "low 0\noom 9\noom_kill 2\n");
  EXPECT_EQ(kernel_oom_kills(root_), 2u);
  write("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n");
  EXPECT_EQ(kernel_oom_kills(root_), 6u);
}

}  // namespace
}  // namespace shoal::runtime
