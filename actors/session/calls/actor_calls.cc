#include "actors/session/calls/actor_calls.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/wire/method.h"

namespace shoal::actors {

namespace {

Error lost(const std::string& class_name, ActorId id, const Error& why) {
  return unavailable(fmt::format("actor {} died: ", class_name))
      .because(why)
      .with_reason(why.reason() == kOutOfMemory ? why.reason() : "ActorDied")
      .with_hint(why.hint())
      .in(fmt::format("actor {}({})", class_name, to_string(id)));
}

bool all_ready(const std::vector<ValueFuture>& deps) {
  return std::all_of(deps.begin(), deps.end(), [](const ValueFuture& d) { return d.ready(); });
}

}  // namespace

ActorCalls::~ActorCalls() {
  *alive_ = false;
  links_.clear();  // fails the sent calls
  for (auto& [id, t] : targets_) {
    for (auto& q : t.queue) q.promise.set(fail(cancelled("this process left the cluster")));
    for (auto& [n, sent] : t.sent) sent.promise.set(fail(cancelled("this process left the cluster")));
  }
}

void ActorCalls::expect(ActorId actor, const std::string& class_name) {
  targets_[actor].class_name = class_name;
  while (dead_.size() > options_.max_dead) {
    targets_.erase(dead_.front());
    dead_.pop_front();
    forgot_ = true;
  }
}

void ActorCalls::forget(ActorId actor, const Error& cause) {
  const auto node = targets_.extract(actor);
  std::erase(dead_, actor);
  if (!node.empty()) fail_calls(actor, node.mapped(), cause, true);
}

std::vector<ActorId> ActorCalls::expected() const {
  std::vector<ActorId> out;
  for (const auto& [id, t] : targets_) {
    if (!t.dead) out.push_back(id);
  }
  return out;
}

void ActorCalls::unknown(ActorId actor, const Error& cause) {
  const auto it = targets_.find(actor);
  if (it == targets_.end() || it->second.dead) return;
  if (!connected(it->second)) return die(actor, it->second, cause);
  it->second.disowned = true;
}

void ActorCalls::updated(const ActorRow& row) {
  const auto it = targets_.find(row.id);
  if (it == targets_.end() || it->second.dead) return;
  Target& t = it->second;
  const bool stays = row.state == ActorState::kAlive && (t.endpoint.empty() || t.endpoint == row.endpoint);
  if (stays && t.news.empty()) return received(row);
  hear(row.id, t, [this, row] { received(row); });
}

void ActorCalls::received(const ActorRow& row) {
  const auto it = targets_.find(row.id);
  if (it == targets_.end() || it->second.dead) return;
  Target& t = it->second;
  t.worker = row.worker;
  t.node = row.node;
  t.restarts = row.max_restarts != 0;
  t.retries = row.max_task_retries;
  const bool moved = row.state == ActorState::kAlive && !t.endpoint.empty() && t.endpoint != row.endpoint;
  if (row.state == ActorState::kRestarting || moved || (t.undecided && row.state == ActorState::kAlive)) {
    t.endpoint.clear();
    lose_sent(row.id, t, away(row.id, t, row.cause.value_or(unavailable("its process ended"))), Lost::kProcess);
  }
  if (row.state == ActorState::kDead) {
    return die(row.id, t, row.cause.value_or(lost(t.class_name, row.id, unavailable("the head reported no cause"))));
  }
  if (row.state != ActorState::kAlive || !t.endpoint.empty()) return;
  t.endpoint = row.endpoint;
  if (const auto link = links_.find(t.endpoint); link != links_.end()) {
    t.made |= link->second.made;
    return flush(row.id, t);
  }
  connect(t.endpoint);
}

void ActorCalls::process_gone(WorkerId worker, const Error& cause) {
  if (!worker) return;
  for (auto& [id, t] : targets_) {
    if (t.dead || (t.worker != worker && t.news.empty())) continue;
    hear(id, t, [this, id = id, worker, cause] { heard_gone(id, worker, cause); });
  }
}

void ActorCalls::heard_gone(ActorId id, WorkerId worker, const Error& cause) {
  const auto it = targets_.find(id);
  if (it == targets_.end() || it->second.worker != worker || it->second.dead) return;
  Target& t = it->second;
  if (t.restarts && !t.disowned && !no_news_) {
    suspend(id, t, cause);
  } else {
    die(id, t, lost(t.class_name, id, cause));
  }
}

void ActorCalls::hear(ActorId id, Target& t, std::function<void()> news) {
  if (t.news.empty()) {
    if (!connected(t)) return news();
    t.cause_timer = clock_.after(options_.cause_grace, [this, id] {
      targets_.at(id).made = true;  // kMade may be among the unread messages
      hear_waiting(id);
    });
  }
  t.news.push_back(std::move(news));
}

void ActorCalls::hear_waiting(ActorId id) {
  Target& t = targets_.at(id);
  t.cause_timer = {};
  for (const auto& news : std::exchange(t.news, {})) news();
}

void ActorCalls::suspend(ActorId id, Target& t, const Error& cause) {
  t.endpoint.clear();
  t.undecided = true;
  t.deciding = clock_.after(options_.cause_grace, [this, id, cause] {
    Target& target = targets_.at(id);
    if (head_here_) {
      lose_sent(id, target, away(id, target, cause), Lost::kProcess);
    } else {
      die(id, target, lost(target.class_name, id, cause));  // no head restarts it
    }
  });
}

Error ActorCalls::away(ActorId id, const Target& t, const Error& cause) {
  return unavailable(fmt::format("actor {} is not available now, its process is restarted: {}", t.class_name, cause.message()))
      .with_reason("ActorUnavailable")
      .in(fmt::format("actor {}({})", t.class_name, to_string(id)));
}

void ActorCalls::lose_sent(ActorId id, Target& t, const Error& cause, Lost what) {
  t.undecided = false;
  t.deciding = {};
  const bool begun = t.made || what == Lost::kConnection;
  if (what == Lost::kProcess) t.made = false;  // the next process has not made it
  std::vector<runtime::Promise<Value>> lost;
  bool again = false;
  auto sent = std::exchange(t.sent, {});
  for (auto it = sent.rbegin(); it != sent.rend(); ++it) {
    Sent& s = it->second;
    if (s.again && !begun) {
      t.queued_bytes += s.again->args.inline_bytes();
      t.queue.push_front({std::move(*s.again), {}, std::move(s.promise), s.tries});
      continue;
    }
    note(id, s.task, s.name, cause);
    if (s.again && !s.unmade_only) {
      const auto made = s.again->attempts ? (*s.again->attempts)++ : static_cast<std::int32_t>(s.task >> 56) + 1;
      s.again->task = task_number(s.task, made);
      t.queued_bytes += s.again->args.inline_bytes();
      t.queue.push_front({std::move(*s.again), {}, std::move(s.promise), s.tries + 1});
      again = true;
    } else {
      lost.push_back(std::move(s.promise));
    }
  }
  if (again && what == Lost::kProcess && options_.retry_delay > runtime::Duration::zero()) delay(id, t);
  for (auto it = lost.rbegin(); it != lost.rend(); ++it) it->set(fail(cause));
  flush(id, t);
}

void ActorCalls::delay(ActorId id, Target& t) {
  t.delays = true;
  t.delay_over = clock_.after(options_.retry_delay, [this, id] {
    Target& target = targets_.at(id);
    target.delays = false;
    flush(id, target);
  });
}

void ActorCalls::no_more_news(const Error& cause) {
  no_news_ = cause;
  for (auto& [id, t] : targets_) {
    if (!t.dead && !connected(t)) die(id, t, lost(t.class_name, id, unavailable(cause.message())));
  }
}

const Error* ActorCalls::cause(ActorId actor) const {
  const auto it = targets_.find(actor);
  return it != targets_.end() && it->second.dead ? &*it->second.dead : nullptr;
}

bool ActorCalls::alive(ActorId actor) const {
  const auto it = targets_.find(actor);
  return it != targets_.end() && !it->second.dead && !it->second.endpoint.empty();
}

bool ActorCalls::waits_for_nobody(ActorId actor) const {
  const auto it = targets_.find(actor);
  if (it == targets_.end() || it->second.dead) return false;
  const auto& queue = it->second.queue;
  const auto is_ours = [](const Queued& q) { return q.call.method == "__init__" || q.call.method == kRelease; };
  if (!std::all_of(queue.begin(), queue.end(), is_ours)) return false;
  return waits_for_arguments(actor) || (!it->second.worker && it->second.endpoint.empty());
}

bool ActorCalls::waits_for_arguments(ActorId actor) const {
  const auto it = targets_.find(actor);
  if (it == targets_.end() || it->second.queue.empty()) return false;
  const Queued& first = it->second.queue.front();
  const auto ready = [](const ValueFuture& dep) { return dep.ready(); };
  return first.call.method == "__init__" && !std::all_of(first.deps.begin(), first.deps.end(), ready);
}

bool ActorCalls::connected(const Target& t) const {
  const auto link = links_.find(t.endpoint);
  return link != links_.end() && link->second.peer != nullptr;
}

void ActorCalls::connect(const std::string& endpoint) {
  links_[endpoint];
  const auto parsed = runtime::parse_endpoint(endpoint);
  if (!parsed) return link_broke(endpoint, parsed.error());
  network_.connect(*parsed, runtime::Role::kWorker, options_.connect_timeout,
                   [this, alive = alive_, endpoint](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (!*alive) return;
                     if (!connection) return link_broke(endpoint, connection.error());
                     Link& link = links_[endpoint];
                     link.peer = std::make_unique<runtime::Peer>(*std::move(connection), clock_, *this);
                     link.connection = next_connection_++;
                     link.full = link.introduced = link.made = false;
                     link.broken_since.reset();
                     for (auto& [id, t] : targets_) {
                       if (t.endpoint == endpoint) flush(id, t);
                     }
                   });
}

void ActorCalls::on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a caller accepts no requests"));
}

