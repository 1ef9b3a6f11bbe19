#include "actors/session/link/head_client.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::actors {

namespace {

constexpr runtime::Duration kPause = std::chrono::milliseconds(50);  // pause between two attempts

}  // namespace

Error head_gone() {
  return unavailable("the head is gone").with_reason("HeadGone").with_hint("running actors go on; `shoal status` shows when it is back");
}

HeadClient::HeadClient(SessionLoop& loop, runtime::Network& network, NodeClient& node, Options options)
    : loop_(loop), node_(node), options_(options), link_(loop, network, {Link::Lasts::kReconnects, options.connect_timeout, head_gone()}) {
  node.link().on_notice(Method::kHeads, [this](const runtime::Message& message) {
    const auto heads = from_bytes<Heads>(message.body);
    if (!heads) return;
    const auto endpoints = fmt::format("{}", fmt::join(heads->endpoints, ","));
    heads->moved ? link_.move_to(endpoints) : link_.set_endpoints(endpoints);
  });
}

std::string HeadClient::endpoints() {
  return loop_.own([this] { return link_.endpoints(); });
}

Result<void> HeadClient::reach_once() {
  const auto reached = link_.reach();
  if (reached) return {};
  return fail(reached.error().reason() == "Interrupted" ? reached.error() : head_gone());
}

Result<void> HeadClient::reach() {
  return retry([this] { return reach_once(); });
}

Result<void> HeadClient::retry(const std::function<Result<void>()>& attempt) {
  const auto end = loop_.deadline_in(options_.head_timeout);
  for (;;) {
    const auto result = attempt();
    if (result || result.error().reason() != "HeadGone" || loop_.clock()->now() >= end) return result;
    const auto waited = loop_.wait([this] { return !node_.link().connected(); }, loop_.deadline_in(kPause));
    if (waited) return result;  // a process without a node waits for no restart of the head
    if (waited.error().code() != Code::kDeadlineExceeded) return waited;
  }
}

Result<runtime::Message> HeadClient::request(Method method, const Bytes& bytes, const std::function<void()>& sending) {
  Result<runtime::Message> reply = fail(head_gone());
  SHOAL_OK(retry([&]() -> Result<void> {
    SHOAL_OK(reach_once());
    reply = link_.request(method, bytes.clone(), options_.control_timeout, sending);
    return reply || reply.error().reason() != "Disconnected" ? Result<void>() : fail(head_gone());
  }));
  return reply;
}

void HeadClient::hurry(runtime::Duration limit) { options_.head_timeout = std::min(options_.head_timeout, limit); }

}  // namespace shoal::actors
