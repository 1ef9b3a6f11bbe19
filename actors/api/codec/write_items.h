// Writes C++ values as CBOR items (items.h).
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "actors/api/codec/items.h"

namespace shoal::actors::api {

// A conversion by nlohmann::json. Its exceptions pass through.
void write_json(CborWriter& to, const nlohmann::json& value);

template <class T>
void write_item(CborWriter& to, const T& value);

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

}  // namespace shoal::actors::api
