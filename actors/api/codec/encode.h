// Encodes arguments and results to Values (codec.h).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/api/codec/caught.h"
#include "actors/api/codec/codec.h"
#include "actors/api/codec/names.h"
#include "actors/api/codec/write_items.h"
#include "actors/value/value.h"
#include "runtime/loop/future.h"

namespace shoal::actors::api {

struct Encoded {
  Value value;
  std::vector<runtime::Future<Value>> deps;  // the references among the arguments, by number
  bool has_futures = false;                  // some other arguments contain futures
};

inline std::span<const std::byte> bytes_of(const Bytes& b) { return b.span(); }
inline std::span<const std::byte> bytes_of(std::span<const std::byte> b) { return b; }

template <std::size_t N>
struct Encoder {
  CborWriter head;
  std::array<std::span<const std::byte>, N> pieces;  // the first is the head
  std::size_t num_pieces = 1;
  std::vector<runtime::Future<Value>> deps;

  template <class P, class A>
  void put(const A& arg) {
    if constexpr (ReferenceTo<A>::kIs && !std::is_same_v<A, Stored<P>>) {
      head.head(Major::kTag, kReferenceTag);
      head.head(Major::kUnsigned, deps.size());
      deps.push_back(ReferenceTo<A>::future(arg));
    } else if constexpr (kIsBytes<P>) {
      head.simple(kNull);
      pieces[num_pieces++] = bytes_of(arg);
    } else if constexpr (std::is_same_v<A, Stored<P>>) {
      write_item(head, arg);
    } else if constexpr (std::is_same_v<Stored<P>, std::string> && std::is_convertible_v<const A&, std::string_view>) {
      head.text(arg);
    } else {
      const std::remove_cvref_t<P> converted = arg;  // converted as in an ordinary call
      write_item<Stored<P>>(head, converted);
    }
  }
  std::span<const std::span<const std::byte>> finish() {
    pieces[0] = head.written();
    return std::span(pieces.data(), num_pieces);
  }
};

// Adds the references that these writers recorded to the value.
void refer(Value& value, std::span<const CborWriter* const> heads);

// The arguments of a method with parameters P. `memory`: for large values; null: a new memory.
template <class... P, class... A>
Result<Encoded> encode_call(ValueMemory* memory, List<P...>, const A&... args) {
  return caught(invalid_argument, "the values cannot be encoded", [&]() -> Result<Encoded> {
    Encoder<1 + (std::size_t{kIsBytes<P>} + ... + 0)> to;
    to.head.head(Major::kArray, sizeof...(P));
    (to.template put<P>(args), ...);
    SHOAL_TRY(Value value, Value::from_pieces(to.finish(), Value::Kind::kResult, memory));
    if (to.head.refs() != nullptr) refer(value, std::array{&std::as_const(to.head)});
    return Encoded{std::move(value), std::move(to.deps), to.head.refs() != nullptr && to.head.refs()->to_values};
  });
}
// As encode_call(), for arguments without references.
template <class... P, class... A>
Result<Value> encode(ValueMemory* memory, List<P...> params, const A&... args) {
  static_assert(((!ReferenceTo<A>::kIs || std::is_same_v<A, Stored<P>>) && ...), "a future is there already: it is an argument of calls");
  SHOAL_TRY(Encoded out, encode_call(memory, params, args...));
  return std::move(out.value);
}
template <class... P, class... A>
Result<Value> encode(List<P...> params, const A&... args) {
  return encode(nullptr, params, args...);
}

// Several results, each of which can be passed on alone.
template <class... T>
Result<Value> encode_many(ValueMemory* memory, const std::tuple<T...>& results) {
  return caught(invalid_argument, "the values cannot be encoded", [&]() -> Result<Value> {
    std::tuple<Encoder<1 + std::size_t{kIsBytes<T>}>...> encoders;
    std::vector<Value::Pieces> pieces;
    const auto put = [&]<class P>(auto& to, const P& result) {
      to.head.head(Major::kArray, 1);
      to.template put<P>(result);
      const auto of_it = to.finish();
      pieces.emplace_back(of_it.begin(), of_it.end());
    };
    std::apply([&](auto&... to) { std::apply([&](const auto&... result) { (put(to, result), ...); }, results); }, encoders);
    SHOAL_TRY(Value value, Value::make_many(pieces, memory));
    std::apply([&](const auto&... to) { refer(value, std::array{&to.head...}); }, encoders);
    return value;
  });
}
// The result of a method that returns R, or a Result of it.
template <class R, class A>
Result<Value> encode_result(ValueMemory* memory, const A& result) {
  if constexpr (kNumResults<R> > 0) {
    return encode_many(memory, result);
  } else {
    return encode(memory, List<R>(), result);
  }
}

// An error as the value of an answer. It is the remote function's own error. An error without a value means that the worker failed.
Result<Value> raised_value(const Error& error);

}  // namespace shoal::actors::api
