// Converts structs that list their fields (actors/protocol/cluster/fields.h) to Cap'n Proto and back, and so every control message.
//
// fill(builder, value) writes a value, read_into(reader, value) reads it. There is one pair for each type of a field; a new type gets a new
// pair here. read_into expects a new value to read into. It throws kj::Exception for hostile input, so it is called within
// runtime::read only.
//
// Used by code that defines messages (messages.cc, inspection.cc, scheduler/state/tables/records.cc).
#pragma once

#include <kj/debug.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/protocol/cluster/fields.h"
#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/cluster/specs.h"
#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/message.h"
#include "actors/protocol/wire/object_key.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/error_message.h"

namespace shoal::actors {

template <class Reader>
struct Reading;
template <class Builder>
struct Writing;

using Texts = std::vector<std::string>;
using Pair = std::pair<std::string, std::string>;
using Pairs = std::map<std::string, std::string>;
using Bundles = std::tuple<std::vector<Resources>&, std::vector<NodeId>&>;  // each with its node
using ConstBundles = std::tuple<const std::vector<Resources>&, const std::vector<NodeId>&>;

template <class List>
void check_size(const List& list, std::size_t limit, const char* what) {
  KJ_REQUIRE(list.size() <= limit, "a list is too long", what);
}

// ---- reading: numbers, ids, enums, texts ---------------------------------------------------------------------------------------------

template <class T>
  requires std::is_arithmetic_v<T>
void read_into(T from, T& to) {
  to = from;
}
template <class Tag>
void read_into(std::uint64_t from, Id<Tag>& to) {
  to.value = from;
}
template <class Enum>
  requires std::is_enum_v<Enum>
void read_into(std::uint16_t raw, Enum& to, std::uint16_t count, const char* what) {
  KJ_REQUIRE(raw < count, "an unknown value of an enum", what);
  to = static_cast<Enum>(raw);
}
inline void read_into(capnp::Text::Reader from, std::string& to) { to.assign(from.cStr(), from.size()); }
void read_into(capnp::Text::Reader from, std::string& to, RowText how);
void read_into(capnp::Text::Reader from, std::string& to, OfProcess);
void read_into(capnp::Data::Reader from, std::string& to);
void read_into(capnp::Data::Reader from, std::string& to, ClientBytes);

// ---- reading: parts of several messages ----------------------------------------------------------------------------------------------

inline void read_into(runtime::wire::ErrorMessage::Reader from, Error& to) { to = runtime::read_error(from); }
inline void read_into(runtime::wire::ErrorMessage::Reader from, std::optional<Error>& to) { to = runtime::read_error(from); }
void read_into(capnp::List<wire::Amount>::Reader from, Resources& to);
void read_into(capnp::List<wire::Amount>::Reader from, Resources& to, Sums);
inline void read_into(wire::Bundle::Reader from, Resources& to) { read_into(from.getResources(), to); }
void read_into(capnp::List<wire::Bundle>::Reader from, Bundles& to, std::size_t limit, const char* what);
void read_into(wire::Pair::Reader from, Pair& to, OfProcess how);
void read_into(capnp::List<wire::Pair>::Reader from, Pairs& to);
inline void read_into(capnp::List<wire::ObjectKey>::Reader from, std::vector<ObjectKey>& to) { to = read_keys(from); }

// ---- reading: structs and lists ------------------------------------------------------------------------------------------------------

template <class Reader, ListsFields T>
void read_into(Reader from, T& to) {
  T::fields(to, Reading<Reader>{from});
}
template <class List, class T, class... How>
void read_into(List from, std::vector<T>& to, std::size_t limit, const char* what, How... how) {
  check_size(from, limit, what);
  for (const auto one : from) read_into(one, to.emplace_back(), how...);
}
template <class List, class T>
void read_into(List from, std::vector<T>& to) {
  read_into(from, to, kMaxList, "rows");
}
inline void read_into(capnp::List<capnp::Text>::Reader from, Texts& to) { read_into(from, to, kMaxList, "texts"); }
inline void read_into(capnp::List<capnp::Text>::Reader from, Texts& to, OfProcess how) { read_into(from, to, kMaxList, "texts", how); }

// ---- writing -------------------------------------------------------------------------------------------------------------------------

// A text or bytes, as the setter takes them.
struct PlainText {
  const std::string& text;
  operator capnp::Text::Reader() const { return {text.c_str(), text.size()}; }
  operator capnp::Data::Reader() const { return {reinterpret_cast<const capnp::byte*>(text.data()), text.size()}; }
};
template <class T>
auto plain(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return number(value);
  } else if constexpr (kIsId<T>) {
    return value.value;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return PlainText{value};
  } else {
    return value;
  }
}

