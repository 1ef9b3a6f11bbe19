// Runs one call of user code: decodes its arguments, calls, and encodes its result or its error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "actors/api/codec/decode.h"
#include "actors/api/codec/encode.h"
#include "actors/api/worker/instance.h"

namespace shoal::actors::api {

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
      ValueMemory* const memory = args.hub != nullptr ? &args.hub->memory() : nullptr;
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
  ValueMemory* const memory = args.hub != nullptr ? &args.hub->memory() : nullptr;
  co_return caught(invalid_argument, "the values cannot be encoded",
                   [memory, &result] { return answer(memory, [&result] { return std::move(result); }); });
}
#pragma GCC diagnostic pop

}  // namespace shoal::actors::api
