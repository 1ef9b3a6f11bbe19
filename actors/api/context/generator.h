// The return type of a method or remote function with successive results: a coroutine that yields them.
//
//   shoal::Generator<int> count(int to) {
//     for (int i = 0; i < to; ++i) co_yield i;
//   }
//
// A generator runs in its call, and waits only for room on the connection (stream.h), not for the caller to take items. `co_yield
// shoal::fail(..)` ends it with that error. A generator that is cancelled, or whose caller is gone, is destroyed at its next item. Its
// reference parameters live as long as the generator.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "actors/api/codec/caught.h"
#include "runtime/core/result.h"

namespace shoal {

template <class T>
class [[nodiscard]] Generator {
 public:
  struct promise_type {
    Generator get_return_object() { return Generator(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(const T& value) {  // `value` lives until the coroutine is resumed
      item = &value;
      return {};
    }
    std::suspend_always yield_value(tl::unexpected<Error> why) {
      failed = std::move(why);
      return {};
    }
    void unhandled_exception() { thrown = std::current_exception(); }
    void return_void() {}
    template <class A>
    void await_transform(A&&) = delete;  // a generator may yield and wait by get(), but not co_await: nothing would resume it

    const T* item = nullptr;
    std::optional<tl::unexpected<Error>> failed;
    std::exception_ptr thrown;
  };

  explicit Generator(std::coroutine_handle<promise_type> coroutine) : coroutine_(coroutine) {}
  Generator(Generator&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  Generator& operator=(Generator&& other) noexcept {
    std::swap(coroutine_, other.coroutine_);
    return *this;
  }
  ~Generator() {
    if (coroutine_) coroutine_.destroy();
  }

  // Runs the coroutine to its next item, which stays valid until the next call. Returns null at the end, or the error that ended the
  // coroutine; `thrown` makes an error of an exception's text. After either, do not call next() again.
  Result<const T*> next(Error (*thrown)(std::string)) {
    auto& promise = coroutine_.promise();
    promise.item = nullptr;
    coroutine_.resume();
    if (promise.thrown) return fail(actors::api::from_exception(promise.thrown, thrown, "the generator threw"));
    if (promise.failed) return *std::move(promise.failed);
    return promise.item;
  }

 private:
  std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace shoal
