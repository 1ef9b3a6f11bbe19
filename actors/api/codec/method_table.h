// The table of an actor's methods, from its list (methods.h): names, signatures, constructor and concurrency groups of class T.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "actors/api/codec/methods.h"
#include "actors/api/codec/names.h"

namespace shoal::actors::api {

template <class T>
concept Actor = requires { T::methods.pointers; };

template <class Listed, class T>
struct ConstructorOf {
  using Type = Listed;
};
template <class T>
struct ConstructorOf<void, T> {
  static_assert(std::is_constructible_v<T, const Place&> || std::is_default_constructible_v<T>,
                "this actor's constructor takes something: list it as shoal::methods(shoal::constructor<PARAMETERS>, ..)");
  using Type = std::conditional_t<std::is_constructible_v<T, const Place&>, Constructor<Place>, Constructor<>>;
};

// A constructor's parameters without its Place, if it begins with one.
template <class Ctor>
struct ConstructorParams;
template <class... P>
struct ConstructorParams<Constructor<P...>> {
  static constexpr bool kTakesPlace = false;
  using Params = List<P...>;
};
template <class First, class... P>
  requires std::is_same_v<std::remove_cvref_t<First>, Place>
struct ConstructorParams<Constructor<First, P...>> {
  static constexpr bool kTakesPlace = true;
  using Params = List<P...>;
};

template <Actor T>
struct Table {
  using Pointers = std::remove_cvref_t<decltype(T::methods.pointers)>;
  using Construction = ConstructorParams<typename ConstructorOf<typename decltype(T::methods)::Constructor, T>::Type>;
  static constexpr std::size_t kNumMethods = std::tuple_size_v<Pointers>;

  template <std::size_t I>
  static constexpr auto pointer() {
    return std::get<I>(T::methods.pointers);
  }

  static constexpr std::array<std::string_view, kNumMethods> names() {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return std::array<std::string_view, kNumMethods>{unqualified(argument_in(pretty_pointer<pointer<I>()>()))...};
    }(std::make_index_sequence<kNumMethods>());
  }

  static constexpr bool names_differ() {
    const auto all = names();
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (all[i] == all[j]) return false;
      }
    }
    return true;
  }
  static_assert(names_differ(), "an actor lists each method once, and none that is overloaded twice");

  // True if a method is a coroutine: then all calls run on one loop.
  static constexpr bool kOnLoop = []<class... P>(const std::tuple<P...>*) {
    return (kIsTask<std::remove_cvref_t<typename Signature<P>::Return>> || ...);
  }(static_cast<const Pointers*>(nullptr));

  static constexpr std::size_t kNumGroups = [] {
    if constexpr (requires { T::concurrency_groups.groups; }) {
      return std::tuple_size_v<std::remove_cvref_t<decltype(T::concurrency_groups.groups)>>;
    } else {
      return std::size_t{0};
    }
  }();
  // The group of each method, from 1 on; 0: none. `good`: each method in a group is listed among the methods, and in one group only.
  struct Grouped {
    std::array<std::size_t, kNumMethods> group{};
    std::array<std::int32_t, kNumGroups> sizes{};
    bool good = true;
  };
  static constexpr Grouped grouped() {
    Grouped out;
    if constexpr (kNumGroups > 0) {
      constexpr auto kNames = names();
      const auto put = [&]<std::size_t G, std::size_t... P>(std::index_sequence<P...>) {
        constexpr auto kGroup = std::get<G>(T::concurrency_groups.groups);
        out.sizes[G] = kGroup.max_concurrency;
        for (const std::string_view name : {unqualified(argument_in(pretty_pointer<std::get<P>(kGroup.pointers)>()))...}) {
          const auto at = static_cast<std::size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
          out.good = out.good && at < kNumMethods && out.group[at < kNumMethods ? at : 0] == 0 && kGroup.max_concurrency > 0;
          if (out.good) out.group[at] = G + 1;
        }
      };
      [&]<std::size_t... G>(std::index_sequence<G...>) {
        (put.template operator()<G>(
             std::make_index_sequence<
                 std::tuple_size_v<std::remove_cvref_t<decltype(std::get<G>(T::concurrency_groups.groups).pointers)>>>()),
         ...);
      }(std::make_index_sequence<kNumGroups>());
    }
    return out;
  }
  static_assert(grouped().good,
                "a concurrency group has room for a call at least, and methods that `methods` lists and no other group has");

  // True if some method has the signature of this pointer. Which method it points to is known at run time only (name_of).
  template <class Pointer>
  static constexpr bool lists() {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (std::is_same_v<Pointer, std::tuple_element_t<I, Pointers>> || ...);
    }(std::make_index_sequence<kNumMethods>());
  }

  // The method's name; "" if it is not listed.
  template <class Pointer>
  static std::string_view name_of(Pointer wanted) {
    static constexpr auto kNames = names();
    std::string_view found;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto match = [&]<std::size_t K>() {
        if constexpr (std::is_same_v<Pointer, std::tuple_element_t<K, Pointers>>) {
          if (found.empty() && pointer<K>() == wanted) found = kNames[K];
        }
      };
      (match.template operator()<I>(), ...);
    }(std::make_index_sequence<kNumMethods>());
    return found;
  }
};

}  // namespace shoal::actors::api
