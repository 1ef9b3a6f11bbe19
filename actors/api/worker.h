// The worker's half: constructs the one actor of this process and runs the calls on it, one after the other, on the main thread, which
// serves the loop between them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "actors/api/context.h"

namespace shoal::actors::api {

// An actor whose type is forgotten.
class Instance {
 public:
  virtual ~Instance() = default;
  // NotFound for a method that is not listed; InvalidArgument for arguments that are not the method's; what the method returns; Internal
  // with the reason MethodThrew for what it throws.
  virtual Result<Value> call(std::string_view method, const Value& args) = 0;
};

using Factory = std::function<Result<std::unique_ptr<Instance>>(const Place& place, const Value& args)>;
using Classes = std::map<std::string, Factory, std::less<>>;  // by full name

// Takes calls until the process is killed; ends it with code 1 when the actor cannot be constructed. Returns only when the node refuses it.
int serve(Context& context, const Classes& classes);

// What a user's code threw.
inline Error method_threw(std::string what) { return internal(std::move(what)).with_reason("MethodThrew"); }

template <class T>
class TypedInstance final : public Instance {
 public:
  static Result<std::unique_ptr<Instance>> make(const Place& place, const Value& args) {
    return construct(typename Table<T>::Construction::Params(), place, args);
  }

  Result<Value> call(std::string_view method, const Value& args) override {
    static constexpr auto kNames = Table<T>::names();
    Result<Value> out = fail(not_found("there is no method " + std::string(method)));
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (void)((kNames[I] == method && (out = invoke(Table<T>::template pointer<I>(), args), true)) || ...);
    }(std::make_index_sequence<Table<T>::kNumMethods>());
    return out;
  }

 private:
  template <class... A>
  explicit TypedInstance(A&&... args) : actor_(std::forward<A>(args)...) {}

  template <class... P>
  static Result<std::unique_ptr<Instance>> construct(List<P...> params, const Place& place, const Value& args) {
    SHOAL_TRY(auto stored, decode(params, args));
    return caught(method_threw, "the constructor threw", [&]() -> Result<std::unique_ptr<Instance>> {
      return std::apply(
          [&](auto&... a) {
            if constexpr (Table<T>::Construction::kTakesPlace) {
              return std::unique_ptr<Instance>(new TypedInstance(place, pass<P>(a)...));
            } else {
              return std::unique_ptr<Instance>(new TypedInstance(pass<P>(a)...));
            }
          },
          stored);
    });
  }

  template <class Pointer>
  Result<Value> invoke(Pointer method, const Value& args) {
    return invoke(method, args, typename Signature<Pointer>::Params());
  }
  template <class Pointer, class... P>
  Result<Value> invoke(Pointer method, const Value& args, List<P...> params) {
    SHOAL_TRY(auto stored, decode(params, args));
    return caught(method_threw, "the method threw", [&]() -> Result<Value> {
      return std::apply([&](auto&... a) { return answer([&]() -> decltype(auto) { return (actor_.*method)(pass<P>(a)...); }); }, stored);
    });
  }
  // What run() returns, encoded.
  template <class Run>
  static Result<Value> answer(Run&& run) {
    using R = std::invoke_result_t<Run>;
    if constexpr (std::is_void_v<R>) {
      run();
      return encode(List<>());
    } else if constexpr (kIsResult<std::remove_cvref_t<R>>) {
      const std::remove_cvref_t<R> result = run();
      if (!result) return fail(result.error());
      if constexpr (std::is_void_v<typename std::remove_cvref_t<R>::value_type>) {
        return encode(List<>());
      } else {
        return encode(List<typename std::remove_cvref_t<R>::value_type>(), *result);
      }
    } else {
      R&& result = run();
      return encode(List<std::remove_cvref_t<R>>(), result);
    }
  }

  T actor_;
};

template <Actor... Actors>
Classes classes() {
  Classes out;
  (out.emplace(full_class_name<Actors>(), &TypedInstance<Actors>::make), ...);
  return out;
}

}  // namespace shoal::actors::api
