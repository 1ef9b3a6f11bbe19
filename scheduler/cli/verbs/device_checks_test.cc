#include "scheduler/cli/verbs/device_checks.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using runtime::DeviceState;

class DeviceChecksTest : public testing::Test {
 protected:
  static Check check(const DeviceState& device, const std::string& visible = "") {
    const auto user = [](unsigned pid) { return DeviceUser{pid == 99 ? "" : "python", pid == 1}; };
    return device_checks({device}, visible, user).at(0);
  }
  static DeviceState healthy() {
    return {.index = 3, .uuid = "GPU-1", .name = "NVIDIA H100", .memory_used = 1 << 20, .memory_total = 4 << 20, .busy = 0.25};
  }
  static bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
};

TEST_F(DeviceChecksTest, AHealthyDeviceIsALineOfFigures) {
  const auto line = check(healthy());
  EXPECT_EQ(line.name, "gpu 3");
  EXPECT_EQ(line.verdict, '+');
  EXPECT_EQ(line.found, "NVIDIA H100, GPU-1, 1.0 MiB of 4.0 MiB used, 25 % busy");
  EXPECT_EQ(line.fix, "");
}

TEST_F(DeviceChecksTest, FaultsComeWithTheirFixes) {
  auto device = healthy();
  device.faults = {{"ecc", "3 uncorrected ECC errors", "reset it"}};
  const auto line = check(device);
  EXPECT_EQ(line.verdict, '!');
  EXPECT_TRUE(contains(line.found, "; 3 uncorrected ECC errors")) << line.found;
  EXPECT_EQ(line.fix, "reset it");
  DeviceState lost;
  lost.faults = {{"lost", "the driver has lost the device", "restart the machine"}};
  EXPECT_EQ(check(lost).found, "no name; the driver has lost the device");
}

TEST_F(DeviceChecksTest, OtherProcessesOnADeviceAreNamedAndShoalsOwnAreNoFinding) {
  auto device = healthy();
  device.holders = {{1, 1 << 20}};
  EXPECT_EQ(check(device).verdict, '+');
  EXPECT_TRUE(contains(check(device).found, "used by process 1 (a worker of Shoal, 1.0 MiB)")) << check(device).found;
  device.holders = {{1, 1 << 20}, {17, 0}, {99, 0}};
  EXPECT_EQ(check(device).verdict, '!');
  EXPECT_TRUE(contains(check(device).found, "17 (python), 99 (of another container)")) << check(device).found;
  EXPECT_TRUE(contains(check(device).fix, "CUDA_VISIBLE_DEVICES")) << check(device).fix;
}

TEST_F(DeviceChecksTest, SlicesAreListedWithTheVariableThatOffersThem) {
  auto device = healthy();
  device.mig = true;
  device.slices = {{"MIG-a", "H100 MIG 1g.10gb", 1 << 20, 2 << 20}, {"MIG-b", "H100 MIG 1g.10gb", 0, 2 << 20}};
  const auto line = check(device);
  EXPECT_TRUE(contains(line.found, "2 MIG slices: MIG-a (1.0 MiB of 2.0 MiB used), MIG-b")) << line.found;
  EXPECT_FALSE(contains(line.found, "busy")) << line.found;
  EXPECT_EQ(line.verdict, '!');
  EXPECT_TRUE(contains(line.fix, "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b")) << line.fix;
  EXPECT_EQ(check(device, "MIG-a,MIG-b").verdict, '+');
}

}  // namespace
}  // namespace shoal::scheduler::cli