void ActorCalls::on_closed(runtime::Peer& peer, const Error& why) {
  for (auto& [endpoint, link] : links_) {
    if (link.peer.get() != &peer) continue;
    const auto owned = std::move(link.peer);  // destroyed when this returns
    const std::string ended = endpoint;
    std::vector<ActorId> reported;
    for (auto& [id, t] : targets_) {
      if (t.endpoint != ended) continue;
      if (!owned->identity().local) now_made(t);  // its end may have overtaken kMade
      if (!t.news.empty()) reported.push_back(id);
    }
    for (const ActorId id : reported) {
      if (targets_.contains(id)) hear_waiting(id);
    }
    return link_broke(ended, why);
  }
}

void ActorCalls::on_drained(runtime::Peer& peer) {
  if (!any_full_) return;
  any_full_ = false;
  std::string drained;
  for (auto& [endpoint, link] : links_) {
    if (link.peer.get() == &peer && std::exchange(link.full, false)) drained = endpoint;
    any_full_ |= link.full;
  }
  if (drained.empty()) return;
  for (auto& [id, t] : targets_) {
    if (t.endpoint == drained) flush(id, t);
  }
}

// The cause is on its way, unless no reports come any more.
void ActorCalls::link_broke(const std::string& endpoint, const Error& why) {
  bool wanted = false;
  for (auto& [id, t] : targets_) {
    if (t.endpoint != endpoint || t.dead) continue;
    if (no_news_) {
      die(id, t, lost(t.class_name, id, unavailable(no_news_->message())));
    } else {
      wanted = true;
    }
  }
  if (!wanted) {
    links_.erase(endpoint);
    return;
  }
  Link& link = links_[endpoint];
  if (!link.broken_since) link.broken_since = clock_.now();
  link.redial = clock_.after(options_.cause_grace, [this, endpoint, why] { redial(endpoint, why); });
}

