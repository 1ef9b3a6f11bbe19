#include "scheduler/node/metrics/machine.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

namespace fs = std::filesystem;
using actors::MetricFamily;

class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string made = (fs::temp_directory_path() / "shoal-machine.XXXXXX").string();
    proc_ = mkdtemp(made.data());
    fs::create_directories(proc_ / "self/fd");
  }
  void TearDown() override { fs::remove_all(proc_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(proc_ / name) << text; }

  fs::path proc_;
  const double ticks_ = static_cast<double>(sysconf(_SC_CLK_TCK));
};

std::map<std::string, double> values(const std::vector<MetricFamily>& families) {
  std::map<std::string, double> out;
  for (const auto& family : families) {
    for (const auto& sample : family.samples)
      out[family.name + (sample.labels.empty() ? "" : " " + sample.labels[0].second)] = sample.value;
  }
  return out;
}

TEST_F(MachineTest, ReadsTheKernelsFiles) {
  write("stat", "cpu  100 20 300 4000 50 6 7 8 0 0\ncpu0 1 2\n");
  write("loadavg", "1.25 0.5 0.1 2/300 4711\n");
  const auto machine = read_machine(proc_, proc_);
  EXPECT_EQ(machine.cpu_seconds.at("system"), 300 / ticks_);
  EXPECT_EQ(machine.cpu_seconds.at("steal"), 8 / ticks_);
  EXPECT_EQ(machine.load1, 1.25);
  EXPECT_GT(machine.memory_total, 0u);
  EXPECT_GT(machine.disk_total, 0u);
}

TEST_F(MachineTest, UnreadableFilesGiveNoValues) {
  const auto machine = read_machine(proc_ / "none", proc_ / "none");
  EXPECT_TRUE(machine.cpu_seconds.empty());
  EXPECT_EQ(machine.disk_total, 0u);
  EXPECT_TRUE(process_metrics(proc_ / "none").empty());
}

TEST_F(MachineTest, GpusHaveSeriesWhereThereAreSome) {
  Machine machine;
  EXPECT_FALSE(values(metrics_of(machine)).contains("shoal_node_gpu_memory_used_bytes 0"));
  machine.gpus = {{0, "GPU-1", "H100", 10, 80, 0.25}, {1, "GPU-2", "H100", 20, 80, 1}};
  EXPECT_FALSE(values(metrics_of(machine)).contains("shoal_node_gpu_fault 1"));
  machine.gpus[0].slices = {{"MIG-1", "H100 MIG 1g.10gb", 3, 10}};
  machine.gpus[1].faults = {{"ecc", "errors", "reset it"}};
  machine.gpus[1].holders = {{17, 5}, {18, 6}};
  const auto reported = values(metrics_of(machine));
  EXPECT_EQ(reported.at("shoal_node_gpu_memory_used_bytes 1"), 20);
  EXPECT_EQ(reported.at("shoal_node_gpu_memory_total_bytes 0"), 80);
  EXPECT_EQ(reported.at("shoal_node_gpu_utilization_ratio 0"), 0.25);
  EXPECT_EQ(reported.at("shoal_node_gpu_slice_memory_used_bytes 0"), 3);
  EXPECT_EQ(reported.at("shoal_node_gpu_fault 1"), 1);
  EXPECT_EQ(reported.at("shoal_node_gpu_processes 1"), 2);
  machine.gpus = std::vector<runtime::DeviceState>(1);
  machine.gpus[0].index = 4;
  machine.gpus[0].faults = {{"lost", "lost", "restart"}};
  EXPECT_EQ(values(metrics_of(machine)).at("shoal_node_gpu_fault 4"), 1);
  EXPECT_FALSE(values(metrics_of(machine)).contains("shoal_node_gpu_memory_total_bytes 4"));
}

TEST_F(MachineTest, AProcessHasPrometheusOwnNames) {
  write("stat", "cpu 1 2\nbtime 1700000000\n");
  write("self/stat", "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 5 0 600 1048576 25 18446744073709551615 1\n");
  write("self/fd/0", "");
  write("self/fd/1", "");
  EXPECT_EQ(values(process_metrics(proc_)),
            (std::map<std::string, double>{{"process_cpu_seconds_total", 42 / ticks_},
                                           {"process_start_time_seconds", 1'700'000'000 + 600 / ticks_},
                                           {"process_virtual_memory_bytes", 1048576},
                                           {"process_resident_memory_bytes", 25.0 * static_cast<double>(sysconf(_SC_PAGESIZE))},
                                           {"process_open_fds", 2}}));
}

}  // namespace
}  // namespace shoal::scheduler
