// The list of an actor's methods, which stands once in its class:
//
//   class Counter {
//    public:
//     explicit Counter(int start);
//     Result<int> add(int n);
//     int value() const;
//     static constexpr auto methods = shoal::methods(shoal::constructor<int>, &Counter::add, &Counter::value);
//   };
//
// A constructor with parameters besides a Place must be listed, so that the worker can decode them. Everything is decided at compile
// time (method_table.h): names come from the member pointers, and there is no registry.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "runtime/core/id.h"

namespace shoal {

class Context;

// An actor's position in its mesh. A constructor may take it as its first parameter; callers never pass it.
struct Place {
  Rank rank;
  std::int32_t world_size = 1;
  Context* context = nullptr;  // the process's Context, to call or spawn other actors; null only in tests of the class alone
};

template <class... Params>
struct Constructor {};
template <class... Params>
inline constexpr Constructor<Params...> constructor{};

template <class Ctor, class... Pointers>
struct Methods {
  using Constructor = Ctor;  // void if not listed
  std::tuple<Pointers...> pointers;
};

template <class... Params, class... Pointers>
constexpr Methods<Constructor<Params...>, Pointers...> methods(Constructor<Params...>, Pointers... pointers) {
  return {{pointers...}};
}
template <class... Pointers>
  requires(std::is_member_function_pointer_v<Pointers> && ...)
constexpr Methods<void, Pointers...> methods(Pointers... pointers) {
  return {{pointers...}};
}

// For an actor that runs several calls at once: at most `max_concurrency` calls of these methods run together. They do not count against
// the actor's own max_concurrency, which holds for all other methods.
//
//   static constexpr auto concurrency_groups =
//       shoal::concurrency_groups(shoal::concurrency_group(2, &Store::read, &Store::list), shoal::concurrency_group(1, &Store::write));
template <class... Pointers>
struct ConcurrencyGroup {
  std::int32_t max_concurrency;
  std::tuple<Pointers...> pointers;
};
template <class... Pointers>
  requires(sizeof...(Pointers) > 0 && (std::is_member_function_pointer_v<Pointers> && ...))
constexpr ConcurrencyGroup<Pointers...> concurrency_group(std::int32_t max_concurrency, Pointers... pointers) {
  return {max_concurrency, {pointers...}};
}
template <class... Groups>
struct ConcurrencyGroups {
  std::tuple<Groups...> groups;
};
template <class... Groups>
constexpr ConcurrencyGroups<Groups...> concurrency_groups(Groups... groups) {
  return {{groups...}};
}

}  // namespace shoal
