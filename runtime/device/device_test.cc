#include "runtime/device/device.h"

#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device/fake/fake_cuda.h"

namespace shoal::runtime {
namespace {

class DeviceTest : public testing::Test {
 protected:
  void TearDown() override {
    device_.reset();
    for (const auto& violation : machine_.take_violations()) ADD_FAILURE() << violation;
    EXPECT_EQ(machine_.num_streams(), 0u);
    EXPECT_EQ(machine_.num_events(), 0u);
    EXPECT_EQ(machine_.num_allocations(), 0u);
    EXPECT_EQ(machine_.num_registered(), 0u);
  }

  FakeCuda& machine_ = FakeCuda::machine();
  std::shared_ptr<Device> device_ = Device::open(machine_.api(), 2).value();
};

TEST_F(DeviceTest, ADeviceThatDoesNotExistIsRefused) {
  const auto opened = Device::open(machine_.api(), FakeCuda::kDevices);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kInvalidArgument);
  EXPECT_NE(opened.error().message().find("there is no device 8: this process sees 8"), std::string::npos);
}

TEST_F(DeviceTest, CopiesRunInTheOrderOfTheirStream) {
  const auto stream = device_->make_stream().value();
  const auto memory = device_->allocate(400).value();
  std::vector<int> in(100, 7), out(100);
  ASSERT_TRUE(device_->zero(memory.get().data(), 400, stream.get()));
  ASSERT_TRUE(device_->copy(memory.get().data(), in.data(), 200, stream.get()));
  ASSERT_TRUE(device_->copy(out.data(), memory.get().data(), 400, stream.get()));
  ASSERT_TRUE(device_->synchronize(stream.get()));
  EXPECT_EQ(out[49], 7);
  EXPECT_EQ(out[50], 0);
}

TEST_F(DeviceTest, AStreamWaitsForAnEventOfAnother) {
  const auto first = device_->make_stream().value(), second = device_->make_stream().value();
  const auto event = device_->make_event().value();
  std::promise<void> release;
  int order = 0, seen = 0;
  machine_.enqueue(first.get(), [&] {
    release.get_future().wait();
    order = 1;
  });
  ASSERT_TRUE(device_->record(event, first.get()));
  ASSERT_TRUE(device_->wait(second.get(), event));
  machine_.enqueue(second.get(), [&] { seen = order; });
  EXPECT_FALSE(device_->passed(event).value());
  release.set_value();
  ASSERT_TRUE(device_->synchronize(second.get()));
  EXPECT_TRUE(device_->passed(event).value());
  EXPECT_EQ(seen, 1);
}

TEST_F(DeviceTest, AStreamWaitsForAWordThatAnotherOrTheHostWrites) {
  const auto first = device_->make_stream().value(), second = device_->make_stream().value();
  alignas(64) std::array<std::atomic<std::uint64_t>, 2> words{};
  EXPECT_FALSE(device_->write(first.get(), words[0], 1));  // memory that is not registered
  const auto registered = device_->register_memory(std::as_writable_bytes(std::span(words))).value();
  ASSERT_TRUE(device_->orders_by_words());
  std::promise<void> release;
  int order = 0;
  machine_.enqueue(first.get(), [&] {
    release.get_future().wait();
    order = 1;
  });
  ASSERT_TRUE(device_->write(first.get(), words[0], 3));
  ASSERT_TRUE(device_->wait(second.get(), words[0], 2));
  std::promise<int> seen;
  machine_.enqueue(second.get(), [&] { seen.set_value(order); });
  release.set_value();
  EXPECT_EQ(seen.get_future().get(), 1);

  ASSERT_TRUE(device_->wait(second.get(), words[1], 7));
  words[1] = std::uint64_t{1} << 62;
  EXPECT_TRUE(device_->synchronize(second.get()));
  EXPECT_TRUE(device_->synchronize(first.get()));
}

TEST_F(DeviceTest, TheDefaultStreamHasNoHandleAndOrdersOthers) {
  const auto stream = device_->make_stream().value();
  const auto event = device_->make_event().value();
  const auto memory = device_->allocate(4).value();
  int in = 7, out = 0;
  ASSERT_TRUE(device_->copy(memory.get().data(), &in, sizeof in, nullptr));
  ASSERT_TRUE(device_->record(event, nullptr));
  ASSERT_TRUE(device_->wait(stream.get(), event));
  ASSERT_TRUE(device_->copy(&out, memory.get().data(), sizeof out, stream.get()));
  ASSERT_TRUE(device_->synchronize(stream.get()));
  EXPECT_EQ(out, 7);
  ASSERT_TRUE(device_->synchronize(nullptr));
}

TEST_F(DeviceTest, AFullDeviceNamesWhatIsFree) {
  machine_.set_capacity(1000);
  const auto memory = device_->allocate(900).value();
  const auto more = device_->allocate(200);
  machine_.set_capacity(std::size_t{1} << 30);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), Code::kResourceExhausted);
  EXPECT_EQ(more.error().reason(), "DeviceMemory");
  EXPECT_NE(more.error().message().find("allocating 200 bytes, with 100 free, on device 2 (Fake) failed"), std::string::npos)
      << more.error().message();
}

