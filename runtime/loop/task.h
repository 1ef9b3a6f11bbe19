// Coroutines: Task<T> is an Asio awaitable of a Result<T>. A header that needs no more than a callback does not include this one, because
// Asio compiles slowly.
//
// Restrictions of GCC 12: no capturing lambda as a coroutine; parameters by value. No co_await in a ternary, in braces or beside a
// capturing temporary.
#pragma once

#include <asio/any_io_executor.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/async_result.hpp>
#include <asio/awaitable.hpp>
#include <asio/use_awaitable.hpp>
#include <functional>
#include <memory>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

template <class T>
using Task = asio::awaitable<Result<T>>;

// Awaits an operation with a callback: calls `start` at once with that callback. If the awaiting task is cancelled first,
// the result is Cancelled and the late answer is dropped. Loop thread only.
template <class T>
Task<T> suspend(std::function<void(std::function<void(Result<T>)>)> start) {
  return asio::async_initiate<const asio::use_awaitable_t<>, void(Result<T>)>(
      [](auto handler, std::function<void(std::function<void(Result<T>)>)> begin) {
        using Handler = decltype(handler);
        auto slot = asio::get_associated_cancellation_slot(handler);
        auto waiting = std::make_shared<std::unique_ptr<Handler>>(std::make_unique<Handler>(std::move(handler)));
        const auto finish = [waiting](Result<T> result) {
          if (!*waiting) return;  // answered or cancelled before
          auto h = std::move(*waiting);
          auto where = asio::get_associated_executor(*h);
          asio::post(where, [h = std::make_shared<Handler>(std::move(*h)), r = std::make_shared<Result<T>>(std::move(result))]() mutable {
            (*h)(std::move(*r));
          });
        };
        if (slot.is_connected()) {
          slot.assign([finish](asio::cancellation_type) { finish(fail(cancelled("the task was cancelled"))); });
        }
        begin(finish);
      },
      asio::use_awaitable, std::move(start));
}

// Returns after `delay`; returns Cancelled if the task is cancelled before that.
Task<void> sleep(Clock& clock, Duration delay);

}  // namespace shoal::runtime