unsigned length(const auto& list) { return static_cast<unsigned>(list.size()); }
inline unsigned length(const Resources& resources) { return length(resources.all()); }
inline unsigned length(const ConstBundles& bundles) { return length(std::get<0>(bundles)); }

inline void fill(runtime::wire::ErrorMessage::Builder to, const Error& error) { runtime::fill_error(to, error); }
inline void fill(runtime::wire::ErrorMessage::Builder to, const std::optional<Error>& error) { runtime::fill_error(to, *error); }
void fill(capnp::List<wire::Amount>::Builder to, const Resources& resources);
void fill(capnp::List<wire::Bundle>::Builder to, const std::vector<Resources>& bundles);
void fill(capnp::List<wire::Bundle>::Builder to, const ConstBundles& bundles);
void fill(wire::Pair::Builder to, const Pair& pair);
void fill(capnp::List<wire::Pair>::Builder to, const Pairs& pairs);

template <class Builder, ListsFields T>
void fill(Builder to, const T& value) {
  T::fields(value, Writing<Builder>{to});
}
template <class List, class T>
void fill(List to, const std::vector<T>& values) {
  for (unsigned i = 0; i < values.size(); ++i) {
    if constexpr (kIsPlain<T>) {
      to.set(i, plain(values[i]));
    } else if constexpr (kIsStruct<T>) {
      fill(to[i], values[i]);
    } else {
      fill(to.init(i, length(values[i])), values[i]);
    }
  }
}

// ---- the argument `io` of a list of fields -------------------------------------------------------------------------------------------

template <class Reader>
struct Reading {
  static constexpr bool kReads = true;
  Reader m;
  template <class From, class T, class... How>
  static void read(From from, T&& to, How... how) {
    read_into(from, to, how...);
  }
  static bool present(bool has, const auto&) { return has; }
  void check(const auto& value) const { check_message(value, m); }
};
template <class Builder>
struct Writing {
  static constexpr bool kReads = false;
  Builder m;
  static auto scalar(const auto& value) { return plain(value); }
  static unsigned count(const auto& value) { return length(value); }
  static void put(auto to, const auto& value) { fill(to, value); }
  static bool present(bool, const std::optional<Error>& error) { return error.has_value(); }
  static bool present(bool, const auto& list) { return !list.empty(); }
  static void check(const auto&) {}
};

// Conditions on several values of a message, at the end of its list of fields: messages.cc has them.
void check_message(const Submission& v, wire::Submission::Reader m);

template <class T, class Schema>
Result<T> read_message(const Bytes& bytes) {
  return runtime::read<Schema>(bytes, [](typename Schema::Reader m) {
    T out;
    read_into(m, out);
    return out;
  });
}

// Defines to_bytes and from_bytes of a message, which travels as wire::Schema. The build writes these lines (message.h).
#define SHOAL_CONVERSION(T, Schema)                                                          \
  template <>                                                                                \
  Bytes to_bytes(const T& message) {                                                         \
    return runtime::write<wire::Schema>([&](wire::Schema::Builder m) { fill(m, message); }); \
  }                                                                                          \
  template <>                                                                                \
  Result<T> from_bytes(const Bytes& bytes) {                                                 \
    return read_message<T, wire::Schema>(bytes);                                             \
  }                                                                                          \
  static_assert(true, "for a semicolon")

}  // namespace shoal::actors
