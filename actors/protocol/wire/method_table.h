// A process's handlers, by method. The table decodes a request, calls its handler and encodes the reply, as methods.h declares them.
//
//   MethodTable<Client> methods;
//   methods.on<Method::kWatchJob>([this](Client& client, JobRef& job) -> Result<JobRow> { ... });
//
// Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/protocol/wire/methods.h"
#include "runtime/core/check.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// How a content that methods.h declares is read from a message and written to one; handlers see it as a value of type Type.
template <class T>
struct Format {
  using Type = T;
  static Result<T> read(runtime::Message& message) { return from_bytes<T>(message.body); }
  static runtime::Message write(const T& value) { return {to_bytes(value), {}, {}}; }
};
template <>
struct Format<Empty> {
  using Type = Empty;
  static Result<Empty> read(runtime::Message&) { return Empty{}; }
  static runtime::Message write(Empty) { return {}; }
};
template <class T>
struct Format<std::optional<T>> {
  using Type = std::optional<T>;
  static Result<Type> read(runtime::Message& message) {
    if (message.body.empty()) return Type();
    SHOAL_TRY(T value, from_bytes<T>(message.body));
    return Type(std::move(value));
  }
  static runtime::Message write(const Type& value) { return value ? Format<T>::write(*value) : runtime::Message(); }
};
template <class T>
struct Format<InPayload<T>> {
  using Type = T;
  static Result<T> read(runtime::Message& message) { return from_bytes<T>(message.payload); }
  static runtime::Message write(const T& value) { return {{}, to_bytes(value), {}}; }
};
template <>
struct Format<InPayload<std::string>> {
  using Type = std::string;
  static runtime::Message write(const std::string& text) { return {{}, Bytes::copy_of(text), {}}; }
};
template <class T>
struct Format<WithExtras<T>> {
  using Type = WithExtras<T>;
  static Result<Type> read(runtime::Message& message) {
    SHOAL_TRY(T value, from_bytes<T>(message.body));
    return Type{std::move(value), std::move(message.payload), std::move(message.fds)};
  }
  static runtime::Message write(Type value) { return {to_bytes(value.body), std::move(value.payload), std::move(value.fds)}; }
};

// `Caller`: the type by which the process describes the sender of a request to its handlers.
template <class Caller>
class MethodTable {
 public:
  // The answer to a request; nullopt if the handler took the responder and answers later.
  using Answer = std::optional<Result<runtime::Message>>;

  // Sets the handler of a request. handler(Caller&, Request&) returns Reply or Result<Reply>; for an empty reply, void or Result<void>. A
  // handler with a third parameter, Responder&, returns Result<void>. Unless that is an error, it has moved the responder away and answers
  // by it.
  template <Method kMethod, class Handler>
  void on(Handler handler) {
    using Request = Format<typename Declared<kMethod>::Request>;
    using Reply = Format<typename Declared<kMethod>::Reply>;
    const bool is_new =
        requests_
            .try_emplace(
                kMethod,
                Entry{Declared<kMethod>::kEffect,
                      [handler = std::move(handler)](Caller& caller, runtime::Message& message, runtime::Responder& responder) -> Answer {
                        auto request = Request::read(message);
                        if (!request) return fail(request.error());
                        if constexpr (std::is_invocable_v<Handler, Caller&, typename Request::Type&, runtime::Responder&>) {
                          const Result<void> taken = handler(caller, *request, responder);
                          return taken ? Answer() : fail(taken.error());
                        } else {
                          return encoded<Reply>(handler, caller, *request);
                        }
                      }})
            .second;
    SHOAL_CHECK(is_new, "a method has two handlers");
  }

  // Sets the handler of a notice: handler(Caller&, Request&).
  template <Method kMethod, class Handler>
  void on_notice(Handler handler) {
    using Request = Format<typename Declared<kMethod>::Request>;
    const auto take = [handler = std::move(handler)](Caller& caller, runtime::Message& message) -> Result<void> {
      SHOAL_TRY(auto notice, Request::read(message));
      handler(caller, notice);
      return {};
    };
    SHOAL_CHECK(notices_.try_emplace(kMethod, take).second, "a notice has two handlers");
  }

  bool contains(Method method) const { return requests_.contains(method); }
  Effect effect(Method method) const {
    const auto it = requests_.find(method);
    return it == requests_.end() ? Effect::kNone : it->second.effect;
  }

  // Answers a request. The table contains its method.
  Answer answer(Method method, Caller& caller, runtime::Message& message, runtime::Responder& responder) const {
    return requests_.at(method).answer(caller, message, responder);
  }
  bool contains_notice(Method method) const { return notices_.contains(method); }
  // Handles a notice, whose method the table contains. Fails if the notice cannot be decoded.
  Result<void> take(Method method, Caller& caller, runtime::Message& notice) const { return notices_.at(method)(caller, notice); }

 private:
  struct Entry {
    Effect effect = Effect::kNone;
    std::function<Answer(Caller&, runtime::Message&, runtime::Responder&)> answer;
  };

  template <class Reply, class Handler, class Request>
  static Result<runtime::Message> encoded(const Handler& handler, Caller& caller, Request& request) {
    using Returned = std::invoke_result_t<const Handler&, Caller&, Request&>;
    if constexpr (std::is_void_v<Returned>) {
      static_assert(std::is_same_v<typename Reply::Type, Empty>, "this method has a reply");
      handler(caller, request);
      return runtime::Message();
    } else if constexpr (std::is_same_v<Returned, Result<void>>) {
      static_assert(std::is_same_v<typename Reply::Type, Empty>, "this method has a reply");
      SHOAL_OK(handler(caller, request));
      return runtime::Message();
    } else {
      Result<typename Reply::Type> reply = handler(caller, request);
      if (!reply) return fail(reply.error());
      return Reply::write(*std::move(reply));
    }
  }

  std::map<Method, Entry> requests_;
  std::map<Method, std::function<Result<void>(Caller&, runtime::Message&)>> notices_;
};

}  // namespace shoal::actors
