// Arguments and results, to Values and back.
//
// The value head is a CBOR array with one item per parameter (items.h). A parameter of type Bytes or std::span<const std::byte> has a null
// item there. Its bytes are a buffer after the head, in the same order. An argument that is a future is a reference: its item is the index
// of a value that the call carries besides its arguments. Futures for parameters of type Future, and inside other values, stay references
// (future.h). A result is an array of one item (void: of none). A tuple (with no tuple in it) is several values (Value::make_many).
//
// Received bytes are checked against the parameters' types. Bytes that do not fit, or nest deeper than kMaxDepth, give InvalidArgument with
// the argument's position and the method's name.
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

#include "actors/api/caught.h"
#include "actors/api/items.h"
#include "actors/api/methods.h"
#include "actors/value/value.h"
#include "runtime/core/bytes.h"
#include "runtime/loop/future.h"

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

// The number of results of a method that returns several, else 0. A tuple with a tuple in it is a single value: a part alone would not
// show that it is several values again.
template <class T>
inline constexpr std::size_t kNumResults = 0;
template <class... T>
  requires(!kIsTuple<std::remove_cvref_t<T>> && ...)
inline constexpr std::size_t kNumResults<std::tuple<T...>> = sizeof...(T);

// True for an argument whose value may not be here: Future<T> (future.h).
template <class A>
struct ReferenceTo {
  static constexpr bool kIs = false;
};

struct Encoded {
  Value value;
  std::vector<runtime::Future<Value>> deps;  // the references among the arguments, by number
  bool has_futures = false;                  // some other arguments contain futures
};

// The origin of the values that are decoded, for texts of errors and for items that need a Context.
struct Decoding {
  std::string_view method = {};         // the arguments' method; empty for a result
  const std::vector<Value>* deps = {};  // values of the references
  Hub* hub = {};                        // this process's Hub, which handles need
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
    SHOAL_TRY(Value value, Value::of(to.finish(), Value::Kind::kResult, memory));
    if (to.head.refs() != nullptr) refer(value, std::array{&std::as_const(to.head)});
    return Encoded{std::move(value), std::move(to.deps), to.head.refs() != nullptr && to.head.refs()->to_values};
  });
}
// The same for a value without references.
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

// An error as the value of an answer. It is the remote function's own error, whereas an error without a value means that its worker failed.
Result<Value> raised_value(const Error& error);
// The error in such a value; Unimplemented if it is an exception of another language.
Error raised_error(const Value& value);

template <class T>
Result<T> decode_result(const Value& value, Hub* hub = nullptr);

class Decoder {
 public:
  Decoder(const Value& value, const Decoding& how, bool any_buffers) : reader_(value.head()), how_(how) {
    reader_.hub = how.hub;
    if (any_buffers || value.num_pieces() > 1) pieces_ = value.pieces();
  }

  bool begin(std::size_t count) {
    std::uint64_t n = 0;
    return reader_.begin(Major::kArray, n, "an array of values") && reader_.enter() &&
           (n == count || reader_.fail(std::to_string(count) + " values were expected, there are " + std::to_string(n)));
  }
  // Decodes one argument. A span points into the value.
  template <class P>
  bool take(Stored<P>& out) {
    ++index_;
    if (reader_.take_tag(kReferenceTag)) return take_reference<P>(out);
    if constexpr (kIsBytes<P>) {
      if (!reader_.take_if(kNull)) return reader_.fail("bytes were expected");
      if (next_piece_ >= pieces_.size()) return reader_.fail("its bytes are missing");
      const auto piece = pieces_[next_piece_++];
      if constexpr (std::is_same_v<Stored<P>, Bytes>) {
        out = Bytes::copy_of(piece.data(), piece.size());
      } else {
        out = piece;
      }
      return true;
    } else {
      return read_item(reader_, out);
    }
  }
  bool end() {
    if (!reader_.at_end()) return reader_.fail("bytes follow the last value");
    return next_piece_ >= pieces_.size() || pieces_.empty() || reader_.fail("there are more bytes than were expected");
  }
  Error why() const;

 private:
  template <class P>
  bool take_reference(Stored<P>& out) {
    std::uint64_t n = 0;
    if (!read_integer(reader_, n)) return false;
    if (how_.deps == nullptr || n >= how_.deps->size()) return reader_.fail("a reference has no value among the arguments");
    const Value& dep = (*how_.deps)[n];
    if constexpr (kIsBytes<P> && !std::is_same_v<Stored<P>, Bytes>) {
      if (dep.num_pieces() != 2) return reader_.fail("bytes were expected");
      out = dep.pieces()[1];
    } else {
      auto value = decode_result<Stored<P>>(dep, how_.hub);
      if (!value) return reader_.fail(value.error().message());
      out = *std::move(value);
    }
    return true;
  }

  CborReader reader_;
  const Decoding& how_;
  Value::Pieces pieces_;
  std::size_t next_piece_ = 1, index_ = 0;
};

// Decodes values that encode() made.
template <class... P>
Result<std::tuple<Stored<P>...>> decode(List<P...>, const Value& value, const Decoding& how = {}) {
  using Out = Result<std::tuple<Stored<P>...>>;
  return caught(invalid_argument, "the values cannot be decoded", [&]() -> Out {
    Decoder from(value, how, (kIsBytes<P> || ...));
    Out out;
    const bool good = from.begin(sizeof...(P)) && std::apply([&](auto&... v) { return (from.take<P>(v) && ...); }, *out) && from.end();
    if (!good) return fail(from.why());
    return out;
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

// A method's result for its caller.
template <class T>
Result<T> decode_result(const Value& value, Hub* hub) {
  const Decoding how{.hub = hub};
  if constexpr (kNumResults<T> > 0) {
    SHOAL_TRY(const auto parts, value.split(kNumResults<T>));
    T out;
    Result<void> good;
    auto part = parts.begin();
    const auto take = [&]<class One>(One& one) {
      auto decoded = decode_result<One>(*part++, hub);
      if (!decoded) return good = fail(std::move(decoded).error()), false;
      one = *std::move(decoded);
      return true;
    };
    std::apply([&](auto&... one) { return (take(one) && ...); }, out);
    if (!good) return fail(good.error());
    return out;
  } else if constexpr (std::is_void_v<T>) {
    SHOAL_OK(decode(List<>(), value, how));
    return {};
  } else {
    SHOAL_TRY(auto result, decode(List<T>(), value, how));
    return std::get<0>(std::move(result));
  }
}

}  // namespace shoal::actors::api
