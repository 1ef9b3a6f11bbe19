// Actors on the caller's side: one (Handle), or a gang of one class (Mesh).
//
// Both are values. An actor ends after its open calls when no process, message or object has a handle: its destructor runs, and its
// process ends. Detached actors stay. Handles from get_actor(), get_if_exists or handle(id) do not keep an actor, nor do its own handles
// of itself; those that it passes on do. A kill, the end of the driver's job, or that of the process that made the actor ends it
// earlier. A retired worker of functions leaves its actors to the process that keeps it. Actors whose handles form a cycle live until such
// an earlier end.
//
// Calls of one process on one actor run in the order in which they were made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/codec/encode.h"
#include "actors/api/codec/method_table.h"
#include "actors/api/context/futures.h"
#include "actors/api/context/stream.h"
#include "actors/session/references/handles.h"
#include "runtime/core/check.h"

namespace shoal::actors::api {

// The call that constructs an actor. Its arguments are the class's full name, rank, world_size, number of threads, and the restart flag.
// The constructor's arguments are its first reference, which the members of a mesh share.
inline constexpr std::string_view kConstruct = "__init__";
using ConstructHead = List<std::string_view, std::int32_t, std::int32_t, std::int32_t, bool>;

// A handle inside a value: its actor, and its share (Handles::Share) if it counts. An empty handle has id 0.
struct HandleItem {
  ActorId actor;
  Handles::Share share;
};
void write_handle(CborWriter& to, Hub* hub, std::string_view full_class_name, const HandleItem& handle);
bool read_handle(CborReader& from, std::string_view full_class_name, std::string_view class_name, HandleItem& out);

// Queues the call. `args` are the encoded arguments, or the encoding error.
Reply call(Hub& hub, const Callee& callee, std::string_view method, Result<Encoded> args);

// True if an argument of type A may be given for a parameter of type P. A future stands for its value, or for itself if the parameter is a
// future.
template <class P, class A>
constexpr bool is_argument_for() {
  if constexpr (ReferenceTo<A>::kIs && !std::is_same_v<A, Stored<P>>) {
    return std::is_same_v<typename ReferenceTo<A>::Value, Stored<P>> ||
           (kIsBytes<P> && std::is_same_v<typename ReferenceTo<A>::Value, Bytes>);
  } else {
    return kIsBytes<P> || std::is_convertible_v<const A&, std::remove_cvref_t<P>>;
  }
}

template <class... P, class... A>
void check_arguments(List<P...>, List<A...>) {
  static_assert(sizeof...(P) == sizeof...(A), "a call passes as many arguments as the method has parameters");
  if constexpr (sizeof...(P) == sizeof...(A)) {
    static_assert((is_argument_for<P, A>() && ...), "an argument does not convert to its parameter, or is a future of another type");
  }
}

template <class Pointer>
using ReturnOf = std::remove_cvref_t<typename Signature<Pointer>::Return>;

// The encoded arguments for parameters P. A call of a generator also passes its stream's number.
template <class R, class... P, class... A>
Result<Encoded> encode_for(ValueMemory* memory, List<P...> params, Streams::Id stream, const A&... args) {
  check_arguments(params, List<A...>());
  if constexpr (kYields<R>) {
    return encode_call(memory, List<P..., Streams::Id>(), args..., stream);
  } else {
    return encode_call(memory, params, args...);
  }
}

// The caller's result of a call: a future or a stream.
template <class R>
Answer<R> answer_of(Hub& hub, Reply reply, Streams::Id stream) {
  if constexpr (kYields<R>) {
    return Answer<R>(hub, std::move(reply), stream);
  } else {
    return Answer<R>(std::move(reply));
  }
}

// The method's name and the encoded arguments, for a call on an actor of class T. The name is "" if T does not list the method.
template <class T, class Pointer, class... A>
std::pair<std::string_view, Result<Encoded>> prepare(Hub& hub, Pointer method, Streams::Id stream, const A&... args) {
  static_assert(std::is_member_function_pointer_v<Pointer>, "call takes a method: handle.call(&Counter::add, ..)");
  static_assert(Table<T>::template lists<Pointer>(), "the actor's `methods` list no method of this signature");
  using Params = typename Signature<Pointer>::Params;
  const auto name = Table<T>::name_of(method);
  if (name.empty()) {
    return {name, fail(invalid_argument("this method of " + std::string(class_name<T>()) + " is not listed in its `methods`"))};
  }
  return {name, encode_for<ReturnOf<Pointer>>(&hub.memory(), Params(), stream, args...)};
}

}  // namespace shoal::actors::api

namespace shoal {

template <class T>
class Handle {
 public:
  Handle() = default;  // empty: only to be assigned to
  // `share`: null for a handle that does not count.
  Handle(actors::api::Hub& hub, actors::api::Callee callee, actors::api::Reply constructed, actors::Handles::Share share = {})
      : hub_(&hub), callee_(callee), constructed_(std::move(constructed)), share_(std::move(share)) {}

