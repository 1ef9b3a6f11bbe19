// Arguments and results, to Values and back.
//
// The head is a CBOR array with one item per parameter, through nlohmann::json: what has to_json and from_json (found by ADL, or made by
// NLOHMANN_DEFINE_TYPE_*) travels. Bytes and std::span<const std::byte> stay outside: their item is null, and they are the buffers that
// follow the head, in order. A result is a list of one, of void an empty one.
//
// What arrives is checked against the parameters' types; bytes that do not fit, or nest deeper than kMaxDepth, are InvalidArgument.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/api/caught.h"
#include "actors/api/methods.h"
#include "actors/value/value.h"
#include "runtime/core/bytes.h"
#include "runtime/core/id.h"

// Ids travel as numbers: a method may take an ActorId (Context::handle).
template <class Tag>
struct nlohmann::adl_serializer<shoal::Id<Tag>> {
  static void to_json(json& j, shoal::Id<Tag> id) { j = id.value; }
  static void from_json(const json& j, shoal::Id<Tag>& id) { j.get_to(id.value); }
};

namespace shoal::actors::api {

inline constexpr int kMaxDepth = 64;

template <class P>
inline constexpr bool kIsBytes =
    std::is_same_v<std::remove_cvref_t<P>, Bytes> || std::is_same_v<std::remove_cvref_t<P>, std::span<const std::byte>>;

// What a parameter's value is kept in while the method runs. A span is a view of the call itself.
template <class P>
struct StoredType {
  using Type = std::remove_cvref_t<P>;
  static_assert(!std::is_pointer_v<Type>, "a pointer means nothing in another process");
  static_assert(!(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>),
                "a method of an actor returns its results: it takes no reference to write to");
};
template <class P>
  requires std::is_same_v<std::remove_cvref_t<P>, std::string_view>
struct StoredType<P> {
  using Type = std::string;
};
template <class P>
using Stored = typename StoredType<P>::Type;

// What the caller of a method that returns R gets: R, or what is in its Result; a view becomes an owner.
template <class R>
struct ReturnedType {
  using Type = Stored<std::conditional_t<kIsBytes<R>, Bytes, std::remove_cvref_t<R>>>;
};
template <>
struct ReturnedType<void> {
  using Type = void;
};
template <class T>
struct ReturnedType<Result<T>> : ReturnedType<T> {};
template <class R>
using Returned = typename ReturnedType<std::remove_cvref_t<R>>::Type;

template <class R>
inline constexpr bool kIsResult = false;
template <class T>
inline constexpr bool kIsResult<Result<T>> = true;

Result<Value> make_value(const nlohmann::json& head, Value::Pieces buffers);
// The head, which has `num_items` items, of a value with `num_buffers` buffers besides. May throw what nlohmann::json throws.
Result<nlohmann::json> head_of(const Value& value, std::size_t num_items, std::size_t num_buffers);

inline std::span<const std::byte> bytes_of(const Bytes& b) { return b.span(); }
inline std::span<const std::byte> bytes_of(std::span<const std::byte> b) { return b; }

template <class P, class A>
void put(nlohmann::json& head, Value::Pieces& buffers, const A& arg) {
  if constexpr (kIsBytes<P>) {
    head.push_back(nullptr);
    buffers.push_back(bytes_of(arg));
  } else if constexpr (std::is_same_v<A, Stored<P>>) {
    head.push_back(nlohmann::json(arg));
  } else {
    const std::remove_cvref_t<P> converted = arg;  // as a call would convert it
    head.push_back(nlohmann::json(converted));
  }
}

// The arguments `args` of a method with parameters P.
template <class... P, class... A>
Result<Value> encode(List<P...>, const A&... args) {
  return caught(invalid_argument, "the values cannot be encoded", [&]() -> Result<Value> {
    auto head = nlohmann::json::array();
    Value::Pieces buffers;
    (put<P>(head, buffers, args), ...);
    return make_value(head, std::move(buffers));
  });
}

// How many of the first I types are bytes.
template <class... P>
constexpr std::size_t num_bytes_before(std::size_t index) {
  constexpr bool is_bytes[] = {kIsBytes<P>..., false};
  std::size_t n = 0;
  for (std::size_t i = 0; i < index; ++i) n += is_bytes[i];
  return n;
}

// `item` of the head, or the buffer in its stead. A span points into the value.
template <class P>
Stored<P> take(const nlohmann::json& item, const Value::Pieces& pieces, std::size_t piece) {
  if constexpr (std::is_same_v<Stored<P>, Bytes>) {
    return Bytes::copy_of(pieces[piece].data(), pieces[piece].size());
  } else if constexpr (kIsBytes<P>) {
    return pieces[piece];
  } else {
    return item.get<Stored<P>>();
  }
}

// The inverse of encode.
template <class... P>
Result<std::tuple<Stored<P>...>> decode(List<P...>, const Value& value) {
  using Out = Result<std::tuple<Stored<P>...>>;
  return caught(invalid_argument, "the values cannot be decoded", [&]() -> Out {
    constexpr std::size_t kNumBytes = num_bytes_before<P...>(sizeof...(P));
    SHOAL_TRY(const auto head, head_of(value, sizeof...(P), kNumBytes));
    const auto pieces = value.pieces();
    return [&]<std::size_t... I>(std::index_sequence<I...>) -> Out {
      return std::tuple<Stored<P>...>{take<P>(head[I], pieces, 1 + num_bytes_before<P...>(I))...};
    }(std::index_sequence_for<P...>());
  });
}

// A stored value as the argument for a parameter of type P.
template <class P>
decltype(auto) pass(Stored<P>& stored) {
  if constexpr (std::is_lvalue_reference_v<P>) {
    return static_cast<const Stored<P>&>(stored);
  } else {
    return static_cast<Stored<P>&&>(stored);
  }
}

// A method's result as its caller gets it.
template <class T>
Result<T> decode_result(const Value& value) {
  if constexpr (std::is_void_v<T>) {
    SHOAL_OK(decode(List<>(), value));
    return {};
  } else {
    SHOAL_TRY(auto result, decode(List<T>(), value));
    return std::get<0>(std::move(result));
  }
}

}  // namespace shoal::actors::api
