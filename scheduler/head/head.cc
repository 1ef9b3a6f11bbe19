#include "scheduler/head/head.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shoal::scheduler {

using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr std::chrono::seconds kLate(1);         // delay of a tick that is logged
constexpr std::chrono::milliseconds kMoment(1);  // delay of commits that no caller awaits

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

}  // namespace

Head::Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options)
    : clock_(clock),
      random_(random),
      network_(network),
      store_(store),
      log_(std::move(log)),
      options_(std::move(options)),
      state_(options_.state, random),
      packages_(clock, options_.packages, [this](const std::string& name) { return state_.mentions(name); }),
      watchers_([this](std::uint64_t client, Method method, Bytes bytes) {
        clients_.at(client).peer->notify(number(method), body(std::move(bytes)), runtime::Flush::kLater);
      }),
      node_watch_(network, state_, {options_.listen, options_.look_timeout, options_.watch_process},
                  {[this](NodeId node) { return nodes_.contains(node); },
                   [this](NodeId node) {
                     if (fenced()) return;
                     now();
                     state_.step(NodeLost{node, unavailable("its node's process ended").with_reason("NodeLost")});
                     settle();
                   }}) {
  answer_cluster();
  answer_jobs();
  answer_actors();
  take_notices();
}

Head::~Head() {
  *alive_ = false;   // calls that fail as connections close are no news of a node
  clients_.clear();  // before answers that wait for a commit: clients see a broken connection, and ask the next head
}

Result<void> Head::start() {
  SHOAL_OK(restore());
  for (const auto& endpoint : options_.listen) {
    SHOAL_TRY(auto listener, network_.listen(endpoint, [this](std::unique_ptr<runtime::Connection> connection) {
      const std::uint64_t number = next_client_++;
      clients_[number].peer = std::make_unique<Peer>(std::move(connection), clock_, *this, number);
    }));
    log_->info("listening endpoint={}", listener->endpoint().to_string());
    listeners_.push_back(std::move(listener));
  }
  tick();
  return {};
}

Result<void> Head::restore() {
  now();
  SHOAL_TRY(const auto records, store_.load());
  if (records.empty()) return {};
  SHOAL_OK(state_.restore(records));
  log_->info("restored rows={} nodes={}", records.size(), state_.alive_nodes().size());
  return {};
}

std::vector<runtime::Endpoint> Head::endpoints() const {
  std::vector<runtime::Endpoint> out;
  for (const auto& l : listeners_) out.push_back(l->endpoint());
  return out;
}

void Head::set_heads(std::vector<std::string> endpoints) {
  heads_ = std::move(endpoints);
  for (const auto& [node, peer] : nodes_) peer->notify(number(Method::kHeads), body(to_bytes(actors::Heads{heads_, false})));
}

bool Head::fenced() {
  if (!fenced_ && options_.leads && !options_.leads()) {
    fenced_ = true;
    log_->warn("this head no longer leads");
    options_.on_fenced();
  }
  return fenced_;
}

void Head::tick() {
  if (fenced()) return;
  now();
  state_.step(Tick{});
  settle();
  node_watch_.look();
  if (unsaved_) flush();
  ticking_ = clock_.after(options_.tick, [this, due = clock_.now() + options_.tick] {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - due);
    if (late > kLate) log_->warn("the event loop was blocked for {} ms", late.count());
    tick();
  });
}

void Head::on_request(Peer& peer, runtime::Request request, runtime::Responder responder) {
  if (fenced()) return responder.fail(unavailable("this head no longer leads").with_reason("Disconnected"));
  now();
  const auto method = static_cast<Method>(request.method);
  auto& sender = client(peer);
  const auto effect = methods_.effect(method);
  const auto answered = [&]() -> Methods::Answer {
    if (!methods_.contains(method)) return fail(unimplemented("the head does not implement method " + std::to_string(number(method))));
    if (effect == actors::Effect::kChange) SHOAL_OK(writable());
    if (method == Method::kRegisterNode && peer.identity().role != runtime::Role::kNode) {
      return fail(invalid_argument("only a node can register as a node"));
    }
    return methods_.answer(method, sender, request.message, responder);
  };
  auto answer = answered();
  settle();  // watchers are notified before this answer
  // A read-only request is answered at once, unless it may have seen changes that are being stored.
  const bool waits =
      method != Method::kHeartbeat && (unsaved_ ? effect != actors::Effect::kNone && answer && *answer : busy_ || flush_soon_);
  if (answer && waits) {
    outbox_.push_back(Answer{std::move(responder), *std::move(answer)});
  } else if (answer) {
    responder.answer(*std::move(answer));
  }
  if (method == Method::kShutdown && options_.on_shutdown) options_.on_shutdown();
}

