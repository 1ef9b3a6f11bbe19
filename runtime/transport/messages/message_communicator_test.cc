// A communicator whose other rank is a bare layer, which sends what it likes.
#include "runtime/transport/messages/message_communicator.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"
#include "runtime/transport/conformance/memory_layer.h"
#include "runtime/transport/messages/header.h"
#include "runtime/wire/codec.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;
using Channel = MessageLayer::Channel;
using Transfer = MessageLayer::Transfer;
using Buffer = std::vector<std::byte>;

class OtherRank : public testing::Test {
 protected:
  OtherRank() {
    CommunicatorRequest request;
    request.world_size = 2;
    request.timeout = 3s;
    request.messages.emplace().open = [this]() -> Result<std::shared_ptr<MessageLayer>> { return network_.join(0); };
    request.messages->chunk_bytes = 64 << 10;
    communicator_ = MessageCommunicator::make(std::move(request), clock_).value();
  }
  // The transfers end with the test: the sender's memory lives until then.
  void send(Channel channel, Buffer data) {
    sent_.push_back(std::move(data));
    other_->send(0, channel, sent_.back(), transfers_.emplace_back());
  }
  // Sends a header that announces `sent` bytes, which may differ from the size of `data` in the same message.
  void send_header(std::size_t sent, const Buffer& data) {
    Header header;
    header.dtype = static_cast<std::uint8_t>(DType::kUInt8);
    header.sent = sent;
    send(Channel::kMessages, encode(header, data));
  }
  Error error_of(std::size_t bytes, const Call& call = {}) {
    std::vector<std::byte> out(bytes);
    const auto ended = communicator_->receive(out, 1, DType::kUInt8, 0, call)->wait();
    return ended ? internal("no error") : ended.error();
  }

  Loop loop_;
  const std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  MemoryNetwork network_{2};
  std::deque<Buffer> sent_;
  std::deque<Transfer> transfers_;
  const std::shared_ptr<MessageLayer> other_ = network_.join(1);
  std::shared_ptr<Communicator> communicator_;
};

TEST_F(OtherRank, WhoseHeaderCarriesAnotherNumberOfBytesIsRefused) {
  EXPECT_FALSE(decode(encode(Header(), Buffer(1))));
  EXPECT_TRUE(decode(encode(Header(), {})));
  Header header;
  header.sent = 64;
  EXPECT_FALSE(decode(encode(header, {})));
  EXPECT_TRUE(decode(encode(header, Buffer(64))));
  header.sent = kInlineBytes + 1;
  EXPECT_FALSE(decode(encode(header, Buffer(kInlineBytes))));
  send_header(1 << 10, Buffer(8));
  EXPECT_EQ(error_of(1 << 10).code(), Code::kInvalidArgument);
}

TEST_F(OtherRank, WhoseChunkIsLongerFailsTheGroup) {
  send_header(64 << 10, {});
  send(Channel::kMessageData, Buffer(65 << 10));
  EXPECT_EQ(error_of(64 << 10).reason(), "MalformedMessage");
}

TEST_F(OtherRank, WhoseChunkIsShorterFailsTheGroup) {
  send_header(64 << 10, {});
  send(Channel::kMessageData, Buffer(1000));
  EXPECT_EQ(error_of(64 << 10).reason(), "MalformedMessage");
}

TEST_F(OtherRank, WhoseHeaderIsTooLongFailsTheGroup) {
  send(Channel::kMessages, Buffer(sizeof(Header) + kInlineBytes + 1));
  EXPECT_EQ(error_of(8).reason(), "MalformedMessage");
}

TEST_F(OtherRank, WhoseMessagesKeepComingPostponesNoTimeLimit) {
  std::atomic<bool> over{false};
  int left = 3'000'000;
  std::thread sender([&] {
    for (; left > 0 && !over; --left) {
      Transfer transfer;
      other_->send(0, Channel::kControl, {}, transfer);
    }
  });
  Call call;
  call.timeout = 100ms;
  EXPECT_EQ(error_of(8, call).reason(), "Late");
  over = true;
  sender.join();
  EXPECT_GT(left, 0);
}

TEST_F(OtherRank, ReadsALongErrorInPart) {
  Buffer got(8 << 10);
  Transfer received;
  other_->receive(0, Channel::kControl, got, received);
  communicator_->abort(cancelled("begin " + std::string(10000, 'x')).with_reason("Aborted").with_hint(std::string(10000, 'y')));
  other_->progress();
  ASSERT_TRUE(received.complete());
  const auto error = decode_error(Bytes::copy_of(got.data() + 1, received.bytes - 1));
  EXPECT_LE(received.bytes, 4096u);
  EXPECT_EQ(error.code(), Code::kCancelled);
  EXPECT_EQ(error.reason(), "Aborted");
  EXPECT_EQ(error.message().substr(0, 7), "begin x");
}

TEST_F(OtherRank, WhoseListOfSurvivorsIsMalformedIsIgnored) {
  communicator_->abort(cancelled("over"));
  other_->reset({});
  const std::vector<std::byte> list(1 + sizeof(int), std::byte{2});  // rank 0x02020202
  send(Channel::kControl, list);
  const auto next = communicator_->reform();
  ASSERT_TRUE(next) << next.error().to_string();
  EXPECT_EQ((*next)->world_size(), 1);
}

}  // namespace
}  // namespace shoal::runtime
