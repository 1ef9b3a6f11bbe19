// Ranks as threads on the fakes of CUDA and NCCL, for the tests of this folder.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/conformance/test_host.h"
#include "runtime/transport/nccl/fake/fake_nccl.h"
#include "runtime/transport/nccl/nccl_communicator.h"

namespace shoal::runtime {

class NcclTest : public testing::Test {
 protected:
  ~NcclTest() override {
    EXPECT_EQ(nccl_.num_communicators(), 0u);
    EXPECT_EQ(cuda_.num_streams(), 0u);
    EXPECT_EQ(cuda_.num_events(), 0u);
    EXPECT_EQ(cuda_.num_allocations(), 0u);
    for (const auto& violation : cuda_.take_violations()) ADD_FAILURE() << violation;
    for (const auto& violation : nccl_.take_violations()) ADD_FAILURE() << violation;
  }

  Result<std::shared_ptr<Communicator>> join(int rank, int world_size, NcclTransport transport, const std::string& name = "group") {
    CommunicatorRequest request;
    request.rank = rank;
    request.world_size = world_size;
    request.name = name;
    request.timeout = std::chrono::seconds(60);
    if (rank == 0) request.interrupted = interrupted_;
    transport.cuda = &cuda_.api();
    if (transport.api == nullptr) transport.api = &nccl_.api();
    request.nccl = std::move(transport);
    auto& memory = request.memory.emplace();
    memory.spins = false;
    memory.open = [this](const std::string& name, std::size_t bytes, int) { return host_.open(name, bytes); };
    return make_communicator(std::move(request), clock_);
  }
  // Runs `program` on every rank, with its result of join() and its device.
  using Program = std::function<void(Result<std::shared_ptr<Communicator>>, int rank)>;
  void run(int world_size, const Program& program, const std::function<NcclTransport(int)>& transport = own_device,
           const std::string& name = "group") {
    std::vector<std::thread> ranks;
    for (int r = 0; r < world_size; ++r) ranks.emplace_back([&, r] { program(join(r, world_size, transport(r), name), r); });
    for (auto& rank : ranks) rank.join();
  }
  static NcclTransport own_device(int rank) { return {.device = rank, .current_stream = nullptr}; }

  // Floats on a device.
  struct Tensor {
    Tensor(const Communicator& c, std::vector<float> values)
        : Tensor(dynamic_cast<const NcclCommunicator&>(c).device(), std::move(values)) {}
    Tensor(const Device& on, std::vector<float> values) : device(on), memory(on.allocate(values.size() * sizeof(float)).value()) {
      copy(memory.get().data(), values.data());
    }
    std::vector<float> read() const {
      std::vector<float> out(memory.get().size() / sizeof(float));
      copy(out.data(), memory.get().data());
      return out;
    }
    void copy(void* to, const void* from) const {
      const auto stream = device.make_stream().value();
      ASSERT_TRUE(device.copy(to, from, memory.get().size(), stream.get()));
      ASSERT_TRUE(device.synchronize(stream.get()));
    }
    std::span<std::byte> bytes() const { return memory.get(); }

    const Device& device;
    const DeviceMemory memory;
  };
  static WorkPtr sum(Communicator& c, const Tensor& t, Call call = {}) {
    return c.all_reduce(t.bytes(), t.bytes(), DType::kFloat32, ReduceOp::kSum, std::move(call));
  }

  std::function<bool()> interrupted_;
  FakeCuda& cuda_ = FakeCuda::machine();
  FakeNccl& nccl_ = FakeNccl::machine();
  Loop loop_;
  std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  TestHost host_;
};

}  // namespace shoal::runtime
