#include "actors/session/calls/unsent_calls.h"

#include <algorithm>
#include <utility>

namespace shoal::actors {

bool UnsentCall::waits_for_arguments() const {
  return !std::all_of(deps.begin(), deps.end(), [](const ValueFuture& d) { return d.ready(); });
}

bool UnsentCall::is_too_much(bool local) const {
  if (deps.empty()) return !goes_with_call(call, 0, local);
  if (call.deps.size() + deps.size() > Call::kMaxDeps) return true;
  const auto is_small = [&](const ValueFuture& d) {
    const auto& value = d.peek();
    return value && Portion::is_small(*value, local);
  };
  if (call.deps.empty() && call.args.refs().empty() && std::all_of(deps.begin(), deps.end(), is_small)) return false;
  Portion portion(call, local);
  const auto fits = [&](const Value& v) { return portion.add(v); };
  return !std::all_of(call.deps.begin(), call.deps.end(), fits) ||
         !std::all_of(deps.begin(), deps.end(), [&](const ValueFuture& d) { return !d.peek() || fits(*d.peek()); });
}

const Result<Value>* UnsentCall::resolve() {
  call.deps.reserve(call.deps.size() + deps.size());
  for (const ValueFuture& d : deps) {
    const auto& value = d.peek();
    if (!value || value->raised()) return &value;
    call.deps.push_back(*value);
  }
  deps.clear();
  return nullptr;
}

void UnsentCalls::add(UnsentCall&& call) {
  const auto is_again = [](const Call& c) { return c.task >> 56 != 0; };
  bytes_ += call.call.args.inline_bytes();
  if (!is_again(call.call)) return calls_.push_back(std::move(call)), void();
  const auto at = std::find_if(calls_.begin(), calls_.end(), [&](const UnsentCall& c) { return c.before == 0 && !is_again(c.call); });
  calls_.insert(at, std::move(call));
}

void UnsentCalls::requeue(UnsentCall&& call) {
  bytes_ += call.call.args.inline_bytes();
  calls_.push_front(std::move(call));
}

UnsentCall UnsentCalls::take(std::size_t at) {
  UnsentCall out = std::move(calls_[at]);
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(at));
  bytes_ -= out.call.args.inline_bytes();
  return out;
}

UnsentCalls::Calls UnsentCalls::take_all() {
  bytes_ = 0;
  return std::exchange(calls_, {});
}

std::size_t UnsentCalls::find(const ValueFuture& answer) const {
  const auto it = std::find_if(calls_.begin(), calls_.end(), [&](const UnsentCall& c) { return c.promise.future() == answer; });
  return static_cast<std::size_t>(it - calls_.begin());
}

std::size_t UnsentCalls::next(std::size_t at) {
  for (; at < calls_.size(); ++at) {
    UnsentCall& c = calls_[at];
    // The call that ends the actor goes only when it is the first: all earlier calls are sent then.
    if (at > 0 && c.call.method == kRelease) break;
    if ((!lost_wait_ || c.tries == 0) && c.all_ready()) return at;
    if (!any_order_) break;
  }
  return calls_.size();
}

void UnsentCalls::move_to_front(std::size_t at) {
  if (at == 0) return;
  UnsentCall c = std::move(calls_[at]);
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(at));
  calls_.push_front(std::move(c));
}

}  // namespace shoal::actors
