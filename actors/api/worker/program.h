// The actors and functions that shoal::main lists, as a worker constructs and calls them.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "actors/api/codec/method_table.h"
#include "actors/api/context/context.h"
#include "actors/api/worker/instance.h"
#include "actors/api/worker/run_call.h"

namespace shoal::actors::api {

// Makes this process end with its keeper, and lend its CPUs while a function waits.
void runs_functions_for(Context& context, WorkerId creator, NodeId node);

template <class T>
class TypedInstance final : public Instance {
 public:
  static Result<std::unique_ptr<Instance>> make(const Place& place, const Arguments& args) {
    return construct(typename Table<T>::Construction::Params(), place, args);
  }

  Result<Value> call(std::string_view method, const Arguments& args) override {
    static constexpr auto kNames = Table<T>::names();
    Result<Value> out;
    const bool found = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return ((kNames[I] == method && (out = invoke<Table<T>::template pointer<I>()>(kNames[I], args), true)) || ...);
    }(std::make_index_sequence<Table<T>::kNumMethods>());
    if (!found) return fail(not_found("the actor has no method " + std::string(method)));
    return out;
  }
  Task<Value> start(std::string_view method, Arguments args) override {
    std::optional<Task<Value>> out;
    if constexpr (Table<T>::kOnLoop) {
      static constexpr auto kNames = Table<T>::names();
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        (void)((kNames[I] == method && (begin<Table<T>::template pointer<I>()>(out, kNames[I], args), true)) || ...);
      }(std::make_index_sequence<Table<T>::kNumMethods>());
    }
    return out ? *std::move(out) : now(*this, method, args);
  }
  Concurrency concurrency() const override {
    static constexpr auto kGrouped = Table<T>::grouped();
    return {Table<T>::kOnLoop, {kGrouped.sizes.begin(), kGrouped.sizes.end()}};
  }
  std::size_t group_of(std::string_view method) const override {
    static constexpr auto kNames = Table<T>::names();
    static constexpr auto kGrouped = Table<T>::grouped();
    const auto at = static_cast<std::size_t>(std::find(kNames.begin(), kNames.end(), method) - kNames.begin());
    return at < kNames.size() ? kGrouped.group[at] : 0;
  }

 private:
  template <class... A>
  explicit TypedInstance(A&&... args) : actor_(std::forward<A>(args)...) {}

  template <class... P>
  static Result<std::unique_ptr<Instance>> construct(List<P...> params, const Place& place, const Arguments& args) {
    SHOAL_TRY(auto stored, decode(params, args.value, {"the constructor", args.deps, args.hub}));
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

  template <auto kPointer>
  Result<Value> invoke(std::string_view method, const Arguments& args) {
    using R = ReturnOf<decltype(kPointer)>;
    if constexpr (kIsTask<R>) {
      return fail(unimplemented(std::string(method) + " is a coroutine and must be called on a loop"));
    } else {
      return run_call<R>(method, typename Signature<decltype(kPointer)>::Params(), args,
                         [&](auto&&... a) -> decltype(auto) { return (actor_.*kPointer)(std::forward<decltype(a)>(a)...); });
    }
  }
  // Starts a method that is a coroutine. Leaves `out` empty for another method.
  template <auto kPointer>
  void begin(std::optional<Task<Value>>& out, std::string_view method, const Arguments& args) {
    if constexpr (kIsTask<ReturnOf<decltype(kPointer)>>) {
      out.emplace(run_coroutine(method, typename Signature<decltype(kPointer)>::Params(), args,
                                [this](auto&&... a) { return (actor_.*kPointer)(std::forward<decltype(a)>(a)...); }));
    }
  }

  T actor_;
};

// The functions that a pool calls by name. An error that a function returns becomes the answer's value, since an error of the
// call itself means that the worker died.
template <auto... functions>
class FunctionTable final : public Instance {
  static_assert((!kIsTask<std::remove_cvref_t<typename FunctionSignature<decltype(functions)>::Return>> && ...),
                "a remote function is no coroutine: it has a process to itself; methods of actors may be some");

 public:
  // The instance of a worker of functions. Its first argument is the keeper, with its node.
  static Result<std::unique_ptr<Instance>> make(const Place& place, const Arguments& args) {
    SHOAL_TRY(const auto creator, decode(List<WorkerId, NodeId>(), args.value, {"the constructor"}));
    if (place.context != nullptr) runs_functions_for(*place.context, std::get<0>(creator), std::get<1>(creator));
    return std::unique_ptr<Instance>(new FunctionTable);
  }

  Result<Value> call(std::string_view name, const Arguments& args) override {
    Result<Value> out;
    const bool found = ((function_name<functions>() == name &&
                         (out = run_call<std::remove_cvref_t<typename FunctionSignature<decltype(functions)>::Return>>(
                              name, typename FunctionSignature<decltype(functions)>::Params(), args, functions),
                          true)) ||
                        ...);
    if (!found) out = fail(not_found("this program does not register function " + std::string(name)));
    return out ? std::move(out) : raised_value(out.error());
  }
};

// The actors and functions listed in shoal::main.
struct Program {
  Classes classes;
  std::set<std::string, std::less<>> functions;
};

template <class T>
struct Listed {
  static_assert(Actor<T>, "shoal::main takes actors, which list their methods, and shoal::Functions<&f, ..>");
  static void add(Program& to) { to.classes.emplace(full_class_name<T>(), &TypedInstance<T>::make); }
};
template <auto... functions>
struct Listed<Functions<functions...>> {
  static void add(Program& to) {
    to.classes.emplace(kFunctionClass, &FunctionTable<functions...>::make);
    (to.functions.emplace(function_name<functions>()), ...);
  }
};

template <class... All>
Program program() {
  Program out;
  (Listed<All>::add(out), ...);
  return out;
}

}  // namespace shoal::actors::api
