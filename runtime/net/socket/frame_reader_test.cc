#include "runtime/net/socket/frame_reader.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

// Limits this process's address space (RLIMIT_AS) for its lifetime.
class LittleMemory {
 public:
  explicit LittleMemory(std::size_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_AS, &now);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(FrameReader, AFrameForWhichThereIsNoMemoryEndsTheConnectionAndNotTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map more than this allows";
#endif
  FrameLimits limits;
  limits.max_payload_bytes = limits.max_body_bytes = 3u << 30;
  for (const FrameHeader header :
       {FrameHeader{0, 3u << 30, 1, 1, FrameKind::kRequest, 0}, FrameHeader{3u << 30, 0, 1, 1, FrameKind::kRequest, 0}}) {
    FrameReader reader(limits, 0);
    const auto head = header.encode();
    std::memcpy(reader.room().data(), head.data(), head.size());
    std::vector<Frame> frames;
    const LittleMemory little(1u << 30);
    const auto arrived = reader.arrived(head.size(), frames);
    ASSERT_FALSE(arrived);
    EXPECT_EQ(arrived.error().code(), Code::kResourceExhausted);
    EXPECT_TRUE(frames.empty());
  }
}

}  // namespace
}  // namespace shoal::runtime
