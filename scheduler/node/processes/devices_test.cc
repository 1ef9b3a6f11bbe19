#include "scheduler/node/processes/devices.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/resources.h"

namespace shoal::scheduler {
namespace {

using Ids = std::vector<std::string>;
constexpr std::int64_t kOne = actors::Resources::kUnit;
constexpr WorkerId kA{1}, kB{2}, kC{3};

TEST(DevicesTest, AWholeDeviceHasOneOwner) {
  Devices devices({"0", "1", "2"});
  EXPECT_EQ(devices.take(kA, kOne), (Ids{"0"}));
  EXPECT_EQ(devices.take(kB, 2 * kOne), (Ids{"1", "2"}));
  devices.give_back(kB);
  EXPECT_EQ(devices.take(kC, kOne), (Ids{"1"}));
}

TEST(DevicesTest, SharesFillADeviceBeforeTheyTakeAnother) {
  Devices devices({"a", "b"});
  EXPECT_EQ(devices.take(kA, kOne / 2), (Ids{"a"}));
  EXPECT_EQ(devices.take(kB, kOne / 4), (Ids{"a"}));
  EXPECT_EQ(devices.take(kC, kOne), (Ids{"b"}));
  devices.give_back(kC);
  EXPECT_EQ(devices.take(kC, kOne / 2), (Ids{"b"}));
  devices.give_back(kA);
  EXPECT_EQ(devices.take(kA, kOne / 2), (Ids{"b"}));  // "b" is the fullest device that has room for a half
}

TEST(DevicesTest, SharesThatLieBadlyAreSharedByMore) {
  Devices devices({"0", "1"});
  EXPECT_EQ(devices.take(kA, kOne * 6 / 10), (Ids{"0"}));
  EXPECT_EQ(devices.take(kB, kOne * 7 / 10), (Ids{"1"}));
  EXPECT_EQ(devices.take(kC, kOne / 2), (Ids{"0"}));
}

TEST(DevicesTest, AssignedDevicesMatchTheRequestAndTheSupply) {
  Devices devices({"0"});
  EXPECT_EQ(devices.take(kA, 0), Ids());
  EXPECT_EQ(devices.take(kB, 3 * kOne), (Ids{"0"}));
  devices.give_back(kC);  // giving back has no effect for a worker without devices
}

TEST(DevicesTest, NamesComeFromTheEnvironment) {
  EXPECT_EQ(device_ids(2, nullptr).value(), (Ids{"0", "1"}));
  EXPECT_EQ(device_ids(2, "5, GPU-x,7").value(), (Ids{"5", "GPU-x"}));
  EXPECT_EQ(device_ids(0, "3").value(), Ids());
  EXPECT_EQ(device_ids(0, "").value(), Ids());
}

TEST(DevicesTest, HiddenDevicesAreNotOffered) {
  for (const char* visible : {"3", "", "NoDevFiles"}) {
    const auto ids = device_ids(2, visible);
    ASSERT_FALSE(ids) << visible;
    EXPECT_EQ(ids.error().reason(), "DevicesHidden");
  }
  EXPECT_NE(device_ids(2, "3").error().message().find("2 GPUs were asked for"), std::string::npos);
}

TEST(DevicesTest, DevicesAreCountedAsFarAsTheyAreVisible) {
  const std::string dev = testing::TempDir() + "dev";
  std::filesystem::create_directories(dev);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) std::ofstream(dev + "/" + name);
  EXPECT_EQ(count_devices(dev, nullptr), 3u);
  EXPECT_EQ(count_devices(dev, "1"), 1u);
  EXPECT_EQ(count_devices(dev, "0,1,2,3"), 3u);
  EXPECT_EQ(count_devices(dev, "MIG-a,MIG-b,MIG-c,MIG-d"), 4u);
  EXPECT_EQ(count_devices(dev + "/none", "MIG-a"), 0u);
  EXPECT_EQ(count_devices(dev, ""), 0u);
  EXPECT_EQ(count_devices(dev, "NoDevFiles"), 0u);
  EXPECT_EQ(count_devices(dev + "/none", nullptr), 0u);
}

TEST(DevicesTest, TypesAreTheWordThatUsersKnow) {
  EXPECT_EQ(accelerator_type("NVIDIA A100-SXM4-80GB"), "A100");
  EXPECT_EQ(accelerator_type("NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(accelerator_type("Tesla V100-SXM2-16GB"), "V100");
  EXPECT_EQ(accelerator_type("NVIDIA L4"), "L4");
  EXPECT_EQ(accelerator_type("Quadro"), "");
  EXPECT_EQ(accelerator_type(""), "");
}

}  // namespace
}  // namespace shoal::scheduler
