// The result of an operation under way. A caller asks whether it is there, waits for it, or registers a callback.
//
// A Promise sets the value once, on the loop; afterwards it is immutable. Future is a shared handle. Classes of actors/ that contain one
// provide a blocking get().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

template <class T>
class Promise;

template <class T>
class Future {
 public:
  Future() = default;  // an empty future: valid() is false
  bool valid() const { return state_ != nullptr; }
  bool operator==(const Future&) const = default;  // true if both belong to the same promise
  const void* identity() const { return state_.get(); }
  // Any thread. Once true, peek() may be called from any thread.
  bool ready() const { return state_->ready.load(std::memory_order_acquire); }
  const Result<T>& peek() const {
    SHOAL_CHECK(ready(), "a future is read before it is ready");
    return *state_->value;
  }
  Result<T>& peek() {
    SHOAL_CHECK(ready(), "a future is read before it is ready");
    return *state_->value;
  }
  // Calls fn on the loop once the value is set, immediately if it is set already. Loop thread (or owner of the loop) only.
  void then(std::function<void(const Result<T>&)> fn) const {
    if (ready()) return fn(*state_->value);
    state_->callbacks.push_back(std::move(fn));
  }

 private:
  friend class Promise<T>;
  struct State {
    std::atomic<bool> ready{false};
    std::optional<Result<T>> value;
    std::vector<std::function<void(const Result<T>&)>> callbacks;
  };
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

template <class T>
class Promise {
 public:
  Promise() : state_(std::make_shared<typename Future<T>::State>()) {}
  Future<T> future() const { return Future<T>(state_); }
  bool is_set() const { return state_->ready.load(std::memory_order_relaxed); }
  // Loop thread only. Ignores a second value: where the news of a death and an answer arrive almost together, the first one counts.
  void set(Result<T> value) const {
    if (is_set()) return;
    state_->value.emplace(std::move(value));
    state_->ready.store(true, std::memory_order_release);
    auto callbacks = std::move(state_->callbacks);
    for (auto& fn : callbacks) fn(*state_->value);
  }

 private:
  std::shared_ptr<typename Future<T>::State> state_;
};

}  // namespace shoal::runtime
