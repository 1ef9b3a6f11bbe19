#include "scheduler/head/head.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shoal::scheduler {

using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Peer;

namespace {
constexpr std::chrono::seconds kLate(1);  // a tick that comes later than this is logged
}  // namespace

Head::Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options)
    : clock_(clock),
      network_(network),
      store_(store),
      log_(std::move(log)),
      options_(std::move(options)),
      state_(options_.state, random),
      fence_(log_, options_.leads, options_.on_fenced),
      packages_(clock, options_.packages, [this](const std::set<std::string>& names) { return state_.mentioned(names); }),
      watchers_([this](std::uint64_t client, Method method, Bytes bytes) {
        const auto sent = clients_.at(client).peer->notify(number(method), {std::move(bytes), {}, {}}, runtime::Flush::kLater);
        if (!sent && sent.error().reason() != "Disconnected") {
          log_->error("client={} notice={} not sent: {}", client, number(method), sent.error().message());
        }
      }),
      node_watch_(network, state_, {options_.listen, options_.probe_timeout, options_.watch_process},
                  {[this](NodeId node) { return links_.contains(node); },
                   [this](NodeId node) { happened(NodeLost{node, unavailable("its node's process ended").with_reason("NodeLost")}); }}),
      commits_(clock, state_, store, fence_, log_, options_.commits, [this](const Action& action) { perform(action); }),
      links_(log_, {options_.call_timeout, options_.start_timeout}) {
  answer_cluster();
  answer_jobs();
  answer_actors();
  take_notices();
}

Result<void> Head::start() {
  SHOAL_OK(restore());
  for (const auto& endpoint : options_.listen) {
    SHOAL_TRY(const auto bound, clients_.listen(endpoint, network_, clock_, *this));
    log_->info("listening endpoint={}", bound.to_string());
  }
  tick();
  return {};
}

Result<void> Head::restore() {
  SHOAL_TRY(const auto records, store_.load());
  now();  // after the rows are read, because nodes have to join again within a time from now on
  if (records.empty()) return {};
  state_.restore(records);
  log_->info("restored rows={} nodes={}", records.size(), state_.alive_nodes().size());
  for (const auto& row : state_.set_aside()) log_->warn("row set aside: {}", to_string(row));
  if (!state_.set_aside().empty() && options_.on_set_aside) options_.on_set_aside(state_.set_aside());
  return {};
}

void Head::set_heads(std::vector<std::string> endpoints) {
  heads_ = std::move(endpoints);
  links_.notify_all(Method::kHeads, to_bytes(actors::Heads{heads_, false}));
}

void Head::tick() {
  if (fence_.fenced()) return;
  happened(Tick{});
  node_watch_.check();
  commits_.retry();
  check_ended();
  ticking_ = clock_.after(options_.tick, [this, due = clock_.now() + options_.tick] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("the event loop was blocked for {} ms", late.count());
    tick();
  });
}

void Head::on_request(Peer& peer, runtime::Request request, runtime::Responder responder) {
  if (fence_.fenced()) return responder.fail(unavailable("this head no longer leads").with_reason("Disconnected"));
  now();
  const auto method = static_cast<Method>(request.method);
  auto& sender = clients_.at(peer);
  const auto effect = methods_.effect(method);
  const auto answered = [&]() -> Methods::Answer {
    if (!methods_.contains(method)) return fail(unimplemented("the head does not implement method " + std::to_string(number(method))));
    if (const auto writable = commits_.writable(); !writable && effect == actors::Effect::kChange && !repeats(method, request.message)) {
      return fail(writable.error());
    }
    if (method == Method::kRegisterNode && peer.identity().role != runtime::Role::kNode) {
      return fail(invalid_argument("only a node can register as a node"));
    }
    return methods_.answer(method, sender, request.message, responder);
  };
  auto answer = answered();
  commits_.settle();  // before the answer, so that watchers are notified first
  if (answer && method == Method::kHeartbeat) {
    responder.answer(*std::move(answer));
  } else if (answer) {
    commits_.answer(effect, std::move(responder), *std::move(answer));
  }
  check_ended();
}

void Head::on_notice(Peer& peer, runtime::Request notice) {
  if (fence_.fenced()) return;
  now();
  const auto method = static_cast<Method>(notice.method);
  const Result<void> taken = methods_.contains_notice(method)
                                 ? methods_.take(method, clients_.at(peer), notice.message)
                                 : Result<void>(fail(unimplemented("the head does not implement this notice")));
  if (!taken) log_->warn("notice={} refused: {}", notice.method, taken.error().message());
  commits_.settle(method == Method::kRemoveGroup ? Commits::Awaited::kNo : Commits::Awaited::kYes);
}

void Head::on_closed(Peer& peer, const Error& why) {
  auto& client = clients_.at(peer);
  const auto owned = std::move(client.peer);  // the connection, which has called this function, lives until it returns
  if (links_.closed(client.node, peer)) {
    state_.step(NodeAway{client.node});
    node_watch_.missing(client.node);
    // A broken connection does not prove the node's death. Heartbeats, its pid or its host decide about that.
    log_->warn("node={} disconnected: {}", to_string(client.node), why.message());
  }
  packages_.closed(peer.number());
  forget(peer.number());
  node_watch_.check();
}

// The cluster has ended once each living node was sent the notice. A node without a connection delays this until it joins again or is found
// dead.
void Head::check_ended() {
  if (!ending_ || ending_->over) return;
  if (!std::exchange(ending_->announced, true) && options_.on_ending) options_.on_ending();
  const auto alive = state_.alive_nodes();
  if (!std::ranges::all_of(alive, [this](NodeId node) { return ending_->notified.contains(node); })) return;
  ending_->over = true;
  if (options_.on_ended) options_.on_ended();
}

// Removes a client and closes its connection if that is open.
void Head::forget(std::uint64_t client) {
  watchers_.closed(client);
  clients_.close(client);
}

}  // namespace shoal::scheduler
