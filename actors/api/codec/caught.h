// Exceptions from nlohmann::json and from a user's conversions, methods and coroutines are caught in this file. Shoal itself never
// throws.
#pragma once

#include <asio/error.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "runtime/core/result.h"

namespace shoal::actors::api {

// The Error that `make` creates from an exception's text. For Asio's cancellation of a coroutine it is Cancelled.
inline Error from_exception(const std::exception_ptr& thrown, Error (*make)(std::string), std::string_view doing) {
  const std::string what(doing);
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& e) {
    if (e.code() == asio::error::operation_aborted) return cancelled(what + " was cancelled");
    return make(what + ": " + e.what());
  } catch (const std::exception& e) {
    return make(what + ": " + e.what());
  } catch (...) {
    return make(what + ": something was thrown that is no std::exception");
  }
}

// The Result of f(), or its exception.
template <class F>
std::invoke_result_t<F> caught(Error (*make)(std::string), std::string_view doing, F&& f) {
  try {
    return f();
  } catch (...) {
    return fail(from_exception(std::current_exception(), make, doing));
  }
}

}  // namespace shoal::actors::api
