// Fixture of the tests of calls: a simulated process that hosts actors, and a process that calls them.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/session/calls/actor_calls.h"
#include "actors/session/references/actor_host.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors {

using namespace std::chrono_literals;

inline Value text_value(const std::string& text) { return Value::make({std::as_bytes(std::span(text))}).value(); }

inline std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return code_name(f.peek().error().code()) + ("/" + f.peek().error().reason());
  const auto head = f.peek()->pieces().at(0);
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

// An actor that answers the method "boom" with an error, "hold" never, and other methods at once with their names.
class Echo final : public Hosted {
 public:
  void on_call(Incoming incoming) override {
    received.push_back(incoming.call.method);
    if (incoming.call.method == "hold") return held.push_back(std::move(incoming));
    if (incoming.call.method == "boom") return incoming.responder.fail(invalid_argument("boom").with_reason("Boom"));
    if (incoming.call.method == "arguments") return incoming.reply(text_value(joined(incoming.call.deps)));
    if (incoming.call.method == "how many") return incoming.reply(text_value(std::to_string(incoming.call.deps.size())));
    incoming.reply(text_value(incoming.call.method));
  }
  static std::string joined(const std::vector<Value>& values) {
    std::string out;
    for (const Value& v : values) out += std::string(reinterpret_cast<const char*>(v.head().data()), v.head().size()) + " ";
    return out;
  }
  void on_kill(const Error&) override {}
  void on_cancel(CallKey call, CancelHow how) override { cancelled.emplace_back(call, how); }

  std::vector<std::pair<CallKey, CancelHow>> cancelled;
  std::vector<std::string> received;
  std::vector<Incoming> held;
};

// A process that hosts an actor, and the process that calls it.
class ActorCallsTest : public testing::Test {
 protected:
  static constexpr ActorId kActor{7}, kOther{8};
  static constexpr WorkerId kWorker{70};

  explicit ActorCallsTest(std::size_t socket_bytes = kSocketBytes, bool near = false, runtime::Duration retry_delay = {})
      : calls_options_(options(retry_delay)),
        world_(world_options(socket_bytes)),
        caller_network_(world_.fabric().attach(near ? "host" : "caller", 2)),
        at_(near ? runtime::Endpoint::unix_at("actors") : runtime::Endpoint::tcp("host", 1000)) {
    start_host();
    for (const ActorId id : {kActor, kOther}) calls_.expect(id, "Echo");
  }

  void start_host() {
    host_.emplace(world_.clock(), *host_network_);
    ASSERT_TRUE(host_->listen(at_));
    for (const ActorId id : {kActor, kOther}) host_->add(id, "Echo", actor_);
  }
  ActorRow row(ActorId id, ActorState state) const {
    ActorRow out;
    out.id = id;
    out.state = state;
    out.worker = kWorker;
    if (state == ActorState::kAlive) out.endpoint = at_.to_string();
    return out;
  }
  void now_alive() {
    for (const ActorId id : {kActor, kOther}) calls_.updated(row(id, ActorState::kAlive));
  }
  ValueFuture call(ActorId id, const std::string& method, std::vector<ValueFuture> deps = {}, const std::string& argument = {}) {
    Call c;
    c.actor = id;
    c.method = method;
    c.args = text_value(argument);
    return calls_.call(std::move(c), std::move(deps));
  }
  bool run_until_ready(const ValueFuture& f, runtime::Duration limit = 30s) {
    return world_.run_until([&] { return f.ready(); }, limit);
  }

  static constexpr std::size_t kSocketBytes = 1 << 20;
  static runtime::SimWorld::Options world_options(std::size_t socket_bytes) {
    runtime::SimWorld::Options out;
    out.network.max_queued_bytes = socket_bytes;
    return out;
  }
  static ActorCalls::Options options(runtime::Duration retry_delay) {
    ActorCalls::Options out;
    out.retry_delay = retry_delay;
    out.max_queued_bytes = 8 * kSocketBytes;
    out.high_water_bytes = kSocketBytes / 4;
    return out;
  }

  const ActorCalls::Options calls_options_;
  runtime::SimWorld world_;
  std::unique_ptr<runtime::SimNetwork> host_network_ = world_.fabric().attach("host", 1);
  std::unique_ptr<runtime::SimNetwork> caller_network_;
  const runtime::Endpoint at_;
  std::shared_ptr<Echo> actor_ = std::make_shared<Echo>();
  std::optional<ActorHost> host_;
  ActorCalls calls_{world_.clock(), *caller_network_, calls_options_};
};

}  // namespace shoal::actors