  // For an actor that the session already knows.
  static Handle known(actors::api::Hub& hub, ActorId id, actors::Handles::Share share) {
    const actors::api::Callee callee{id, actors::api::class_name<T>()};
    const auto there = actors::api::ready_reply(hub, callee, actors::api::kConstruct, actors::api::encode(actors::api::List<>()));
    return Handle(hub, callee, there, std::move(share));
  }
  // For an actor that another process spawned, or that was found by name. The handle does not count. Returns NotFound if the head does not
  // have the actor.
  static Result<Handle> from_id(actors::api::Hub& hub, ActorId id) {
    SHOAL_OK(hub.know(id, actors::api::class_name<T>()));
    return known(hub, id, {});
  }

  ActorId id() const { return callee_.actor; }
  // Its rank in its mesh; -1 for a single actor.
  std::int32_t rank() const { return callee_.rank; }

  // Never blocks; errors are in the future. The call runs even if the future is dropped. A method that returns a Generator gives a Stream
  // (stream.h).
  template <class Pointer, class... A>
  actors::api::Answer<actors::api::ReturnOf<Pointer>> call(Pointer method, const A&... args) const {
    static_assert(actors::api::Actor<T>, "an actor lists its methods: static constexpr auto methods = shoal::methods(..)");
    using R = actors::api::ReturnOf<Pointer>;
    actors::Streams::Id stream = 0;
    if constexpr (actors::api::kYields<R>) stream = actors::api::new_stream(*hub_);
    auto [name, encoded] = actors::api::prepare<T>(*hub_, method, stream, args...);
    return actors::api::answer_of<R>(*hub_, actors::api::call(*hub_, callee_, name, std::move(encoded)), stream);
  }

  const actors::api::Callee& callee() const { return callee_; }
  void write(actors::api::CborWriter& to) const {
    actors::api::write_handle(to, hub_, actors::api::full_class_name<T>(), {callee_.actor, share_});
  }
  // A future that is ready once the actor's constructor has returned. Calls need not wait for this.
  Future<void> constructed() const { return Future<void>(constructed_); }

 private:
  actors::api::Hub* hub_ = nullptr;
  actors::api::Callee callee_;
  actors::api::Reply constructed_;
  actors::Handles::Share share_;  // null: this handle does not count
};

// Handles can be arguments and results, and parts of either.
template <class T>
struct Codec<Handle<T>> {
  static void write(actors::api::CborWriter& to, const Handle<T>& handle) { handle.write(to); }
  static bool read(actors::api::CborReader& from, Handle<T>& out) {
    actors::api::HandleItem item;
    if (!actors::api::read_handle(from, actors::api::full_class_name<T>(), actors::api::class_name<T>(), item)) return false;
    out = item.actor ? Handle<T>::known(*from.hub, item.actor, std::move(item.share)) : Handle<T>();
    return true;
  }
};

template <class T>
class Mesh {
 public:
  Mesh() = default;
  Mesh(actors::api::Hub& hub, std::vector<Handle<T>> handles) : hub_(&hub), handles_(std::move(handles)) {}

  std::size_t size() const { return handles_.size(); }
  const Handle<T>& operator[](std::size_t rank) const {
    SHOAL_CHECK(rank < handles_.size(), "the rank is outside of the mesh");
    return handles_[rank];
  }
  auto begin() const { return handles_.begin(); }
  auto end() const { return handles_.end(); }
  // The actors of ranks `first` to `first` + `count` - 1. In errors they keep their ranks.
  Mesh slice(std::size_t first, std::size_t count) const {
    SHOAL_CHECK(first <= size() && count <= size() - first, "the slice is outside of the mesh");
    const auto from = handles_.begin() + static_cast<std::ptrdiff_t>(first);
    return Mesh(*hub_, {from, from + static_cast<std::ptrdiff_t>(count)});
  }

  // Makes the same call on each actor. The arguments are encoded once.
  template <class Pointer, class... A>
  Futures<actors::api::Returned<actors::api::ReturnOf<Pointer>>> call_all(Pointer method, const A&... args) const {
    using R = actors::api::ReturnOf<Pointer>;
    static_assert(!actors::api::kYields<R>, "a generator has a stream for each of the mesh: call it on each, mesh[rank].call(..)");
    const auto [name, encoded] = actors::api::prepare<T>(*hub_, method, {}, args...);
    std::vector<Future<actors::api::Returned<R>>> out;
    for (const auto& h : handles_) out.emplace_back(actors::api::call(*hub_, h.callee(), name, encoded));
    return Futures<actors::api::Returned<R>>(std::move(out));
  }

 private:
  actors::api::Hub* hub_ = nullptr;
  std::vector<Handle<T>> handles_;
};

}  // namespace shoal
