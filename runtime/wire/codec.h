// Encoding and decoding of Cap'n Proto messages, and the only place where a kj::Exception becomes an Error.
//
// Checks before reading: whole words, at most 16 segments that fit the frame, a traversal limit in proportion to the size, nesting up
// to 16. Accessors still throw on hostile pointers, so everything must be read inside read<>(), never after it.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <kj/string.h>

#include <string>
#include <type_traits>

#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

// Fields of a message are set from std::string by this conversion. KJ's own ends the text at its first zero byte.
template <>
inline kj::StringPtr::StringPtr(const std::string& text) : StringPtr(text.c_str(), text.size()) {}

namespace shoal::runtime {

Bytes encode(capnp::MessageBuilder& message);

// Builds a message: write<Schema>([&](Schema::Builder m) { m.setX(...); }).
template <class Schema, class Fill>
Bytes write(Fill&& fill) {
  capnp::word scratch[64] = {};  // most messages are small
  capnp::MallocMessageBuilder message(kj::arrayPtr(scratch, 64));
  fill(message.initRoot<Schema>());
  return encode(message);
}

namespace detail {
Result<kj::ArrayPtr<const capnp::word>> checked_words(const Bytes& body);
capnp::ReaderOptions reader_options(std::size_t words);
Error from_kj(const kj::Exception& e);
template <class T>
struct IsResult : std::false_type {};
template <class T>
struct IsResult<Result<T>> : std::true_type {};
}  // namespace detail

// Reads a message: read<Schema>(bytes, [&](Schema::Reader m) { return ...; }). The function returns plain values that do not point into the
// message, or a Result of them. Returns InvalidArgument if the bytes are not a message.
template <class Schema, class Use>
auto read(const Bytes& body, Use&& use) {
  using Raw = std::invoke_result_t<Use, typename Schema::Reader>;
  using Out = std::conditional_t<detail::IsResult<Raw>::value, Raw, Result<Raw>>;
  auto words = detail::checked_words(body);
  if (!words) return Out(fail(words.error()));
  try {
    capnp::FlatArrayMessageReader reader(*words, detail::reader_options(words->size()));
    if constexpr (std::is_void_v<Raw>) {
      use(reader.getRoot<Schema>());
      return Out();
    } else {
      return Out(use(reader.getRoot<Schema>()));
    }
  } catch (const kj::Exception& e) {
    return Out(fail(detail::from_kj(e)));
  }
}

inline std::string text(capnp::Text::Reader t) { return {t.cStr(), t.size()}; }

// Converts an Error to a frame's body and back. Decoding never fails: malformed bytes become an Internal error.
Bytes encode_error(const Error& error);
Error decode_error(const Bytes& body);

}  // namespace shoal::runtime