// No cause came, so the process is taken to live.
void ActorCalls::redial(const std::string& endpoint, const Error& why) {
  const bool unreachable = clock_.now() - *links_.at(endpoint).broken_since >= options_.unreachable_after;
  bool wanted = false;
  for (auto& [id, t] : targets_) {
    if (t.endpoint != endpoint || t.dead) continue;
    if (t.disowned) {
      die(id, t, lost(t.class_name, id, unavailable(why.message())));
      continue;
    }
    wanted = true;
    const auto error = unavailable(fmt::format("the connection to actor {} broke: {}", t.class_name, why.message()))
                           .with_reason("ActorUnavailable")
                           .in(fmt::format("actor {}({})", t.class_name, to_string(id)));
    if (unreachable) {
      fail_calls(id, t, error, true);
    } else {
      lose_sent(id, t, error, Lost::kConnection);
    }
  }
  if (!wanted) {
    links_.erase(endpoint);
    return;
  }
  connect(endpoint);
}

ValueFuture ActorCalls::call(Call call, std::vector<ValueFuture> deps) {
  const ActorId id = call.actor;
  const auto it = targets_.find(id);
  runtime::Promise<Value> promise;
  const auto future = promise.future();
  if (call.task == 0) call.task = next_task_++;
  if (it == targets_.end()) {
    const auto unknown = forgotten(id) ? unavailable("it died long ago, or this process never had its handle").with_reason("ActorDied")
                                       : not_found("this process has no handle of actor " + to_string(id));
    promise.set(fail(Error(unknown).in("actor " + to_string(id))));
    return future;
  }
  Target& t = it->second;
  if (t.dead) {  // not noted: a loop of such calls would displace all other failures
    promise.set(fail(*t.dead));
    return future;
  }
  Queued queued{std::move(call), std::move(deps), std::move(promise)};
  if (queued.deps.size() > Call::kMaxAllDeps) {
    queued.promise.set(fail(invalid_argument(fmt::format("a call has {} references as arguments, which are too many", queued.deps.size()))
                                .with_reason("TooManyArguments")
                                .with_hint("pass them as one list of references, and get() it where they are needed")));
    return future;
  }
  if (t.queue.size() >= options_.max_queued || t.queued_bytes + queued.call.args.inline_bytes() > options_.max_queued_bytes) {
    queued.promise.set(fail(resource_exhausted(
        fmt::format("{} calls with {} bytes of arguments wait for actor {}", t.queue.size(), t.queued_bytes, t.class_name))));
    return future;
  }
  if (!flushing_ && t.queue.empty() && all_ready(queued.deps)) {
    Link* const link = open_link(t);
    if (link != nullptr && !queued.in_portions(link->peer->identity().local)) {
      flushing_ = true;
      send(id, t, *link, std::move(queued));
      flush_others();
      return future;
    }
  }
  for (const auto& d : queued.deps) {
    if (d.ready()) continue;
    d.then([this, alive = alive_, id](const Result<Value>&) {
      if (!*alive) return;
      if (const auto target = targets_.find(id); target != targets_.end()) flush(id, target->second);
    });
  }
  const bool waits = t.any_order && !queued.all_ready();  // it holds up no call, so no flush is needed
  t.queued_bytes += queued.call.args.inline_bytes();
  t.queue.insert(place_of(t, queued.call), std::move(queued));
  if (!waits) flush(id, t);
  return future;
}

