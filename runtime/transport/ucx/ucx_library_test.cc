#include "runtime/transport/ucx/ucx_library.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "runtime/transport/ucx/rdma_devices.h"

namespace shoal::runtime {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

TEST(UcxLibrary, OfTheSystemComesBeforeThatOfAPackage) {
  EXPECT_EQ(UcxLibrary::candidates("", "/site/libucx/lib/libucp.so.0"), (Paths{"libucp.so.0", "/site/libucx/lib/libucp.so.0"}));
  EXPECT_EQ(UcxLibrary::candidates("", ""), Paths{"libucp.so.0"});
  EXPECT_EQ(UcxLibrary::candidates("/opt/libucp.so", "/site/libucx/lib/libucp.so.0"), Paths{"/opt/libucp.so"});
}

TEST(UcxLibrary, IsTheFirstThatCanBeLoaded) {
  const auto opened = UcxLibrary::open(Paths{"/none/libucp.so.0", "libm.so.6", "libucp.so.0"});
  ASSERT_TRUE(opened) << opened.error().to_string();
  EXPECT_NE(opened->path.find("libucp.so.0"), std::string::npos);
  EXPECT_FALSE(opened->version.empty());
}

TEST(UcxLibrary, ThatIsAbsentIsReportedWithEveryAttempt) {
  const auto opened = UcxLibrary::open(Paths{"/none/libucp.so.0", "libm.so.6"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().reason(), "NoUcx");
  for (const char* text : {"/none/libucp.so.0", "libm.so.6 has no function"})
    EXPECT_NE(opened.error().message().find(text), std::string::npos) << opened.error().message();
}

TEST(UcxLibrary, ListsTheTransportsOfThisHost) {
  if (!std::filesystem::exists("/sys/class/net/lo")) GTEST_SKIP() << "UCX finds networks in /sys, which is not mounted";
  const auto loaded = UcxLibrary::load();
  ASSERT_TRUE(loaded) << loaded.error().to_string();
  const auto transports = (*loaded)->transports();
  EXPECT_NE(std::ranges::find(transports, UcxTransport{"tcp", "lo"}), transports.end());
}

TEST(UcxTransport, OfInfiniBandIsRdma) {
  for (const char* rdma : {"rc_mlx5", "rc_verbs", "dc_mlx5", "ud_verbs", "srd"}) EXPECT_TRUE((UcxTransport{rdma, "mlx5_0:1"}.is_rdma()));
  for (const char* other : {"tcp", "posix", "cma", "self", "cuda_copy"}) EXPECT_FALSE((UcxTransport{other, ""}.is_rdma()));
}

// A host with InfiniBand behind the second interface of a card with two ports, and an ordinary card.
class RdmaDevices : public testing::Test {
 protected:
  RdmaDevices() {
    for (const char* folder : {"class/infiniband/mlx5_0", "class/net/ib1/device/infiniband/mlx5_0", "class/net/eth0/device"})
      fs::create_directories(sys_ + "/" + folder);
    std::ofstream(sys_ + "/class/net/ib1/dev_port") << "1\n";
  }
  ~RdmaDevices() override { fs::remove_all(sys_); }
  const std::string sys_ = testing::TempDir() + "sys";
};

TEST_F(RdmaDevices, AreFoundBehindTheirInterface) {
  EXPECT_EQ(rdma_devices("ib1", sys_), Paths{"mlx5_0:2"});
  EXPECT_EQ(rdma_devices("eth0", sys_), Paths{});
  EXPECT_EQ(rdma_devices("", sys_), Paths{"mlx5_0"});
}

TEST_F(RdmaDevices, StayInUseWhereTheClustersInterfaceHasNone) {
  EXPECT_EQ(ucx_net_devices("ib1", false, sys_), "mlx5_0:2,ib1");
  EXPECT_EQ(ucx_net_devices("eth0", false, sys_), "");
  EXPECT_EQ(ucx_net_devices("eth0", true, sys_), "eth0");
  EXPECT_EQ(ucx_net_devices("", false, sys_), "");
  fs::remove_all(sys_ + "/class/infiniband");
  EXPECT_EQ(ucx_net_devices("eth0", false, sys_), "eth0");
}

}  // namespace
}  // namespace shoal::runtime
