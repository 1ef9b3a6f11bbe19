// C++ values as CBOR items, and back.
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

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/api/cbor.h"
#include "actors/api/methods.h"
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

// Conversions by nlohmann::json. Its exceptions pass through.
nlohmann::json json_of(std::span<const std::byte> item);
void write_json(CborWriter& to, const nlohmann::json& value);

// ---- writing

template <class T>
void write_item(CborWriter& to, const T& value);

template <class T>
constexpr std::size_t num_fields() {
  return std::tuple_size_v<std::remove_cvref_t<decltype(T::fields.pointers)>>;
}
template <class T, std::size_t... I>
constexpr std::array<std::string_view, sizeof...(I)> field_names(std::index_sequence<I...>) {
  return {unqualified(argument_in(pretty_pointer<std::get<I>(T::fields.pointers)>()))...};
}

template <class T>
void write_fields(CborWriter& to, const T& value) {
  static constexpr auto kNames = field_names<T>(std::make_index_sequence<num_fields<T>()>());
  to.head(Major::kMap, kNames.size());
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((to.text(kNames[I]), write_item(to, value.*std::get<I>(T::fields.pointers))), ...);
  }(std::make_index_sequence<kNames.size()>());
}

template <class T>
void write_item(CborWriter& to, const T& value) {
  if constexpr (HasCodec<T>) {
    Codec<T>::write(to, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    to.simple(value ? kTrue : kFalse);
  } else if constexpr (std::is_enum_v<T>) {
    write_item(to, static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (kIsId<T>) {
    to.head(Major::kUnsigned, value.value);
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_signed_v<T>) {
      to.integer(value);
    } else {
      to.head(Major::kUnsigned, value);
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) <= 8, "long double has no form outside of this machine");
    to.number(value);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view> && !JsonItself<T>) {
    to.text(value);
  } else if constexpr (JsonItself<T>) {
    write_json(to, value);
  } else if constexpr (HasFields<T>) {
    write_fields(to, value);
  } else if constexpr (kIsOptional<T>) {
    if (value) {
      write_item(to, *value);
    } else {
      to.simple(kNull);
    }
  } else if constexpr (std::is_same_v<T, Bytes>) {
    to.bytes(value.span());
  } else if constexpr (kArrayTag<T> != 0) {
    to.head(Major::kTag, kArrayTag<T>);
    to.bytes(std::as_bytes(std::span(value)));
  } else if constexpr (MapLike<T>) {
    to.head(Major::kMap, value.size());
    for (const auto& [k, v] : value) {
      write_item(to, k);
      write_item(to, v);
    }
  } else if constexpr (ListLike<T> || kIsArray<T>) {
    to.head(Major::kArray, value.size());
    for (const auto& v : value) write_item<typename T::value_type>(to, v);
  } else if constexpr (TupleLike<T>) {
    to.head(Major::kArray, std::tuple_size_v<T>);
    std::apply([&](const auto&... v) { (write_item(to, v), ...); }, value);
  } else if constexpr (WithJson<T>) {
    write_json(to, nlohmann::json(value));
  } else {
    static_assert(kNever<T>, "this type does not travel: list its `fields`, give it to_json and from_json, or a shoal::Codec");
  }
}

// ---- reading. On false the reader has the reason.

template <class T>
bool read_item(CborReader& from, T& out);

template <class N>
bool read_integer(CborReader& from, N& out) {
  bool negative = false;
  std::uint64_t n = 0;
  if (!from.integer(negative, n)) return false;
  if (n > static_cast<std::uint64_t>(std::numeric_limits<N>::max()) || (negative && !std::is_signed_v<N>)) {
    return from.fail("an integer that does not fit its type");
  }
  out = negative ? static_cast<N>(-1 - static_cast<std::int64_t>(n)) : static_cast<N>(n);
  return true;
}

template <class T>
bool read_fields(CborReader& from, T& out) {
  constexpr std::size_t kCount = num_fields<T>();
  static constexpr auto kNames = field_names<T>(std::make_index_sequence<kCount>());
  std::array<bool, kCount> seen{};
  std::uint64_t n = 0;
  if (!from.begin(Major::kMap, n, "a map of fields") || !from.enter()) return false;
  for (std::uint64_t i = 0; i < n; ++i) {
    std::string_view name;
    if (!from.run(Major::kText, name, "the name of a field")) return false;
    const auto field = static_cast<std::size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
    bool good = true;
    if (field == kCount) {  // a field that this program does not have: the value comes from a newer one
      std::span<const std::byte> unknown;
      good = from.skip(unknown);
    } else {
      seen[field] = true;
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        (void)((I == field && (good = read_item(from, out.*std::get<I>(T::fields.pointers)), true)) || ...);
      }(std::make_index_sequence<kCount>());
    }
    if (!good) return false;
  }
  from.leave();
  const auto missing = static_cast<std::size_t>(std::find(seen.begin(), seen.end(), false) - seen.begin());
  return missing == kCount || from.fail("field " + std::string(kNames[missing]) + " of " + std::string(class_name<T>()) + " is missing");
}