// At the end; a repeated call goes before those that may wait for its result.
std::deque<ActorCalls::Queued>::iterator ActorCalls::place_of(Target& t, const Call& call) {
  const auto is_again = [](const Call& c) { return c.task >> 56 != 0; };
  if (!is_again(call)) return t.queue.end();
  return std::find_if(t.queue.begin(), t.queue.end(), [&](const Queued& q) { return q.before == 0 && !is_again(q.call); });
}

void ActorCalls::flush(ActorId id, Target& t) {
  if (flushing_) {
    if (!std::exchange(t.to_flush, true)) to_flush_.push_back(id);
    return;
  }
  flushing_ = true;
  flush_now(id, t);
  flush_others();
}

void ActorCalls::flush_others() {
  while (!to_flush_.empty()) {
    const ActorId next = to_flush_.front();
    to_flush_.pop_front();
    const auto it = targets_.find(next);
    if (it == targets_.end()) continue;
    it->second.to_flush = false;
    flush_now(next, it->second);
  }
  flushing_ = false;
}

ActorCalls::Link* ActorCalls::open_link(const Target& t) {
  if (t.dead || t.endpoint.empty() || !t.news.empty()) return nullptr;
  const auto link = links_.find(t.endpoint);
  if (link == links_.end() || link->second.peer == nullptr) return nullptr;
  if (link->second.peer->queued_bytes() <= options_.high_water_bytes) return &link->second;
  link->second.full = any_full_ = true;
  return nullptr;
}

