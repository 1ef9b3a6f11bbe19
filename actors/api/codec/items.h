// The types of C++ values that travel as CBOR items (write_items.h), and back (read_items.h).
//
//   numbers, enums, bool, text         as such; a value that does not fit its type is refused.
//   std::optional                      null, or the value.
//   pair, tuple, array                 an array of exactly that length; vector, deque, list, set: of any length.
//   vectors of numbers                 one byte string with RFC 8746's tag, little-endian.
//   maps                               maps.
//   Bytes inside another type          a byte string (as arguments and results they are buffers: codec.h).
//   a class that lists its fields      a map by field name: `static constexpr auto fields = shoal::fields(&Point::x, &Point::y);`.
//   a type with to_json and from_json  nlohmann::json's form (found by ADL, or by NLOHMANN_DEFINE_TYPE_*); also json itself.
//   a class with its own Codec         the Codec's form.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/api/codec/cbor.h"
#include "actors/api/codec/names.h"
#include "runtime/core/bytes.h"
#include "runtime/core/id.h"

namespace shoal {

template <class... Pointers>
struct Fields {
  std::tuple<Pointers...> pointers;
};
template <class... Pointers>
  requires(std::is_member_object_pointer_v<Pointers> && ...)
constexpr Fields<Pointers...> fields(Pointers... pointers) {
  return {{pointers...}};
}

// For a user's class: static void write(actors::api::CborWriter&, const T&), one item; static bool read(actors::api::CborReader&, T&).
template <class T>
struct Codec {};

}  // namespace shoal

namespace shoal::actors::api {

template <class T>
concept HasCodec = requires(CborWriter& w, const T& v) { Codec<T>::write(w, v); };
template <class T>
concept HasFields = requires { T::fields.pointers; };
template <class T>
concept JsonItself = std::is_same_v<T, nlohmann::json>;
template <class T>
concept MapLike = requires(T& c) {
  typename T::key_type;
  typename T::mapped_type;
  c.begin();
};
template <class T>
concept ListLike = requires(T& c, typename T::value_type v) { c.insert(c.end(), std::move(v)); } && !MapLike<T>;
template <class T>
concept TupleLike = requires { std::tuple_size<T>::value; };
template <class T>
concept WithJson = std::is_constructible_v<nlohmann::json, const T&>;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;
template <class T>
inline constexpr bool kIsId = false;
template <class Tag>
inline constexpr bool kIsId<Id<Tag>> = true;
template <class T>
inline constexpr bool kNever = false;

// The tag of RFC 8746 for a vector of these numbers, little-endian; 0: there is none.
template <class T>
constexpr std::uint64_t array_tag() {
  if constexpr (std::is_same_v<T, bool> || !std::is_arithmetic_v<T> || sizeof(T) < 2 || sizeof(T) > 8) {
    return 0;
  } else {
    constexpr std::uint64_t kSize = sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_floating_point_v<T> ? 83 + kSize : std::is_signed_v<T> ? 76 + kSize : 68 + kSize;
  }
}
template <class T>
inline constexpr std::uint64_t kArrayTag = 0;
template <class T, class A>
inline constexpr std::uint64_t kArrayTag<std::vector<T, A>> = std::endian::native == std::endian::little ? array_tag<T>() : 0;

template <class T>
constexpr std::size_t num_fields() {
  return std::tuple_size_v<std::remove_cvref_t<decltype(T::fields.pointers)>>;
}
template <class T, std::size_t... I>
constexpr std::array<std::string_view, sizeof...(I)> field_names(std::index_sequence<I...>) {
  return {unqualified(argument_in(pretty_pointer<std::get<I>(T::fields.pointers)>()))...};
}

}  // namespace shoal::actors::api
