#include "actors/session/references/streams.h"

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

using ValueFuture = runtime::Future<Value>;

Value text_value(const std::string& text) { return Value::make({std::as_bytes(std::span(text))}).value(); }

std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return f.peek().error().reason();
  const auto head = f.peek()->pieces().at(0);
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

class StreamsTest : public testing::Test {
 protected:
  Streams streams_;
  runtime::Promise<Value> done_;
  const Streams::Id stream_ = followed();
  Streams::Id followed() {
    const auto id = streams_.open();
    streams_.follow(id, done_.future());
    return id;
  }
  std::string take() {
    const auto out = outcome(streams_.next(stream_));
    streams_.take(stream_);
    return out;
  }
};

TEST_F(StreamsTest, ItemsAreTakenInTheirOrderWheneverTheyCome) {
  const auto first = streams_.next(stream_);
  EXPECT_EQ(outcome(first), "pending");
  streams_.arrived(stream_, 1, text_value("b"));
  EXPECT_EQ(outcome(first), "pending");
  streams_.arrived(stream_, 0, text_value("a"));
  EXPECT_EQ(outcome(first), "a");
  EXPECT_EQ(take(), "a");
  EXPECT_EQ(take(), "b");
  EXPECT_EQ(outcome(streams_.next(stream_)), "pending");
}

TEST_F(StreamsTest, ReceivedItemsStayWhenTheCallIsDone) {
  streams_.arrived(stream_, 0, text_value("a"));
  const auto asked = streams_.next(stream_);
  done_.set(fail(unavailable("it died").with_reason("ActorDied")));
  EXPECT_EQ(outcome(asked), "a");
  EXPECT_EQ(take(), "a");
  EXPECT_EQ(take(), "StreamOver");
}

TEST_F(StreamsTest, AWaiterIsNotifiedOfTheEnd) {
  const auto asked = streams_.next(stream_);
  done_.set(text_value("0"));
  EXPECT_EQ(outcome(asked), "StreamOver");
  streams_.arrived(stream_, 0, text_value("late"));
  EXPECT_EQ(outcome(streams_.next(stream_)), "StreamOver");
}

TEST_F(StreamsTest, AMissingItemFailsAndLaterOnesAreReadable) {
  for (const std::uint64_t k : {1, 3, 4}) streams_.arrived(stream_, k, text_value(std::to_string(k)));
  const auto asked = streams_.next(stream_);
  EXPECT_EQ(outcome(asked), "pending");
  done_.set(text_value("5"));
  EXPECT_EQ(outcome(asked), "ItemLost");
  for (const char* expected : {"ItemLost", "1", "ItemLost", "3", "4", "StreamOver"}) EXPECT_EQ(take(), expected);
}

TEST_F(StreamsTest, ACallThatIsMadeAgainYieldsNothingTwice) {
  streams_.arrived(stream_, 0, text_value("a"));
  EXPECT_EQ(take(), "a");
  streams_.arrived(stream_, 1, text_value("b"));
  for (const int k : {0, 1, 2}) streams_.arrived(stream_, static_cast<std::uint64_t>(k), text_value("again"));
  EXPECT_EQ(take(), "b");
  EXPECT_EQ(take(), "again");
}

TEST_F(StreamsTest, AnAbandonedStreamKeepsNoItems) {
  const auto asked = streams_.next(stream_);
  streams_.close(stream_);
  streams_.arrived(stream_, 0, text_value("a"));
  EXPECT_EQ(outcome(asked), "pending");
  EXPECT_EQ(outcome(streams_.next(stream_)), "StreamOver");
  done_.set(text_value("1"));
}

TEST_F(StreamsTest, ItemsWithoutAReaderAreReleased) {
  std::weak_ptr<const void> kept;
  const auto watched = [&] {
    const auto hold = std::make_shared<int>(0);
    kept = hold;
    Value value = text_value("a");
    value.refer({ObjectKey()}, hold);
    return value;
  };
  streams_.arrived(stream_, 0, watched());
  EXPECT_FALSE(kept.expired());
  streams_.take(stream_);
  EXPECT_TRUE(kept.expired());
  streams_.arrived(stream_, 0, watched());  // the repeated call yields it a second time
  EXPECT_TRUE(kept.expired());
  streams_.arrived(stream_, 1, watched());
  streams_.close(stream_);
  EXPECT_TRUE(kept.expired());
  streams_.arrived(stream_, 2, watched());
  EXPECT_TRUE(kept.expired());
}

TEST_F(StreamsTest, NothingIsLeftToCallBackWhenItIsGoneBeforeTheCallIsDone) {
  runtime::Promise<Value> done;
  {
    Streams gone;
    gone.follow(gone.open(), done.future());
  }
  done.set(text_value("0"));
}

}  // namespace
}  // namespace shoal::actors
