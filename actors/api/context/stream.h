// The results of a call that yields (generator.h): futures, in order, each available as soon as its value is there.
//
// As in Python (python/shoal/_objects/streams.py), the worker sends items over the call's connection, then the answer with their
// number (actors/session/references/streams.h). So all items have arrived when the answer arrives. An arrived item is a result like any
// other.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "actors/api/codec/encode.h"
#include "actors/api/context/future.h"
#include "actors/api/context/generator.h"
#include "actors/session/references/streams.h"

namespace shoal::actors {
struct Incoming;
}

namespace shoal {

template <class T>
class Stream;

}  // namespace shoal

namespace shoal::actors::api {

template <class R>
inline constexpr bool kYields = false;
template <class T>
inline constexpr bool kYields<Generator<T>> = true;

// The caller's type for a method that returns R.
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

// Opens a stream before the call is made; its number is the call's last argument.
Streams::Id new_stream(Hub& hub);

// The worker's side: sends items.
class Publisher {
 public:
  Publisher(Hub& hub, const Incoming& incoming, Streams::Id stream) : hub_(hub), incoming_(incoming), stream_(stream) {}
  // Waits for room in the caller's socket, unless the call is cancelled. Returns Cancelled/CallerGone if the connection is gone.
  Result<void> give(const Value& item);
  std::uint64_t count() const { return count_; }

 private:
  Hub& hub_;
  const Incoming& incoming_;
  const Streams::Id stream_;
  std::uint64_t count_ = 0;
};

// Runs a generator to its end; returns the number of its items.
template <class T>
Result<std::uint64_t> publish(Hub& hub, const Incoming& incoming, Streams::Id stream, Generator<T> items, Error (*thrown)(std::string)) {
  Publisher to(hub, incoming, stream);
  while (true) {
    SHOAL_TRY(const T* const item, items.next(thrown));
    if (item == nullptr) return to.count();
    SHOAL_TRY(const Value value, encode_result<T>(&hub.memory(), *item));
    SHOAL_OK(to.give(value));
    SHOAL_OK(check_cancelled());
  }
}

// The caller's untyped items. One thread at a time.
class Items {
 public:
  // `answer`: the answer of the call made with this stream.
  Items(Hub& hub, Reply answer, Streams::Id stream);
  ~Items();  // drops the items that were not taken
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;

  using Next = std::optional<Reply>;
  // The next item, or nothing after the last one. Returns the call's error if that failed, and DeadlineExceeded after `timeout`; then it
  // may be called again.
  Result<Next> next(Duration timeout);
  static Task<Next> next_async(std::shared_ptr<Items> self);
  const Reply& answer() const { return answer_; }

 private:
  // The next item as an answer. It is ready when the item is here, or the call has ended without one.
  const Reply& ahead();
  // Takes a ready item.
  Next take();

  Hub& hub_;
  const Reply answer_;
  const Streams::Id stream_;
  Reply ahead_;  // the item that is awaited
  bool over_ = false;
};

}  // namespace shoal::actors::api

namespace shoal {

// One thread at a time. Its destructor drops untaken items, but the call goes on (cancel() ends it at its next item):
//   for (const auto& row : handle.call(&Table::rows, name)) use(row.get());
template <class T>
class [[nodiscard]] Stream {
 public:
  using Value = T;
  Stream() = default;  // empty: only to be assigned to
  Stream(actors::api::Hub& hub, actors::api::Reply answer, actors::Streams::Id stream)
      : items_(std::make_shared<actors::api::Items>(hub, std::move(answer), stream)) {}
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;

  // Blocks until the next item is here; nothing after the last. If the call fails, the last future is its failure. Returns DeadlineExceeded
  // after `timeout`; it may then be called again.
  Result<std::optional<Future<T>>> next(Duration timeout = kForever) {
    SHOAL_TRY(auto item, items_->next(timeout));
    return item ? std::optional<Future<T>>(Future<T>(*std::move(item))) : std::nullopt;
  }
  // As next(), in a coroutine: co_await stream.async().
  Task<std::optional<Future<T>>> async() { return typed(items_); }
  // The number of items, or the call's failure; ready with the call.
  Future<std::uint64_t> completed() const { return Future<std::uint64_t>(items_->answer()); }

  class Iterator {
   public:
    using value_type = Future<T>;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(Stream& stream) : stream_(&stream) { ++*this; }
    const Future<T>& operator*() const { return *item_; }
    const Future<T>* operator->() const { return &*item_; }
    Iterator& operator++() {
      auto next = last_ ? Result<std::optional<Future<T>>>() : stream_->next();
      last_ = !next;  // an error of the wait ends the iteration
      item_ = next ? *std::move(next) : Future<T>(actors::api::failed_reply(stream_->items_->answer(), std::move(next).error()));
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

// Cancels the rest of the items: a running generator ends at its next one.
template <class T>
Result<void> cancel(const Stream<T>& stream, const CancelOptions& options = {}) {
  return cancel(stream.completed(), options);
}

}  // namespace shoal
