// The list of a message's fields, which stands once, below the members of its struct:
//
//   struct StopJob {
//     JobId job;
//     bool force = false;
//     static void fields(auto& v, auto io) {
//       SHOAL_FIELD(v.job, Job);
//       SHOAL_FIELD(v.force, Force);
//     }
//   };
//
// SHOAL_FIELD(value, Name, how...) connects a value with the field of the schema whose accessors are getName and setName or initName. The
// same list writes a message and reads it (actors/protocol/wire/convert.h). `how` is for the reader, which refuses other values:
//
//   an enum   the number of its values, and a name for the error
//   a text    nothing, or RowText or OfProcess; for the type Data nothing, or ClientBytes
//   a list    nothing, or its greatest length, a name for the error, and `how` of its elements
//
// SHOAL_OPTIONAL_FIELD leaves the field out for an empty value. At the end of a list, io.check(v) names further conditions, which
// actors/protocol/wire/messages.cc has.
//
// This header knows nothing of Cap'n Proto, and neither do the structs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/id.h"

#define SHOAL_FIELD(value, Name, ...)                               \
  if constexpr (io.kReads) {                                        \
    io.read(io.m.get##Name(), value __VA_OPT__(, ) __VA_ARGS__);    \
  } else if constexpr (shoal::actors::kIsPlain<decltype(value)>) {  \
    io.m.set##Name(io.scalar(value));                               \
  } else if constexpr (shoal::actors::kIsStruct<decltype(value)>) { \
    io.put(io.m.init##Name(), value);                               \
  } else {                                                          \
    io.put(io.m.init##Name(io.count(value)), value);                \
  }                                                                 \
  static_assert(true, "for a semicolon")

#define SHOAL_OPTIONAL_FIELD(value, Name)    \
  if (io.present(io.m.has##Name(), value)) { \
    SHOAL_FIELD(value, Name);                \
  }                                          \
  static_assert(true, "for a semicolon")

namespace shoal::actors {

inline constexpr std::size_t kMaxList = 1 << 20;  // the greatest length of a list without a limit of its own

// A text that becomes part of a row, and therefore has at most RowBounds::kMaxText bytes. `what` names it in the error.
struct RowText {
  const char* what;
};
// A text for a process's arguments, variables or paths, which has no zero byte.
struct OfProcess {};
// Bytes that the head keeps for a client: at most GangSpec::kMaxCreationSpec.
struct ClientBytes {};
// Resources that are sums over nodes, which may exceed a node's bound.
struct Sums {};

// A struct that lists its fields.
template <class T>
concept ListsFields = requires(T& v) { T::fields(v, 0); };

template <class T>
inline constexpr bool kIsId = false;
template <class Tag>
inline constexpr bool kIsId<Id<Tag>> = true;

// Values that a setter takes, and values that are a struct in the message. Any other value is a list.
template <class T>
inline constexpr bool kIsPlain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> || kIsId<T>;
template <class T>
inline constexpr bool kIsStruct = ListsFields<T> || std::is_same_v<T, Error> || std::is_same_v<T, std::optional<Error>> ||
                                  std::is_same_v<T, std::pair<std::string, std::string>>;

}  // namespace shoal::actors