template <class T>
bool read_numbers(CborReader& from, T& out) {
  using N = typename T::value_type;
  std::string_view bytes;
  if (!from.run(Major::kBytes, bytes, "the bytes of numbers")) return false;
  if (bytes.size() % sizeof(N) != 0) return from.fail("bytes that are no whole number of numbers");
  out.resize(bytes.size() / sizeof(N));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return true;
}

template <class T>
bool read_list(CborReader& from, T& out) {
  std::uint64_t n = 0;
  if (!from.begin(Major::kArray, n, "an array") || !from.enter()) return false;
  if constexpr (requires { out.reserve(n); })
    out.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(n, 4096)));  // `n` is what the sender claims, so it is not trusted
  for (std::uint64_t i = 0; i < n; ++i) {
    typename T::value_type item{};
    if (!read_item(from, item)) return false;
    out.insert(out.end(), std::move(item));
  }
  from.leave();
  return true;
}

// An array of exactly `n` items, read by `read`.
template <class Read>
bool read_exactly(CborReader& from, std::uint64_t n, Read&& read) {
  std::uint64_t there = 0;
  if (!from.begin(Major::kArray, there, "an array") || !from.enter()) return false;
  if (there != n) return from.fail(std::to_string(n) + " items were expected, there are " + std::to_string(there));
  if (!read()) return false;
  from.leave();
  return true;
}

template <class T>
bool read_map(CborReader& from, T& out) {
  std::uint64_t n = 0;
  if (!from.begin(Major::kMap, n, "a map") || !from.enter()) return false;
  for (std::uint64_t i = 0; i < n; ++i) {
    typename T::key_type key{};
    typename T::mapped_type value{};
    if (!read_item(from, key) || !read_item(from, value)) return false;
    out.insert({std::move(key), std::move(value)});
  }
  from.leave();
  return true;
}

template <class T>
bool read_item(CborReader& from, T& out) {
  static_assert(!std::is_same_v<T, std::string_view>, "a view inside of a value has no owner where it is read: std::string has");
  static_assert(std::is_default_constructible_v<T>, "what travels is made first, and filled then: it needs a default constructor");
  if constexpr (HasCodec<T>) {
    return Codec<T>::read(from, out);
  } else if constexpr (std::is_same_v<T, bool>) {
    return from.boolean(out);
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> n{};
    if (!read_integer(from, n)) return false;
    out = static_cast<T>(n);
    return true;
  } else if constexpr (kIsId<T>) {
    return read_integer(from, out.value);
  } else if constexpr (std::is_integral_v<T>) {
    return read_integer(from, out);
  } else if constexpr (std::is_floating_point_v<T>) {
    double x = 0;
    if (!from.number(x)) return false;
    out = static_cast<T>(x);
    return true;
  } else if constexpr (std::is_same_v<T, std::string>) {
    std::string_view text;
    if (!from.run(Major::kText, text, "text")) return false;
    out = text;
    return true;
  } else if constexpr (JsonItself<T>) {
    std::span<const std::byte> item;
    if (!from.skip(item)) return false;
    out = json_of(item);
    return true;
  } else if constexpr (HasFields<T>) {
    return read_fields(from, out);
  } else if constexpr (kIsOptional<T>) {
    if (from.take_if(kNull)) {
      out.reset();
      return true;
    }
    return read_item(from, out.emplace());
  } else if constexpr (std::is_same_v<T, Bytes>) {
    std::string_view bytes;
    if (!from.run(Major::kBytes, bytes, "bytes")) return false;
    out = Bytes::copy_of(bytes);
    return true;
  } else if constexpr (kArrayTag<T> != 0) {
    return from.take_tag(kArrayTag<T>) ? read_numbers(from, out) : read_list(from, out);
  } else if constexpr (MapLike<T>) {
    return read_map(from, out);
  } else if constexpr (ListLike<T>) {
    return read_list(from, out);
  } else if constexpr (kIsArray<T>) {
    return read_exactly(from, out.size(), [&] { return std::all_of(out.begin(), out.end(), [&](auto& v) { return read_item(from, v); }); });
  } else if constexpr (TupleLike<T>) {
    return read_exactly(from, std::tuple_size_v<T>,
                        [&] { return std::apply([&](auto&... v) { return (read_item(from, v) && ...); }, out); });
  } else if constexpr (WithJson<T>) {
    std::span<const std::byte> item;
    if (!from.skip(item)) return false;
    json_of(item).get_to(out);
    return true;
  } else {
    static_assert(kNever<T>, "this type does not travel: list its `fields`, give it to_json and from_json, or a shoal::Codec");
    return false;
  }
}

}  // namespace shoal::actors::api
