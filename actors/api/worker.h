// The worker's side: constructs this process's actor and runs calls on it. Calls run one after the other on the main thread, which runs the
// loop between them. With max_concurrency, it passes them to other threads.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/api/context.h"

namespace shoal::actors::api {

// The arguments of one call, and the process that runs it.
struct Arguments {
  const Value& value;
  const std::vector<Value>* deps = nullptr;
  Hub* hub = nullptr;
  const Incoming* incoming = nullptr;  // the call itself, for items sent before its answer
};

// How an actor's calls run.
struct Concurrency {
  bool on_loop = false;                   // it has coroutines
  std::vector<std::int32_t> groups = {};  // sizes of its concurrency groups
};

// An actor of any class, as a worker uses it.
class Instance {
 public:
  virtual ~Instance() = default;
  // Returns the method's result. Returns NotFound for a method that is not listed, InvalidArgument for wrong arguments,
  // Internal/MethodThrew for an exception.
  virtual Result<Value> call(std::string_view method, const Arguments& args) = 0;
  // The same for calls on a loop. The arguments must live until it ends; exceptions of a coroutine pass through.
  virtual Task<Value> start(std::string_view method, Arguments args) { return now(*this, method, args); }
  virtual Concurrency concurrency() const { return {}; }
  // The method's concurrency group, from 1 on; 0: none.
  virtual std::size_t group_of(std::string_view) const { return 0; }

 protected:
  static Task<Value> now(Instance& self, std::string_view method, Arguments args) { co_return self.call(method, args); }
};

using Factory = std::function<Result<std::unique_ptr<Instance>>(const Place& place, const Arguments& args)>;
using Classes = std::map<std::string, Factory, std::less<>>;  // by full name

// Takes calls until the process is killed, and ends the process if the actor cannot be constructed. Returns only when the node refuses
// the worker. `makes_itself`: the actor is restarted or detached, and made from its creation spec at the head.
int serve(Context& context, const Classes& classes, bool makes_itself);

// Makes this process end with its keeper, and lend its CPUs while a function waits.
void runs_functions_for(Context& context, WorkerId creator, NodeId node);

// The error for an exception of user code.
inline Error method_threw(std::string what) { return internal(std::move(what)).with_reason("MethodThrew"); }

// Runs user code, and encodes its result.
template <class Run>
Result<Value> answer(ValueMemory* memory, Run&& run) {
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
      return encode_result<typename std::remove_cvref_t<R>::value_type>(memory, *result);
    }
  } else {
    R&& result = run();
    return encode_result<std::remove_cvref_t<R>>(memory, result);
  }
}

// Runs the generator f(arguments..); the last argument is its stream's number. Returns the number of items.
template <class... P, class F>
Result<Value> run_generator(std::string_view name, List<P...>, const Arguments& args, F&& f) {
  if (args.hub == nullptr || args.incoming == nullptr) return fail(invalid_argument("a generator method needs a Context"));
  SHOAL_TRY(auto stored, decode(List<P..., Streams::Id>(), args.value, {name, args.deps, args.hub}));
  const auto run = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return publish(*args.hub, *args.incoming, std::get<sizeof...(P)>(stored), f(pass<P>(std::get<I>(stored))...), method_threw);
  };
  SHOAL_TRY(const std::uint64_t count, caught(method_threw, "the method threw", [&] { return run(std::index_sequence_for<P...>()); }));
  return encode(List<std::uint64_t>(), count);
}

// Runs f(arguments..) with arguments of types P; f returns R.
template <class R, class... P, class F>
Result<Value> run_call(std::string_view name, List<P...> params, const Arguments& args, F&& f) {
  if constexpr (kYields<R>) {
    return run_generator(name, params, args, f);
  } else {
    SHOAL_TRY(auto stored, decode(params, args.value, {name, args.deps, args.hub}));
    return caught(method_threw, "the method threw", [&]() -> Result<Value> {
      ValueMemory* const memory = args.hub != nullptr ? &args.hub->session.objects().memory() : nullptr;
      return std::apply([&](auto&... a) { return answer(memory, [&]() -> decltype(auto) { return f(pass<P>(a)...); }); }, stored);
    });
  }
}

// GCC 12 treats a coroutine template's frame as visible to other files, and warns about its members that are not.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
// co_await f(arguments..); the arguments live as long as the coroutine.
template <class... P, class F>
Task<Value> run_coroutine(std::string_view name, List<P...> params, Arguments args, F f) {
  auto stored = decode(params, args.value, {name, args.deps, args.hub});
  if (!stored) co_return fail(std::move(stored).error());
  auto running = std::apply([&f](auto&... a) { return f(pass<P>(a)...); }, *stored);
  auto result = co_await std::move(running);
  ValueMemory* const memory = args.hub != nullptr ? &args.hub->session.objects().memory() : nullptr;
  co_return caught(invalid_argument, "the values cannot be encoded",
                   [memory, &result] { return answer(memory, [&result] { return std::move(result); }); });
}
#pragma GCC diagnostic pop

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

// The functions that a pool calls by name. An error that one returns is an answer's value, since an error of the call means that its
// worker died.
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
