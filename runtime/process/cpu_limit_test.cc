#include "runtime/process/cpu_limit.h"

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

class CpuLimitTest : public testing::Test {
 protected:
  CpuLimitTest() { unsetenv("SLURM_CPUS_ON_NODE"); }
  ~CpuLimitTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    const auto path = std::filesystem::path(root_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  static int allowed() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }

  const std::string root_ = [] {
    std::string name = testing::TempDir() + "/cpu-limit-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
};

TEST_F(CpuLimitTest, IsThatOfTheAffinityWithoutAQuota) {
  write("proc/self/cgroup", "4:cpu,cpuacct:/job\n0::/job");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/job/cpu.max", "max 100000");
  EXPECT_EQ(cpu_quota(root_), std::nullopt);
  EXPECT_EQ(usable_cpus(root_), allowed());
  EXPECT_EQ(usable_cpus(root_ + "/nothing"), allowed());
}

TEST_F(CpuLimitTest, IsTheQuotaOfVersion2AlsoOfAGroupAroundIt) {
  write("proc/self/cgroup", "0::/kubepods/pod/container");
  write("sys/fs/cgroup/kubepods/pod/container/cpu.max", "400000 100000");
  EXPECT_EQ(cpu_quota(root_), 4.0);
  write("sys/fs/cgroup/kubepods/pod/cpu.max", "100000 100000");
  EXPECT_EQ(cpu_quota(root_), 1.0);
  EXPECT_EQ(usable_cpus(root_), 1);
}

TEST_F(CpuLimitTest, IsTheQuotaOfVersion1AlsoWhereThePathIsTheHosts) {
  write("proc/self/cgroup", "7:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc");
  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    write("sys/fs/cgroup/" + std::string(mount) + "/cpu.cfs_quota_us", "150000");
    write("sys/fs/cgroup/" + std::string(mount) + "/cpu.cfs_period_us", "100000");
    EXPECT_EQ(cpu_quota(root_), 1.5) << mount;
    EXPECT_EQ(usable_cpus(root_), 1) << mount;
    std::filesystem::remove_all(root_ + "/sys");
  }
}

TEST_F(CpuLimitTest, IsOneForASmallerQuota) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "25000 100000");
  EXPECT_EQ(cpu_quota(root_), 0.25);
  EXPECT_EQ(usable_cpus(root_), 1);
}

TEST_F(CpuLimitTest, IsTheAllocationOfSlurmIfThatIsLess) {
  setenv("SLURM_CPUS_ON_NODE", "1", 1);
  EXPECT_EQ(usable_cpus(root_), 1);
  for (const char* none : {"100000", "", "many"}) {
    setenv("SLURM_CPUS_ON_NODE", none, 1);
    EXPECT_EQ(usable_cpus(root_), allowed()) << none;
  }
  unsetenv("SLURM_CPUS_ON_NODE");
}

}  // namespace
}  // namespace shoal::runtime
