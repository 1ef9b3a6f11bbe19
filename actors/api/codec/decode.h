// Decodes Values to arguments and results (codec.h).
#pragma once

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
#include "actors/api/codec/read_items.h"
#include "actors/value/value.h"

namespace shoal::actors::api {

// The origin of the values that are decoded, for texts of errors and for items that need a Context.
struct Decoding {
  std::string_view method = {};         // the arguments' method; empty for a result
  const std::vector<Value>* deps = {};  // values of the references among the arguments
  Hub* hub = {};                        // this process's Hub, which handles need
};

// The error in a value that user code raised (raised_value); Unimplemented if the value is an exception of another language.
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
