#include "fsdp/device/virtual_device.h"

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using Stream = VirtualDevice::Stream;
using MemoryKind = VirtualDevice::Kind;

// The host, kernels and copies take no time.
constexpr DeviceCosts kFree{.launch = 0, .record = 0, .hook = 0, .action = 0, .rendezvous = 0, .memory = 1e30};

TEST(VirtualDevice, StreamsRunBesideEachOtherAndWaitForMarks) {
  VirtualDevice device(kFree);
  device.run({.stream = Stream::kProgram, .label = "a", .seconds = 3});
  const auto packed = device.run({.stream = Stream::kPack, .label = "b", .seconds = 2});
  device.wait(Stream::kProgram, packed);  // costs nothing: b has ended when a ends
  const auto last = device.run({.stream = Stream::kProgram, .label = "c", .seconds = 1});
  EXPECT_EQ(device.end_of(packed), 2);
  EXPECT_EQ(device.end_of(last), 4);
  device.wait(Stream::kGather, last);
  EXPECT_EQ(device.end_of(device.mark(Stream::kGather)), 4) << "a mark includes waits";
}

TEST(VirtualDevice, AnOperationBeginsWhenTheHostHasLaunchedIt) {
  DeviceCosts costs = kFree;
  costs.launch = 1;
  VirtualDevice device(costs);
  device.spend(4);
  const auto first = device.run({.label = "a", .seconds = 0.5});
  EXPECT_EQ(device.end_of(first), 5.5);
  EXPECT_EQ(device.now(), 5);
  device.synchronize(first);
  EXPECT_EQ(device.now(), 5.5);
  EXPECT_EQ(device.end_of(device.run({.label = "b", .seconds = 1})), 7.5);
}

TEST(VirtualDevice, CollectivesOfOneCommunicatorRunOneAtATime) {
  VirtualDevice device(kFree);
  const Communicator group{.ranks = 2, .bus_bandwidth = 100};
  EXPECT_EQ(group.gather_seconds(200), 1);
  EXPECT_EQ(group.all_reduce_seconds(200), 2);
  device.run({.stream = Stream::kGather, .label = "before", .seconds = 5});
  const auto gather = device.collective(Stream::kGather, "gather", 0, group, 1);
  const auto reduce = device.collective(Stream::kReduce, "reduce", 0, group, 2);
  EXPECT_EQ(device.end_of(gather), 6);
  EXPECT_EQ(device.end_of(reduce), 8) << "the order is that of the calls, although its stream was idle";
}

TEST(VirtualDevice, CommunicatorsOfOneLinkShareItsBandwidth) {
  VirtualDevice device(kFree);
  const auto gather = device.collective(Stream::kGather, "gather", 0, {.link = 0}, 2);
  const auto reduce = device.collective(Stream::kReduce, "reduce", 1, {.link = 0}, 4);
  const auto other = device.collective(Stream::kReplicas, "all_reduce", 2, {.link = 1}, 4);
  EXPECT_EQ(device.end_of(gather), 4);
  EXPECT_EQ(device.end_of(reduce), 6);
  EXPECT_EQ(device.end_of(other), 4);
}

TEST(VirtualDevice, CountsMemoryInTheOrderOfTheHostsCalls) {
  VirtualDevice device(kFree);
  auto a = device.allocate(Stream::kPack, MemoryKind::kPacked, 3);
  auto b = device.allocate(Stream::kProgram, MemoryKind::kWhole, 4);
  device.free(a);
  auto c = device.allocate(Stream::kProgram, MemoryKind::kWhole, 2);
  EXPECT_EQ(device.peak(), 7);
  EXPECT_EQ(device.at_peak(MemoryKind::kPacked), 3);
  EXPECT_EQ(device.reserved(), 9) << "a stream's memory serves no other stream";
  device.free(b);
  device.forget_peak();
  EXPECT_EQ(device.peak(), 2);
  EXPECT_EQ(device.reserved(), 2);
  device.free(c);
}

}  // namespace
}  // namespace shoal::fsdp
