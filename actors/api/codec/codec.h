// The types of arguments and results: how they become Values (encode.h) and are read back (decode.h).
//
// The value head is a CBOR array with one item per parameter (items.h). A parameter of type Bytes or std::span<const std::byte> has a null
// item there. Its bytes are a buffer after the head, in the same order. An argument that is a future is a reference: its item is the index
// of a value that the call carries besides its arguments. Futures for parameters of type Future, and inside other values, stay references
// (api/context/future.h). A result is an array of one item (void: of none). A tuple (with no tuple in it) is several values
// (Value::make_many).
//
// Received bytes are checked against the parameters' types. Bytes that do not fit, or nest deeper than kMaxDepth, give InvalidArgument with
// the argument's position and the method's name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

namespace shoal::actors::api {

template <class P>
inline constexpr bool kIsBytes =
    std::is_same_v<std::remove_cvref_t<P>, Bytes> || std::is_same_v<std::remove_cvref_t<P>, std::span<const std::byte>>;

// The type that holds a parameter's value while the method runs. A span is a view into the call.
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

// The caller's type for a method that returns R: R, or the type in its Result; a view becomes an owner.
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
template <class... T>
struct ReturnedType<std::tuple<T...>> {
  using Type = std::tuple<typename ReturnedType<std::remove_cvref_t<T>>::Type...>;
};
template <class R>
using Returned = typename ReturnedType<std::remove_cvref_t<R>>::Type;

template <class R>
inline constexpr bool kIsResult = false;
template <class T>
inline constexpr bool kIsResult<Result<T>> = true;

template <class T>
inline constexpr bool kIsTuple = false;
template <class... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;

// The number of results of a method that returns several, else 0. A tuple with a tuple in it is a single value: the inner tuple,
// as a part of its own, would be encoded as one value, where its reader expects several.
template <class T>
inline constexpr std::size_t kNumResults = 0;
template <class... T>
  requires(!kIsTuple<std::remove_cvref_t<T>> && ...)
inline constexpr std::size_t kNumResults<std::tuple<T...>> = sizeof...(T);

// True for an argument whose value may not have arrived yet: Future<T> (api/context/future.h).
template <class A>
struct ReferenceTo {
  static constexpr bool kIs = false;
};

}  // namespace shoal::actors::api
