// The results of a call that has them one after the other (generator.h): futures, in order, each as soon as its value is there.
//
// As Python's streams (python/shoal/_stream.py): the worker sends each item to its caller, over the connection of the call and before its
// answer, their number (actors/session/streams.h): who has the answer has all that there is. Then an item is a result like any other.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "actors/api/future.h"
#include "actors/api/generator.h"
#include "actors/session/actor_host.h"
#include "actors/session/streams.h"

namespace shoal {

template <class T>
class Stream;

}  // namespace shoal

namespace shoal::actors::api {

template <class R>
inline constexpr bool kYields = false;
template <class T>
inline constexpr bool kYields<Generator<T>> = true;

// What the caller of a method that returns R gets.
template <class R>
struct AnswerType {
  using Type = Future<Returned<R>>;
};
template <class T>
struct AnswerType<Generator<T>> {
  using Type = Stream<Returned<T>>;
};
template <class R>
using Answer = typename AnswerType<R>::Type;

// The caller's number for it, before the call is made; it is the call's last argument.
Streams::Id new_stream(Hub& hub);

// The worker's side.
class Publisher {
 public:
  Publisher(Hub& hub, const Incoming& incoming, Streams::Id stream) : hub_(hub), incoming_(incoming), stream_(stream) {}
  // Waits while the caller's socket takes nothing, unless the call is cancelled. Cancelled/CallerGone when nobody hears it.
  Result<void> give(const Value& item);
  std::uint64_t count() const { return count_; }

 private:
  Hub& hub_;
  const Incoming& incoming_;
  const Streams::Id stream_;
  std::uint64_t count_ = 0;
};

// Runs it to its end: the number of its items.
template <class T>
Result<std::uint64_t> publish(Hub& hub, const Incoming& incoming, Streams::Id stream, Generator<T> items, Error (*thrown)(std::string)) {
  Publisher to(hub, incoming, stream);
  while (true) {
    SHOAL_TRY(const T* const item, items.next(thrown));
    if (item == nullptr) return to.count();
    SHOAL_TRY(const Value value, encode_result<T>(&hub.session.memory(), *item));
    SHOAL_OK(to.give(value));
    SHOAL_OK(check_cancelled());
  }
}

// The caller's side, before its items have a type. One thread at a time.
class Items {
 public:
  // `done`: the call, which was made with that number.
  Items(Hub& hub, Reply done, Streams::Id stream);
  ~Items();  // what nobody took is dropped
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;

  using Next = std::optional<Reply>;
  // The one after it; nothing after the last, which of a call that fails is its failure. DeadlineExceeded: it may be asked again.
  Result<Next> next(Duration timeout);
  static Task<Next> next_async(std::shared_ptr<Items> self);
  const Reply& done() const { return done_; }

 private:
  // The next one: ready when it is there, or the call is over and there is none.
  const Reply& ahead();
  // Of one that is ready.
  Next take();

  Hub& hub_;
  const Reply done_;
  const Streams::Id stream_;
  Reply ahead_;  // the one that is waited for
  bool over_ = false;
};

}  // namespace shoal::actors::api

namespace shoal {

// For one thread at a time. Items that nobody has taken are dropped with it; the call goes on (cancel() ends it at its next item).
//   for (const auto& row : handle.call(&Table::rows, name)) use(row.get());
template <class T>
class [[nodiscard]] Stream {
 public:
  using Value = T;
  Stream() = default;  // of nothing: only to be assigned to
  Stream(actors::api::Hub& hub, actors::api::Reply done, actors::Streams::Id stream)
      : items_(std::make_shared<actors::api::Items>(hub, std::move(done), stream)) {}
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;

  // Blocks until the next item is there; nothing after the last. When the call fails, the last future is its failure. DeadlineExceeded when
  // the time is over: it may be asked again.
  Result<std::optional<Future<T>>> next(Duration timeout = kForever) {
    SHOAL_TRY(auto item, items_->next(timeout));
    return item ? std::optional<Future<T>>(Future<T>(*std::move(item))) : std::nullopt;
  }
  // The same in a coroutine: co_await stream.async().
  Task<std::optional<Future<T>>> async() { return typed(items_); }
  // Ready when the call is: how many items there are, or its failure.
  Future<std::uint64_t> completed() const { return Future<std::uint64_t>(items_->done()); }

  class Iterator {
   public:
    using value_type = Future<T>;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(Stream& stream) : stream_(&stream) { ++*this; }
    const Future<T>& operator*() const { return *item_; }
    const Future<T>* operator->() const { return &*item_; }
    Iterator& operator++() {
      auto next = last_ ? Result<std::optional<Future<T>>>() : stream_->next();
      last_ = !next;  // it cannot be waited for: that is the last
      item_ = next ? *std::move(next) : Future<T>(actors::api::failed_reply(stream_->items_->done(), std::move(next).error()));
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !item_; }

   private:
    Stream* stream_;
    std::optional<Future<T>> item_;
    bool last_ = false;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  static Task<std::optional<Future<T>>> typed(std::shared_ptr<actors::api::Items> items) {
    auto item = co_await actors::api::Items::next_async(std::move(items));
    if (!item) co_return fail(std::move(item).error());
    co_return *item ? std::optional<Future<T>>(Future<T>(**std::move(item))) : std::nullopt;
  }

  std::shared_ptr<actors::api::Items> items_;
};

// The rest of it: a generator that runs ends at its next item.
template <class T>
Result<void> cancel(const Stream<T>& stream, const CancelOptions& options = {}) {
  return cancel(stream.completed(), options);
}

}  // namespace shoal
