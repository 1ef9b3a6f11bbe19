// How headers declare messages and methods. Below a struct that lists its fields (actors/protocol/cluster/fields.h) stands
//
//   SHOAL_MESSAGE(StopJob, StopJob);                          // the struct, and its struct in the schema
//   SHOAL_METHOD(kStopJob, 11, ChangingSignature<StopJob>);   // a name and a number in the enum Method, request and reply
//
// The build collects these lines, one each, from all headers of this folder. From the messages it makes the conversions (convert.h) and
// their tests, from the methods the enum in method.h. The numbers are part of the protocol: a new method gets a new one, and none is
// used again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/fields.h"
#include "actors/protocol/wire/method.h"
#include "runtime/core/bytes.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::actors {

// to_bytes never fails. from_bytes<T> returns InvalidArgument for hostile input: unknown enums, lists beyond their bound, bad pointers.
template <ListsFields T>
Bytes to_bytes(const T& message) = delete;  // the struct has no SHOAL_MESSAGE
template <ListsFields T>
Result<T> from_bytes(const Bytes& bytes) = delete;

#define SHOAL_MESSAGE(T, Schema)    \
  template <>                       \
  Bytes to_bytes(const T& message); \
  template <>                       \
  Result<T> from_bytes(const Bytes& bytes)

// A request or reply without content. A receiver does not read the body.
struct Empty {};
// A T that travels in the message's payload, because a body is too small for it.
template <class T>
struct InPayload {};
// A T that travels in the message's body, with a payload or descriptors beside it.
template <class T>
struct WithExtras {
  T body;
  Bytes payload;
  std::vector<Fd> fds;
};
// A std::optional<T> without a value travels as an empty body.

// The effect of a request on the state that the head stores.
enum class Effect {
  kNone,    // no change, or one that need not be stored, or that its sender repeats to the next head
  kChange,  // answered once the change is stored; refused while the head cannot store its state
  kFact,    // answered once it is stored, and never refused, since it reports what has happened
};

template <class RequestType, class ReplyType = Empty, Effect kItsEffect = Effect::kNone>
struct Signature {
  using Request = RequestType;
  using Reply = ReplyType;
  static constexpr Effect kEffect = kItsEffect;
};
template <class RequestType, class ReplyType = Empty>
using ChangingSignature = Signature<RequestType, ReplyType, Effect::kChange>;

// The declaration of a method: Declared<kMethod>::Request and ::Reply. A notice has no reply.
template <Method kMethod>
struct Declared;

#define SHOAL_METHOD(name, number, ...) \
  template <>                           \
  struct Declared<Method::name> : __VA_ARGS__ {}

}  // namespace shoal::actors
