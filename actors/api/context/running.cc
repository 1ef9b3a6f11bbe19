#include "actors/api/context/running.h"

#include <algorithm>
#include <string>

#include "actors/api/context/context.h"
#include "actors/session/session.h"
#include "runtime/core/check.h"

namespace shoal {

bool is_cancelled() {
  const auto& call = actors::api::this_threads_call;
  if (call.context == nullptr) return false;
  const auto& cancelled = call.context->hub().cancelled;
  return cancelled.any() && call.context->session().loop().own([&] { return cancelled.has(call.key); });
}

Result<void> check_cancelled() {
  if (!is_cancelled()) return {};
  return fail(actors::call_cancelled(std::string(actors::api::this_threads_call.name)));
}

Context& context() {
  SHOAL_CHECK(actors::api::this_threads_call.context != nullptr, "shoal::context() is called outside of a method or a remote function");
  return *actors::api::this_threads_call.context;
}

}  // namespace shoal

namespace shoal::actors::api {

void CancelledCalls::note(CallKey call) {
  if (calls_.size() == kMax) calls_.pop_front();
  calls_.push_back(call);
  any_ = true;
}

bool CancelledCalls::has(CallKey call) const { return std::find(calls_.begin(), calls_.end(), call) != calls_.end(); }

void CancelledCalls::forget(CallKey call) {
  std::erase(calls_, call);
  any_ = !calls_.empty();
}

}  // namespace shoal::actors::api
