// Reads CBOR items into C++ values (items.h). If a function returns false, its reader has the reason.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "actors/api/codec/items.h"

namespace shoal::actors::api {

// A conversion by nlohmann::json. Its exceptions pass through.
nlohmann::json json_of(std::span<const std::byte> item);

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