void ActorCalls::flush_now(ActorId id, Target& t) {
  for (std::size_t at = 0; at < t.queue.size();) {
    Link* const link = open_link(t);
    if (link == nullptr) return;
    if (at > 0 && t.queue[at].call.method == kRelease) return;  // kRelease stays behind all earlier calls
    if ((t.delays && t.queue[at].tries > 0) || !t.queue[at].all_ready()) {
      if (!t.any_order) return;
      ++at;
      continue;
    }
    if (t.queue[at].in_portions(link->peer->identity().local)) {
      const auto sent = send_before(id, t, *link, at);
      if (sent && !*sent) return;
      at = 0;
      if (!sent) {
        Queued q = std::move(t.queue.front());
        t.queue.pop_front();
        t.queued_bytes -= q.call.args.inline_bytes();
        forget_before(t, q);
        note(id, q.call.task, name_of(q.call), sent.error());
        q.promise.set(fail(sent.error()));
        continue;
      }
    }
    Queued q = std::move(t.queue[at]);
    t.queue.erase(t.queue.begin() + static_cast<std::ptrdiff_t>(at));
    t.queued_bytes -= q.call.args.inline_bytes();
    send(id, t, *link, std::move(q));
  }
}

bool ActorCalls::Queued::is_too_much(bool local) const {
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

bool ActorCalls::argument_failed(ActorId id, Queued& q) {
  q.call.deps.reserve(q.call.deps.size() + q.deps.size());
  for (const auto& d : q.deps) {
    const auto& value = d.peek();
    if (!value || value->raised()) {
      note(id, q.call.task, name_of(q.call), value ? internal("it raised").with_reason(std::string(kRaisedFailure)) : value.error());
      q.promise.set(value);
      return true;
    }
    q.call.deps.push_back(*value);
  }
  q.deps.clear();
  return false;
}

// Sends only while nothing is queued in the socket, since queued descriptors stay open.
Result<bool> ActorCalls::send_before(ActorId id, Target& t, Link& link, std::size_t at) {
  if (at > 0) {
    Queued q = std::move(t.queue[at]);
    t.queue.erase(t.queue.begin() + static_cast<std::ptrdiff_t>(at));
    t.queue.push_front(std::move(q));
  }
  Queued& q = t.queue.front();
  if (std::any_of(q.deps.begin(), q.deps.end(), [](const ValueFuture& d) { return !d.peek() || d.peek()->raised(); })) return true;
  (void)argument_failed(id, q);  // moves the values into the call, as no argument failed
  runtime::Peer& peer = *link.peer;
  if (std::exchange(q.connection, link.connection) != link.connection) q.before = 0;
  const bool local = peer.identity().local;
  for (;;) {
    const bool is_rest = goes_with_call(q.call, q.before, local);
    if (is_rest && q.before == 0) return true;
    if (peer.queued_bytes() > 0) {
      link.full = any_full_ = true;
      return false;
    }
    if (is_rest) return true;
    const std::size_t end = end_of_portion(q.call, q.before, local);
    const auto values = std::span(q.call.deps).subspan(q.before, end - q.before);
    stand_alone(values, local);
    SHOAL_TRY(auto message, arguments_message(q.call, q.before, end, local));
    if (references_ != nullptr) {
      for (const Value& v : values) references_->sending(v, t.worker, t.node);
    }
    const auto sent = peer.notify(number(Method::kArguments), std::move(message));
    if (!sent && !peer.connected()) return false;  // on_closed handles it
    if (!sent) return fail(sent.error());
    q.before = end;
  }
}

// Parts of a result get memories of their own, counted in `memory_`.
void ActorCalls::stand_alone(std::span<const Value> values, bool local) {
  if (!local || memory_ == nullptr) return;
  for (const Value& v : values) {
    if (v.shared() && !v.whole()) (void)v.own_memory(memory_);
  }
}

void ActorCalls::send(ActorId id, Target& t, Link& link, Queued&& q) {
  if (argument_failed(id, q)) return;
  runtime::Peer& peer = *link.peer;
  q.call.from = link.introduced ? WorkerId() : self_;
  q.call.from_node = node_;
  const bool local = peer.identity().local;
  const auto values = std::span(q.call.deps).subspan(q.before);
  stand_alone(values, local);
  auto message = to_message(q.call, local, q.before);
  if (!message) {
    forget_before(t, q);
    note(id, q.call.task, name_of(q.call), message.error());
    return q.promise.set(fail(message.error()));
  }
  link.introduced = true;
  if (references_ != nullptr) {
    references_->sending(q.call.args, t.worker, t.node);
    for (const Value& v : values) references_->sending(v, t.worker, t.node);
  }
  const auto number_sent = next_++;
  Sent sent{std::move(q.promise), {}, false, q.tries, peer.next_request(), q.call.parent, q.call.task, name_of(q.call)};
  const std::uint16_t method = q.before > 0 ? number(Method::kCallOfArguments) : number(Method::kCall);
  const std::int32_t retries = q.call.retries.value_or(t.retries);
  sent.unmade_only = retries >= 0 && q.tries >= retries;
  if ((!sent.unmade_only || (t.restarts && !t.made)) && q.call.method != "__init__") sent.again = std::make_unique<Call>(std::move(q.call));
  remember(t, number_sent, std::move(sent));
  // The first call of a batch is flushed at once, the others together.
  const auto flush = peer.num_pending() == 0 ? runtime::Flush::kNow : runtime::Flush::kLater;
  peer.call(method, *std::move(message), {id.value, number_sent}, flush);
  if (q.before > 0 && !t.sent.contains(number_sent)) forget_before(t, q);  // refused at once
}

void ActorCalls::remember(Target& t, std::uint64_t number, Sent sent) {
  if (spare_.empty()) {
    t.sent.emplace_hint(t.sent.end(), number, std::move(sent));
    return;
  }
  auto node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = number;
  node.mapped() = std::move(sent);
  t.sent.insert(t.sent.end(), std::move(node));
}

void ActorCalls::on_answer(runtime::Peer&, runtime::CallTag tag, Result<runtime::Message> r) {
  if (!*alive_) return;
  const auto target = targets_.find(ActorId{tag.first});
  if (target == targets_.end()) return;
  if (!r) {
    if (target->second.undecided) return;  // the head's report decides
    const auto link = links_.find(target->second.endpoint);
    if (link != links_.end() && link->second.peer && !link->second.peer->connected()) return;  // on_closed decides
  }
  auto node = target->second.sent.extract(tag.second);
  if (node.empty()) return;  // failed already
  const auto promise = std::move(node.mapped().promise);
  const auto task = node.mapped().task;
  const auto name = node.mapped().name;
  node.mapped().again.reset();
  if (spare_.size() < kMaxSpare) spare_.push_back(std::move(node));
  if (!r) {
    note(target->first, task, name, r.error());
    return promise.set(fail(std::move(r).error()));
  }
  auto value = value_from(*std::move(r), memory_);
  if (value && references_ != nullptr) arrived(*value, *references_, *memory_);
  if (value && value->shared()) value->memory()->referred = true;
  promise.set(std::move(value));
}

void ActorCalls::heard_made(const runtime::Peer& peer) {
  const auto link = std::find_if(links_.begin(), links_.end(), [&](const auto& l) { return l.second.peer.get() == &peer; });
  if (link == links_.end()) return;
  link->second.made = true;
  for (auto& [id, t] : targets_) {
    if (t.endpoint == link->first) now_made(t);
  }
}

void ActorCalls::now_made(Target& t) {
  t.made = true;
  for (auto& [n, sent] : t.sent) {
    if (sent.unmade_only) sent.again.reset();  // its actor owns the values now
  }
}

void ActorCalls::on_notice(runtime::Peer& peer, runtime::Request notice) {
  if (!*alive_) return;
  if (notice.method == number(Method::kMade)) return heard_made(peer);
  if (notice.method != number(Method::kItem)) return;
  auto item = item_from(std::move(notice.message), memory_);
  if (!item) return;
  if (item->value && references_ != nullptr) arrived(*item->value, *references_, *memory_);
  if (item->value && item->value->shared()) item->value->memory()->referred = true;
  streams_.arrived(item->stream, item->index, std::move(item->value));
}

NodeId ActorCalls::node(ActorId actor) const {
  const auto it = targets_.find(actor);
  return it == targets_.end() ? NodeId() : it->second.node;
}

WorkerId ActorCalls::worker(ActorId actor) const {
  const auto it = targets_.find(actor);
  return it == targets_.end() ? WorkerId() : it->second.worker;
}

void ActorCalls::in_any_order(ActorId actor, bool any) {
  const auto it = targets_.find(actor);
  if (it == targets_.end()) return;
  it->second.any_order = any;
  flush(actor, it->second);
}

void ActorCalls::keep_until_answered(ActorId actor, std::shared_ptr<const void> what) {
  const auto it = targets_.find(actor);
  if (it == targets_.end()) return;
  it->second.kept_next.push_back(std::move(what));
  if (it->second.unanswered == 0) keep_next(actor, it->second);
}

// In rounds, so that a call is counted once for all that is kept.
void ActorCalls::keep_next(ActorId id, Target& t) {
  t.kept = std::exchange(t.kept_next, {});
  if (t.kept.empty()) return;
  const auto answered = [this, alive = alive_, id](const Result<Value>&) {
    const auto it = *alive ? targets_.find(id) : targets_.end();
    if (it != targets_.end() && --it->second.unanswered == 0) keep_next(id, it->second);
  };
  // Without the constructor call, which may wait for resources forever: the actor's end is queued behind it.
  std::vector<ValueFuture> queued;
  for (const auto& q : t.queue) {
    if (q.call.method != "__init__") queued.push_back(q.promise.future());
  }
  t.unanswered = queued.size() + t.sent.size();
  if (t.unanswered == 0) t.kept.clear();
  for (const auto& q : queued) q.then(answered);
  for (const auto& [n, sent] : t.sent) sent.promise.future().then(answered);
}

bool ActorCalls::pending(const ValueFuture& result) const {
  const auto is_it = [&](const auto& call) { return call.promise.future() == result; };
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& target) {
    const Target& t = target.second;
    return std::any_of(t.queue.begin(), t.queue.end(), is_it) ||
           std::any_of(t.sent.begin(), t.sent.end(), [&](const auto& s) { return is_it(s.second); });
  });
}

