#include "runtime/device/nvml/device_state.h"

#include <gtest/gtest.h>

#include "runtime/device/nvml/fake/fake_nvml.h"

namespace shoal::runtime {
namespace {

class DeviceStateTest : public testing::Test {
 protected:
  DeviceState read(FakeNvml::Fake device) {
    machine_.devices = {std::move(device)};
    return read_devices(FakeNvml::api()).value().at(0);
  }
  // The kinds of a device's faults, each of which has a description and a fix.
  static std::vector<std::string> faults(const DeviceState& device) {
    std::vector<std::string> out;
    for (const auto& fault : device.faults) {
      EXPECT_FALSE(fault.what.empty() || fault.fix.empty()) << fault.kind;
      out.push_back(fault.kind);
    }
    return out;
  }
  using Kinds = std::vector<std::string>;
  FakeNvml& machine_ = FakeNvml::machine();
};

TEST_F(DeviceStateTest, AHealthyDeviceHasItsFiguresAndTheProcessesThatUseIt) {
  std::vector<NvmlProcess> processes;
  for (unsigned pid = 1; pid <= 40; ++pid) processes.push_back({pid, pid == 2 ? ~0ULL : 5, 0, 0});
  const auto device = read({.uuid = "GPU-1", .used = 10, .total = 80, .busy = 25, .processes = processes});
  EXPECT_EQ(device.uuid, "GPU-1");
  EXPECT_EQ(device.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(device.memory_used, 10u);
  EXPECT_EQ(device.memory_total, 80u);
  EXPECT_EQ(device.busy, 0.25);
  EXPECT_FALSE(device.mig);
  ASSERT_EQ(device.holders.size(), 40u);
  EXPECT_EQ(device.holders[1].bytes, 0u);
  EXPECT_EQ(device.holders[39].pid, 40u);
  EXPECT_EQ(faults(device), Kinds());
}

TEST_F(DeviceStateTest, FaultsOfTheMemoryAndTheModeAreNamed) {
  EXPECT_EQ(faults(read({.ecc_errors = 3})), Kinds{"ecc"});
  EXPECT_EQ(faults(read({.retirement_pending = true})), Kinds{"retirement"});
  EXPECT_EQ(faults(read({.remapping_pending = true, .remapping_failed = true})), (Kinds{"memory", "remapping"}));
  EXPECT_EQ(faults(read({.compute_mode = nvml::kModeProhibited})), Kinds{"prohibited"});
}

TEST_F(DeviceStateTest, ADeviceThatCannotBeReadHasAnEntry) {
  EXPECT_EQ(faults(read({.status = nvml::kLost})), Kinds{"lost"});
  EXPECT_EQ(faults(read({.status = nvml::kResetRequired})), Kinds{"reset"});
  EXPECT_EQ(faults(read({.status = nvml::kNoPermission})), Kinds{"permission"});
  EXPECT_EQ(faults(read({.status = nvml::kUnknown})), Kinds{"unreadable"});
}

TEST_F(DeviceStateTest, ADividedDeviceHasSlices) {
  const FakeNvml::Fake one{.name = "H100 MIG 1g.10gb", .uuid = "MIG-1", .used = 1, .total = 10, .processes = {{7, 1, 0, 0}}};
  const FakeNvml::Fake two{.name = "H100 MIG 1g.10gb", .uuid = "MIG-2", .used = 2, .total = 10};
  const auto device = read({.mig = true, .mig_next = true, .slices = {one, two}});
  EXPECT_TRUE(device.mig);
  EXPECT_EQ(device.busy, 0);
  ASSERT_EQ(device.slices.size(), 2u);
  EXPECT_EQ(device.slices[1].uuid, "MIG-2");
  EXPECT_EQ(device.slices[1].memory_used, 2u);
  ASSERT_EQ(device.holders.size(), 1u);
  EXPECT_EQ(device.holders[0].pid, 7u);
  EXPECT_EQ(faults(device), Kinds());
  EXPECT_EQ(faults(read({.mig = true, .mig_next = true})), Kinds{"mig"});   // without slices
  EXPECT_EQ(faults(read({.mig = false, .mig_next = true})), Kinds{"mig"});  // from the next reset on
}

TEST_F(DeviceStateTest, AnOlderLibraryLacksFiguresOnly) {
  machine_.devices = {{.ecc_errors = 1, .mig = true}};
  auto api = FakeNvml::api();
  api.processes = nullptr;
  api.remapped_rows = nullptr;
  api.mig_mode = nullptr;
  const auto device = read_devices(api).value().at(0);
  EXPECT_EQ(faults(device), Kinds{"ecc"});
  EXPECT_FALSE(device.mig);
}

}  // namespace
}  // namespace shoal::runtime
