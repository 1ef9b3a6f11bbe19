#include "scheduler/cli/inspection/device_rows.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using actors::MetricSample;

TEST(DeviceRowsTest, SeriesOfADeviceAreOneRow) {
  const auto family = [](const char* name, std::vector<MetricSample> samples) {
    actors::MetricFamily out;
    out.name = name;
    out.samples = std::move(samples);
    return out;
  };
  const MetricSample::Labels first = {{"gpu", "0"}, {"gpu_name", "H100"}, {"uuid", "GPU-0"}},
                             second = {{"gpu", "1"}, {"gpu_name", "H100"}, {"uuid", "GPU-1"}},
                             slice = {{"gpu", "1"}, {"slice_name", "H100 MIG 1g.10gb"}, {"uuid", "MIG-a"}};
  InspectionReply reported;
  auto& node = reported.nodes.emplace_back();
  reported.hosts[node.node] = "here";
  node.metrics = {family("shoal_node_load1", {{{}, 1, {}}}),
                  family("shoal_node_gpu_memory_used_bytes", {{second, 1 << 20, {}}, {first, 2 << 20, {}}}),
                  family("shoal_node_gpu_memory_total_bytes", {{first, 4 << 20, {}}, {second, 4 << 20, {}}}),
                  family("shoal_node_gpu_utilization_ratio", {{first, 0.25, {}}}),
                  family("shoal_node_gpu_processes", {{first, 3, {}}}),
                  family("shoal_node_gpu_fault", {{{{"gpu", "1"}, {"kind", "ecc"}, {"uuid", "GPU-1"}}, 1, {}}}),
                  family("shoal_node_gpu_slice_memory_used_bytes", {{slice, 512, {}}}),
                  family("shoal_node_gpu_slice_memory_total_bytes", {{slice, 1024, {}}}),
                  family("shoal_node_gpu_processes", {{{{"gpu", "x"}}, 1, {}}})};
  const auto rows = device_rows(reported);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(device_line(rows[0]), "here  gpu 0  H100  2.0 MiB of 4.0 MiB, 25 % busy, 3 processes");
  EXPECT_EQ(device_line(rows[1]),
            "here  gpu 1  H100  1.0 MiB of 4.0 MiB, 0 % busy, 0 processes; slice MIG-a 512 of 1.0 KiB; faults: ecc (shoal doctor on that "
            "host)");
  EXPECT_EQ(rows[1]["slices"][0]["name"], "H100 MIG 1g.10gb");
  EXPECT_EQ(rows[1]["faults"], nlohmann::json::array({"ecc"}));
}

}  // namespace
}  // namespace shoal::scheduler::cli