void ActorCalls::cancel(const ValueFuture& result, CancelHow how) {
  for (auto& [id, t] : targets_) {
    const auto queued = std::find_if(t.queue.begin(), t.queue.end(), [&](const Queued& q) { return q.promise.future() == result; });
    if (queued != t.queue.end()) {
      const Queued q = std::move(*queued);
      t.queue.erase(queued);
      t.queued_bytes -= q.call.args.inline_bytes();
      forget_before(t, q);
      const Error cause = call_cancelled(t.class_name + "." + q.call.method);
      note(id, q.call.task, name_of(q.call), cause);
      q.promise.set(fail(cause));
      return flush(id, t);  // later calls may have waited for its arguments
    }
    for (auto& [n, sent] : t.sent) {
      if (!(sent.promise.future() == result)) continue;
      sent.again.reset();
      const auto link = links_.find(t.endpoint);
      if (link == links_.end() || !link->second.peer) return;  // lost already
      (void)link->second.peer->notify(number(Method::kCancelCall), {to_bytes(CancelCall{id, sent.request, how}), {}, {}});
      return;
    }
  }
}

// Makes the receiver discard the portions sent for this call.
void ActorCalls::forget_before(const Target& t, const Queued& q) {
  const auto link = links_.find(t.endpoint);
  if (q.before == 0 || link == links_.end() || !link->second.peer || link->second.connection != q.connection) return;
  Call none;
  none.actor = q.call.actor;
  if (auto message = arguments_message(none, 0, 0, true)) (void)link->second.peer->notify(number(Method::kArguments), *std::move(message));
}

