// The answers to one call of all actors of a mesh.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/api/context/future.h"

namespace shoal::actors::api {

template <class T>
struct Gathered {
  using Type = std::vector<T>;
};
template <>
struct Gathered<void> {
  using Type = void;
};

}  // namespace shoal::actors::api

namespace shoal {

// The answers of a mesh's actors to the same call, by rank.
template <class T>
class [[nodiscard]] Futures {
 public:
  explicit Futures(std::vector<Future<T>> futures) : futures_(std::move(futures)) {}

  std::size_t size() const { return futures_.size(); }
  const Future<T>& operator[](std::size_t rank) const { return futures_[rank]; }
  auto begin() const { return futures_.begin(); }
  auto end() const { return futures_.end(); }

  // All results by rank (void: none), or the error of the first failure, without waiting for the others.
  Result<typename actors::api::Gathered<T>::Type> get(Duration timeout = kForever) const {
    std::vector<const actors::api::Reply*> replies;
    for (const auto& f : futures_) replies.push_back(&f.reply());
    SHOAL_TRY(const std::size_t failed, actors::api::wait_all(replies, timeout));
    if (failed < size()) return fail(futures_[failed].get().error());
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      std::vector<T> out;
      for (const auto& f : futures_) {
        SHOAL_TRY(T value, f.get());
        out.push_back(std::move(value));
      }
      return out;
    }
  }

 private:
  std::vector<Future<T>> futures_;
};

}  // namespace shoal