void Head::on_notice(Peer& peer, runtime::Request notice) {
  if (fenced()) return;
  now();
  const auto method = static_cast<Method>(notice.method);
  const Result<void> taken = methods_.contains_notice(method)
                                 ? methods_.take(method, client(peer), notice.message)
                                 : Result<void>(fail(unimplemented("the head does not implement this notice")));
  if (!taken) log_->warn("notice={} refused: {}", notice.method, taken.error().message());
  settle(method == Method::kRemoveGroup ? Awaited::kNo : Awaited::kYes);
}

void Head::on_closed(Peer& peer, const Error& why) {
  auto owned = std::move(client(peer).peer);  // destroyed on return
  const NodeId node = client(peer).node;
  if (const auto it = nodes_.find(node); it != nodes_.end() && it->second == &peer) {
    nodes_.erase(it);
    state_.step(NodeAway{node});
    node_watch_.missing(node);
    log_->warn("node={} disconnected: {}", to_string(node),
               why.message());  // heartbeats, pid or host decide whether it is gone
  }
  packages_.closed(peer.number());
  forget(peer.number());
  node_watch_.look();
}

// Removes a client and closes its connection if that is open.
void Head::forget(std::uint64_t client) {
  watchers_.closed(client);
  const auto owned = clients_.extract(client);  // its calls fail last, once nothing here refers to it
}

void Head::settle(Awaited awaited) {
  for (auto& action : state_.take_actions()) outbox_.emplace_back(std::move(action));
  const bool in_a_moment = awaited == Awaited::kNo;
  if (busy_ || unsaved_ || (outbox_.empty() && !state_.changed())) return;
  if (flush_soon_ && (in_a_moment || !flush_in_a_moment_)) return;
  flush_soon_ = true;  // deferred, so that other events share the commit
  flush_in_a_moment_ = in_a_moment;
  flushing_ = clock_.after(in_a_moment ? kMoment : runtime::Duration::zero(), [this] { flush(); });
}

void Head::flush() {
  flush_soon_ = flush_in_a_moment_ = false;
  if (busy_ || fenced()) return;
  auto records = state_.take_changes();
  if (records.empty() && outbox_.empty()) return;
  busy_ = true;
  for (auto& effect : std::exchange(outbox_, {})) committing_.push_back(std::move(effect));
  if (records.empty() && !unsaved_) return committed({}, {});
  auto kept = std::make_shared<std::vector<Record>>(std::move(records));
  store_.commit(*kept, [this, alive = alive_, kept](Result<void> r) {
    if (*alive) committed(std::move(*kept), std::move(r));
  });
}

void Head::committed(std::vector<Record> records, Result<void> result) {
  if (!result && result.error().reason() == "Fenced" && !std::exchange(fenced_, true)) {
    log_->warn("{}", result.error().message());
    if (options_.on_fenced) options_.on_fenced();
  }
  if (fenced()) return;  // the effects of this commit are dropped
  if (!result) {
    state_.change_again(records);
    busy_ = false;  // retried by each tick
    if (!unsaved_) {
      unsaved_since_ = clock_.now();
      log_->warn("state cannot be stored: {}", result.error().message());
    }
    unsaved_ = result.error();
    return;
  }
  if (std::exchange(unsaved_, std::nullopt)) log_->warn("state is stored again");
  for (auto& effect : std::exchange(committing_, {})) {
    if (auto* action = std::get_if<Action>(&effect)) {
      perform(std::move(*action));
    } else {
      auto& answer = std::get<Answer>(effect);
      answer.responder.answer(std::move(answer.result));
    }
  }
  busy_ = false;
  settle();  // effects may cause events
}

Result<void> Head::writable() const {
  if (!unsaved_ || clock_.now() - unsaved_since_ < options_.refuse_after) return {};
  return fail(Error(unsaved_->code() == Code::kResourceExhausted ? Code::kResourceExhausted : Code::kUnavailable,
                    "the head cannot store its state, and therefore makes no decisions: " + unsaved_->message())
                  .with_reason("NotDurable")
                  .with_hint(unsaved_->hint()));
}

}  // namespace shoal::scheduler
