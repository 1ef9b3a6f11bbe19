#include "tests/simulation/sim_worker.h"

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/method.h"
#include "actors/protocol/wire/node_messages.h"
#include "runtime/core/check.h"

namespace shoal::simulation {

using namespace std::chrono_literals;
using actors::Method;
using actors::number;
using runtime::Message;

namespace {

constexpr auto kConnectTimeout = 5s, kControlTimeout = 30s;  // the defaults of actors::SessionOptions

std::string variable(const scheduler::Launcher::Env& env, const std::string& name) {
  for (const auto& [n, value] : env) {
    if (n == name) return value;
  }
  return {};
}

}  // namespace

actors::Value text_value(const std::string& text) { return actors::Value::make({std::as_bytes(std::span(text))}).value(); }

std::string text_of(const actors::Value& value) {
  const auto head = value.pieces().at(0);
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

SimWorker::SimWorker(runtime::SimWorld& world, const std::string& host, pid_t pid, const scheduler::Launcher::Env& env, Exit exit)
    : world_(world),
      host_(host),
      clock_(world.clock_of(host)),
      pid_(pid),
      exit_(std::move(exit)),
      node_(variable(env, "SHOAL_NODE")),
      worker_{parse_hex(variable(env, "SHOAL_WORKER_ID")).value_or(0)},
      job_{parse_hex(variable(env, "SHOAL_JOB_ID")).value_or(0)},
      network_(world.fabric().attach(host, pid)),
      actors_(std::make_unique<actors::ActorHost>(clock_, *network_)) {
  // The callback may use `this`: the network, which calls it, is destroyed with this worker.
  actors_->set_default(std::shared_ptr<actors::Hosted>(std::shared_ptr<void>(), this));
  network_->connect(runtime::parse_endpoint(node_).value(), runtime::Role::kClient, kConnectTimeout,
                    [this](Result<std::unique_ptr<runtime::Connection>> r) {
                      if (!r) return fail_start(r.error());
                      link_ = std::make_unique<runtime::Peer>(*std::move(r), clock_, *this);
                      attach();
                    });
}

SimWorker::~SimWorker() = default;

void SimWorker::fail_start(const Error&) { exit_({.code = 1}); }

void SimWorker::attach() {
  link_->call(number(Method::kAttach), {to_bytes(actors::Attach{worker_, job_, "worker"}), {}, {}}, kControlTimeout,
              [this](Result<Message> r) {
                if (!r) return fail_start(r.error());
                const auto attached = actors::from_bytes<actors::Attached>(r->body);
                SHOAL_CHECK(attached && attached->worker == worker_, "a worker is taken for another process");
                ready();
              });
}

void SimWorker::ready() {
  if (const auto listening = actors_->listen(runtime::Endpoint::tcp(host_, 0)); !listening) return fail_start(listening.error());
  actors::WorkerUpdate update;
  update.worker = worker_;
  update.state = actors::WorkerState::kRunning;
  update.pid = pid_;
  update.endpoint = actors_->endpoint();
  link_->call(number(Method::kWorkerReady), {to_bytes(update), {}, {}}, kControlTimeout, [this](Result<Message> r) {
    if (!r) fail_start(r.error());
  });
}

void SimWorker::on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a worker takes no requests of its node"));
}

void SimWorker::on_notice(runtime::Peer&, runtime::Request) {}

// Only drops the connection: a worker ends with its node by a signal (PR_SET_PDEATHSIG), not by the loss of this connection.
void SimWorker::on_closed(runtime::Peer&, const Error&) { const auto owned = std::move(link_); }

// The arguments of a call are "NUMBER TEXT". NUMBER counts the caller's calls on this actor, so that a call out of order or delivered twice
// fails the check. "NUMBERr TEXT" is a call that may be sent again: a NUMBER that has arrived here before may come again, even after later
// ones.
void SimWorker::on_call(actors::Incoming incoming) {
  ++num_calls_;
  const std::string text = text_of(incoming.call.args);
  const std::uint64_t n = std::stoull(text);
  const bool repeats = text[text.find_first_not_of("0123456789")] == 'r';
  auto& seen = seen_[incoming.call.caller];
  const bool next = seen.empty() || n > *seen.rbegin();
  SHOAL_CHECK(next || (repeats && seen.contains(n)), "an actor sees a caller's calls out of order or twice");
  seen.insert(n);
  const std::string& method = incoming.call.method;
  if (method == "echo") return incoming.reply(text_value(text.substr(text.find(' ') + 1)));
  if (method == "host") return incoming.reply(text_value(host_));
  if (method == "exit") return exit_({.code = 3});
  if (method == "slow") {
    const auto delay = runtime::between(world_.random(), 0s, 3s);
    const std::uint64_t key = num_calls_;
    auto answer = clock_.after(delay, [this, key] {
      auto node = slow_.extract(key);
      node.mapped().first.reply(text_value("late"));
    });
    slow_.emplace(key, std::pair(std::move(incoming), std::move(answer)));
    return;
  }
  incoming.responder.fail(unimplemented("no method " + method));
}

}  // namespace shoal::simulation
