#include "runtime/transport/choice/make_communicator.h"

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

class MakeCommunicatorTest : public testing::Test {
 protected:
  MakeCommunicatorTest() { request_.name = "group"; }
  void add_memory() {
    request_.memory.emplace().open = [](const std::string& name, std::size_t bytes, int) -> Result<std::shared_ptr<Mapping>> {
      return std::make_shared<Mapping>(map(make_memory(name, bytes).value(), bytes, Access::kReadWrite).value());
    };
  }
  void add_bytes() {
    request_.bytes = ByteTransport{"bytes", [this]() -> Result<std::shared_ptr<CollectiveBackend>> {
                                     ++num_opened_;
                                     return fail(unavailable("the backend cannot be opened"));
                                   }};
  }
  Result<std::shared_ptr<Communicator>> make() { return make_communicator(request_, clock_); }

  Loop loop_;
  const std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  CommunicatorRequest request_;
  int num_opened_ = 0;
};

TEST_F(MakeCommunicatorTest, SharedMemoryComesFirstAndABackendIsNotOpenedThen) {
  add_bytes();
  add_memory();
  EXPECT_STREQ(make().value()->transport(), "shm");
  EXPECT_EQ(num_opened_, 0);
}

TEST_F(MakeCommunicatorTest, ABackendIsOpenedOnceAndItsErrorIsTheResult) {
  add_bytes();
  EXPECT_EQ(make().error().message(), "the backend cannot be opened");
  EXPECT_EQ(num_opened_, 1);
}

TEST_F(MakeCommunicatorTest, ImpossibleGroupsAreRefused) {
  const auto refused = [&](int rank, int world_size, const std::string& text) {
    request_.rank = rank;
    request_.world_size = world_size;
    const auto made = make();
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
    EXPECT_NE(made.error().message().find(text), std::string::npos) << made.error().to_string();
  };
  refused(0, 1, "'group' share no memory");
  add_memory();
  refused(0, 0, "a group of 0 ranks");
  refused(2, 2, "rank 2 of a group of 2");
  refused(-1, 2, "rank -1");
  refused(0, 100, "1 to 64");
  request_.memory->chunk_bytes = 100;
  refused(0, 2, "chunks of 100 bytes");
}

TEST(MessageDTypes, UnknownOnesAreRefusedByName) {
  EXPECT_EQ(parse_dtype("bfloat16").value(), DType::kBFloat16);
  const Error error = parse_dtype("float4").error();
  EXPECT_EQ(error.message(), "tensors of dtype float4 are not moved between ranks");
  EXPECT_NE(error.hint().find("float8_e5m2fnuz"), std::string::npos);
}

}  // namespace
}  // namespace shoal::runtime
