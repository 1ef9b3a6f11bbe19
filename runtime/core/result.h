// Result<T>: a value or an Error. Errors are values everywhere; Shoal's own C++ code never throws.
#pragma once

#include <tl/expected.hpp>
#include <utility>

#include "runtime/core/error.h"

namespace shoal {

template <class T>
using Result = tl::expected<T, Error>;

inline auto fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace shoal

#define SHOAL_CONCAT_(a, b) a##b
#define SHOAL_CONCAT(a, b) SHOAL_CONCAT_(a, b)

// SHOAL_TRY(auto x, f()): declares x as the value of f(), or returns its error. It is a sequence of statements, so that in SHOAL_CO_TRY,
// its form for coroutines, the expression may contain a co_await.
#define SHOAL_TRY_(tmp, decl, ret, ...)                \
  auto tmp = __VA_ARGS__;                              \
  if (!tmp) ret ::shoal::fail(std::move(tmp).error()); \
  decl = std::move(*tmp)
#define SHOAL_TRY(decl, ...) SHOAL_TRY_(SHOAL_CONCAT(try_, __LINE__), decl, return, __VA_ARGS__)
#define SHOAL_CO_TRY(decl, ...) SHOAL_TRY_(SHOAL_CONCAT(try_, __LINE__), decl, co_return, __VA_ARGS__)

// The same macros for Result<void>.
#define SHOAL_OK_(tmp, ret, ...) \
  if (auto tmp = __VA_ARGS__; !tmp) ret ::shoal::fail(std::move(tmp).error())
#define SHOAL_OK(...) SHOAL_OK_(SHOAL_CONCAT(ok_, __LINE__), return, __VA_ARGS__)
#define SHOAL_CO_OK(...) SHOAL_OK_(SHOAL_CONCAT(ok_, __LINE__), co_return, __VA_ARGS__)