TEST_F(DeviceTest, MemoryOfTheHostOrOfAnotherDeviceIsNamed) {
  const auto other = Device::open(machine_.api(), 3).value();
  const auto here = device_->allocate(8).value(), there = other->allocate(8).value();
  std::byte host[8];
  EXPECT_TRUE(device_->check_memory(here.get(), "the input"));
  EXPECT_TRUE(device_->check_memory({}, "the input"));
  EXPECT_NE(device_->check_memory(host, "the input").error().message().find("the input lies in memory of the host, not of device 2"),
            std::string::npos);
  EXPECT_NE(device_->check_memory(there.get(), "the output").error().message().find("the output lies on device 3, the group's device is 2"),
            std::string::npos);
}

TEST_F(DeviceTest, MemoryAndEventsAreSharedByHandle) {
  const auto memory = device_->allocate(16).value();
  const auto handle = device_->share(memory).value();
  const auto event = device_->make_event(Device::EventUse::kInterprocess).value();
  const auto stream = device_->make_stream().value();
  {
    const auto peer = Device::open(machine_.api(), 4).value();
    const auto opened = peer->open_shared(handle, 16).value();
    EXPECT_EQ(opened.get().size(), 16u);
    const auto same = peer->open_shared_event(device_->share(event).value()).value();
    ASSERT_TRUE(device_->record(event, stream.get()));
    ASSERT_TRUE(device_->synchronize(stream.get()));
    EXPECT_TRUE(peer->passed(same).value());
  }
  EXPECT_FALSE(device_->share(device_->make_event().value()));
  EXPECT_EQ(machine_.take_violations(), std::vector<std::string>{"an event of one process shared"});
}

TEST_F(DeviceTest, AKernelGetsItsArgumentsAsTheyWereAtTheLaunch) {
  machine_.add_kernel("fill", {sizeof(float*), sizeof(float), sizeof(std::size_t)}, [](void* const* arguments, std::size_t) {
    auto* const out = *static_cast<float**>(arguments[0]);
    for (std::size_t i = 0; i < *static_cast<std::size_t*>(arguments[2]); ++i) out[i] = *static_cast<float*>(arguments[1]);
  });
  const auto module = device_->load("image").value();
  const auto kernel = device_->find(module, "fill").value();
  const auto stream = device_->make_stream().value();
  const auto memory = device_->allocate(40).value();
  auto* out = reinterpret_cast<float*>(memory.get().data());
  float value = 3;
  std::size_t numel = 10;
  void* arguments[] = {&out, &value, &numel};
  ASSERT_TRUE(device_->launch(kernel, {.blocks = 2}, stream.get(), arguments));
  value = 4;
  ASSERT_TRUE(device_->synchronize(stream.get()));
  EXPECT_EQ(out[9], 3);
  EXPECT_EQ(device_->find(module, "absent").error().code(), Code::kUnavailable);
  machine_.fail_next("module", cuda::kNoBinaryForGpu);
  const auto refused = device_->load("image");
  EXPECT_EQ(refused.error().code(), Code::kUnimplemented);
  EXPECT_EQ(refused.error().reason(), "NoKernels");
}

TEST_F(DeviceTest, AStreamOfAnotherDeviceIsRefused) {
  const auto other = Device::open(machine_.api(), 3).value();
  const auto stream = other->make_stream().value();
  const auto event = device_->make_event().value();
  EXPECT_FALSE(device_->record(event, stream.get()));
  EXPECT_EQ(machine_.take_violations(), std::vector<std::string>{"a stream of device 3 used on device 2"});
}

TEST(CudaDriver, ItsAbsenceNamesEveryAttempt) {
  const auto loaded = CudaApi::load();
  if (loaded) GTEST_SKIP() << "this machine has the driver: " << (*loaded)->path;
  EXPECT_EQ(loaded.error().code(), Code::kUnavailable);
  EXPECT_EQ(loaded.error().reason(), "NoCuda");
  EXPECT_NE(loaded.error().message().find("libcuda.so.1"), std::string::npos);
  EXPECT_NE(loaded.error().message().find("/usr/lib/wsl/lib/libcuda.so.1"), std::string::npos);
}

}  // namespace
}  // namespace shoal::runtime