void ActorCalls::cancel_children(CallKey parent) {
  std::vector<ValueFuture> children;
  for (const auto& [id, t] : targets_) {
    for (const auto& q : t.queue) {
      if (q.call.parent == parent) children.push_back(q.promise.future());
    }
    for (const auto& [n, sent] : t.sent) {
      if (sent.parent == parent) children.push_back(sent.promise.future());
    }
  }
  for (const auto& child : children) cancel(child, {});
}

// Fails the sent calls, and if `queued` the queued ones.
void ActorCalls::fail_calls(ActorId id, Target& t, const Error& cause, bool queued) {
  const auto sent = std::exchange(t.sent, {});
  std::deque<Queued> queue;
  if (queued) {
    queue = std::exchange(t.queue, {});
    t.queued_bytes = 0;
  }
  for (const auto& [n, s] : sent) {
    note(id, s.task, s.name, cause);
    s.promise.set(fail(cause));
  }
  for (auto& q : queue) {
    note(id, q.call.task, name_of(q.call), cause);
    q.promise.set(fail(cause));
  }
}

void ActorCalls::die(ActorId id, Target& t, const Error& cause) {
  t.undecided = false;
  t.deciding = {};
  t.cause_timer = {};
  t.news.clear();
  t.dead = cause;
  dead_.push_back(id);
  fail_calls(id, t, cause, true);
}

void ActorCalls::note(ActorId id, std::uint64_t task, std::uint32_t name, const Error& cause) {
  if (book_ == nullptr || task_of_pool(task)) return;
  book_->over({task, self_, id, name, {}, clock_.now(), kind_of_failure(cause)});
}

std::uint64_t ActorCalls::tell(std::vector<TaskReport>& out, std::size_t limit) const {
  std::uint64_t all = 0;
  const std::size_t before = out.size();
  for (const auto& [id, t] : targets_) {
    all += t.queue.size() + t.sent.size();
    for (const auto& q : t.queue) {
      if (out.size() >= limit) break;
      const TaskState state = !all_ready(q.deps)   ? TaskState::kPendingArguments
                              : t.endpoint.empty() ? TaskState::kPendingPlace
                                                   : TaskState::kPendingTurn;
      out.push_back({q.call.task, self_, id, q.call.method, std::string(q.call.function_name()), state, 0, 0, {}});
    }
    for (const auto& [n, s] : t.sent) {
      if (out.size() >= limit) break;
      const auto& [method, function] = book_->named(s.name);
      out.push_back({s.task, self_, id, method, function, TaskState::kSubmitted, 0, 0, {}});
    }
  }
  return all - (out.size() - before);
}

bool ActorCalls::any_open() const {
  return std::any_of(targets_.begin(), targets_.end(), [this](const auto& entry) { return any_open(entry.second); });
}

bool ActorCalls::any_open(ActorId actor) const {
  const auto it = targets_.find(actor);
  return it != targets_.end() && any_open(it->second);
}

bool ActorCalls::any_open(const Target& t) const {
  const auto is_open = [](std::string_view method) { return !method.starts_with(kOurs); };
  return std::any_of(t.queue.begin(), t.queue.end(), [&](const Queued& q) { return is_open(q.call.method); }) ||
         std::any_of(t.sent.begin(), t.sent.end(),
                     [&](const auto& s) { return book_ == nullptr || is_open(book_->named(s.second.name).first); });
}

void ActorCalls::count(CallBook::Counts& counts) const {
  if (book_ == nullptr) return;
  using Key = std::pair<TaskState, std::uint32_t>;
  std::map<Key, std::uint64_t> calls;
  for (const auto& [id, t] : targets_) {
    for (const auto& q : t.queue) {
      const TaskState state = !all_ready(q.deps)   ? TaskState::kPendingArguments
                              : t.endpoint.empty() ? TaskState::kPendingPlace
                                                   : TaskState::kPendingTurn;
      ++calls[{state, book_->name(q.call.method, q.call.function_name())}];
    }
    for (const auto& [n, s] : t.sent) ++calls[{TaskState::kSubmitted, s.name}];
  }
  for (const auto& [what, n] : calls) counts.note(what.first, *book_, what.second, n);
}

}  // namespace shoal::actors
