#include "actors/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/session/open_network.h"
#include "actors/session/process_report.h"
#include "actors/wire/cancelling.h"
#include "runtime/process/process.h"
#include "runtime/process/standard_streams.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

using runtime::LoopThread;
using runtime::Message;
using runtime::Peer;

namespace {

constexpr runtime::Duration kRetryEndAfter = std::chrono::seconds(1);  // before another kRelease
constexpr runtime::Duration kHeadPause = std::chrono::milliseconds(50), kLeaveWithin = std::chrono::seconds(3);
constexpr std::array<std::byte, 1> kNoArguments{std::byte{0x80}};  // an array of nothing, in CBOR
constexpr std::size_t kMaxRemoved = 1000;                          // placement groups; a head stores a removal within milliseconds

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

bool may_be_elsewhere(const Error& e) { return e.code() == Code::kUnavailable || e.code() == Code::kDeadlineExceeded; }

Error head_gone() {
  return unavailable("the head is gone").with_reason("HeadGone").with_hint("running actors go on; `shoal status` shows when it is back");
}

// The memory of a result, for the node. An error becomes an object too, so that those who get it receive the error.
Result<std::shared_ptr<SharedMemory>> shared_memory(const Result<Value>& value, ValueMemory& memory) {
  if (value && value->shared()) return value->own_memory(&memory);
  SHOAL_TRY(const Value copy,
            value ? Value::make_shared(value->pieces(), value->kind(), &memory)
                  : Value::make_shared(std::array{runtime::encode_error(value.error()).span()}, Value::Kind::kError, &memory));
  return copy.memory();
}

}  // namespace

// The connection to head or node. Once made, the head's is made again whenever it breaks. Loop thread only.
class Session::Link final : public runtime::PeerHandler {
 public:
  struct Events {
    std::function<void(runtime::Request)> notice;
    std::function<void(runtime::Request, runtime::Responder)> request;
    std::function<void()> opened;
    std::function<void()> closed;
  };
  Link(Session& session, bool lasting, Events events) : session_(session), lasting_(lasting), events_(std::move(events)) {}
  ~Link() {
    *alive_ = false;
    peer_.reset();
  }

  // Null as soon as the connection is gone.
  Peer* peer() const { return peer_ && peer_->connected() ? peer_.get() : nullptr; }
  bool dialling() const { return dialling_; }
  // The reason why there is no connection.
  const Error& failure() const { return failure_; }

  // Tries these endpoints in turn. At most one attempt at a time; no effect while connected.
  void dial(const std::string& endpoints) {
    if (dialling_ || peer()) return;
    endpoint_ = endpoints;
    redial_ = {};
    auto to = runtime::parse_endpoints(endpoints);
    if (!to) {
      failure_ = to.error();
      return;
    }
    dialling_ = true;
    dial(*std::move(to), 0);
  }

  // When another head leads, open requests to the previous one fail as if it were gone.
  void heads_are(const std::string& endpoints, bool moved) {
    const bool there = endpoints.substr(0, endpoints.find(',')) == connected_to_;
    endpoint_ = endpoints;
    if (!moved || there || !peer()) return;
    peer_->close(unavailable("another head leads now").with_reason("Disconnected"));
    dial(std::string(endpoint_));
  }

 private:
  void dial(std::vector<runtime::Endpoint> to, std::size_t at) {
    const auto& endpoint = to[at];
    session_.network_->connect(endpoint, runtime::Role::kClient, session_.options_.connect_timeout,
                               [this, alive = alive_, to, at](Result<std::unique_ptr<runtime::Connection>> r) {
                                 if (!*alive) return;
                                 if (!r && at + 1 < to.size() && may_be_elsewhere(r.error())) return dial(to, at + 1);
                                 connected_to_ = to[at].to_string();
                                 dialled(std::move(r));
                               });
  }

  void dialled(Result<std::unique_ptr<runtime::Connection>> connection) {
    dialling_ = false;
    if (!connection) {
      failure_ = connection.error();
      return redial_later();
    }
    pause_ = kFirstPause;
    was_open_ = true;
    peer_ = std::make_unique<Peer>(*std::move(connection), *session_.clock_, *this);
    events_.opened();
  }

  void redial_later() {
    if (!lasting_ || !was_open_) return;
    redial_ = session_.clock_->after(pause_, [this] { dial(std::string(endpoint_)); });
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    events_.request(std::move(request), std::move(responder));
  }
  void on_notice(Peer&, runtime::Request notice) override { events_.notice(std::move(notice)); }
  void on_closed(Peer&, const Error& why) override {
    const auto owned = std::move(peer_);
    failure_ = why;
    redial_later();
    events_.closed();
  }

  static constexpr runtime::Duration kFirstPause = std::chrono::milliseconds(100), kLongestPause = std::chrono::seconds(3);

  Session& session_;
  const bool lasting_;
  const Events events_;
  std::string endpoint_;      // one or several
  std::string connected_to_;  // one of `endpoint_`
  std::unique_ptr<Peer> peer_;
  bool dialling_ = false, was_open_ = false;
  Error failure_ = unavailable("the connection was never made");
  runtime::Duration pause_ = kFirstPause;
  runtime::Timer redial_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Session::Session(SessionOptions options)
    : options_(std::move(options)),
      clock_(runtime::make_real_clock(loop_)),
      random_(runtime::make_real_random()),
      references_([this] { loop_.post([this] { references_.flush(); }); }, [this](const auto& changes) { count(changes); }),
      handles_(references_, {.post = [this](std::function<void()> fn) { loop_.post(std::move(fn)); },
                             .new_object = [this] { return ObjectKey{job_, random_->id<ObjectId>(), node_id_}; },
                             .tell = [this](ActorId actor) { return release(actor); },
                             // Without the owner, whose process may be gone.
                             .get = [this](const ObjectKey& object) { return fetch_now(object, {}); },
                             .keep_until_answered =
                                 [this](ActorId actor, std::shared_ptr<const void> what) {
                                   if (calls_) calls_->keep_until_answered(actor, std::move(what));
                                 },
                             .later = [this](std::function<void()> fn) { return clock_->after(kRetryEndAfter, std::move(fn)); }}),
      loop_thread_(loop_) {
  own([this] {
    auto network = std::make_unique<runtime::SocketNetwork>(loop_, *clock_, *random_, options_.credentials.token,
                                                            socket_options(options_.credentials));
    stop_network_ = [raw = network.get()](std::function<void()> drained) { raw->stop(std::move(drained)); };
    traffic_ = [raw = network.get()] { return raw->traffic(); };
    network_ = std::move(network);
    book_ = std::make_unique<CallBook>(*clock_);
    calls_ = std::make_unique<ActorCalls>(*clock_, *network_, ActorCalls::Options{.retry_delay = options_.retry_delay});
    calls_->note_in(*book_);
    actor_host_ = std::make_unique<ActorHost>(*clock_, *network_);
    host_requests_ = std::make_unique<HostRequests>(*clock_);
    actor_host_->on_cancel_children([this](CallKey parent, CancelHow how) {
      for (const auto& pool : task_pools_) pool->cancel_children(parent, how);
      if (calls_) calls_->cancel_children(parent);
    });
    const auto refuse = [](runtime::Request, runtime::Responder responder) { responder.fail(unimplemented("a client takes no requests")); };
    head_ = std::make_unique<Link>(*this, true,
                                   Link::Events{[this](runtime::Request n) { on_head_notice(std::move(n)); }, refuse,
                                                [this] { on_head_opened(); }, [this] { on_closed(); }});
    node_ = std::make_unique<Link>(*this, false,
                                   Link::Events{[this](runtime::Request n) { on_node_notice(std::move(n)); },
                                                [this](runtime::Request r, runtime::Responder responder) { responder.answer(asked(r)); },
                                                [] {}, [this] { on_closed(); }});
  });
}

Session::~Session() {
  send_last_metrics(kLeaveWithin);
  if (is_driver_) {
    options_.head_timeout = std::min(options_.head_timeout, kLeaveWithin);
    if (own([this] { return head_->peer() == nullptr; })) (void)reach_head();  // an unreported end fails the job
  }
  bool drained = false;
  own([this, &drained] {
    // All in one turn of the loop, so that open calls are cancelled before the end of the job's actors and nodes can fail them.
    if (auto* peer = head_->peer(); is_driver_ && peer != nullptr) peer->notify(number(Method::kEndDriver), body(to_bytes(JobRef{job_})));
    for (const auto& pool : task_pools_) pool->close();
    for (const GroupId group : groups_.expected()) groups_.unknown(group, cancelled("this process left the cluster"));
    host_requests_->close(cancelled("this process left the cluster"));
    remote_logs_.reset();
    calls_.reset();
    actor_host_.reset();
    head_.reset();
    node_.reset();
    stop_network_([&drained] { drained = true; });
  });
  loop_thread_.wait([&drained] { return drained; }, std::chrono::steady_clock::now() + std::chrono::seconds(5));
}

Result<std::unique_ptr<Session>> Session::open(SessionOptions options) {
  runtime::open_standard_streams();
  runtime::raise_descriptor_limit();
  std::unique_ptr<Session> session(new Session(std::move(options)));
  SHOAL_OK(session->connect());
  return session;
}

Result<void> Session::connect() {
  if (options_.node.empty()) {
    SHOAL_OK(connect_driver());
  } else {
    own([this] { job_ = options_.job; });
    SHOAL_OK(connect_node(options_.node));
  }
  const auto at = options_.credentials.endpoint("shoal-" + to_string(worker_) + "-" + to_string(new_id<ObjectId>()));
  SHOAL_OK(own([&] {
    calls_->count_with(references_, objects_.at_once(), worker_, node_id_);
    actor_host_->count_with(references_, objects_.at_once());
    return actor_host_->listen(at);
  }));
  return {};
}

Result<void> Session::connect_driver() {
  own([&] { head_endpoint_ = options_.head; });
  if (const auto reached = reach(*head_, options_.head); !reached) {
    const Error& why = reached.error();
    if (why.code() != Code::kUnavailable || why.reason() == "HungUp") return fail(why);
    return fail(unavailable("no head answers at " + options_.head + ": " + why.message())
                    .with_reason(why.reason())
                    .with_hint("the node beside a head starts it again when it dies; `shoal status` shows the result, and what to do"));
  }
  SHOAL_TRY(const Message reply, ask(*head_, Method::kRegisterDriver, to_bytes(RegisterDriver{options_.name, getpid(), options_.job}),
                                     options_.control_timeout));
  SHOAL_TRY(const auto registered, from_bytes<RegisteredDriver>(reply.body));
  own([&] { job_ = registered.job; });
  folder_ = registered.session;
  is_driver_ = !options_.job && options_.ends_job;
  const std::string node = options_.own_node.empty() ? registered.node : options_.own_node;
  SHOAL_TRY(const auto at, runtime::parse_endpoint(node));
  if (at.is_both() && at.host != options_.credentials.host) {
    return fail(unavailable("no node of the cluster runs on this host")
                    .with_reason("NoNode")
                    .with_hint("shoal start --address " + head_endpoint_ +
                               " --token-file FILE --ca-fingerprint sha256:.. adds this host to the cluster"));
  }
  SHOAL_OK(connect_node(node));
  return {};
}

Result<void> Session::connect_node(const std::string& endpoint) {
  node_endpoint_ = endpoint;
  SHOAL_OK(reach(*node_, endpoint));
  SHOAL_TRY(const Message reply,
            ask(*node_, Method::kAttach, to_bytes(Attach{options_.worker, job_, options_.role}), options_.control_timeout));
  SHOAL_TRY(const auto attached, from_bytes<Attached>(reply.body));
  node_id_ = attached.node;
  worker_ = attached.worker;
  own([&] { job_ = attached.job; });
  folder_ = attached.session;
  host_name_ = attached.host;
  own([&] { head_endpoint_ = attached.head; });
  if (attached.member >= 0 && reply.fds.size() == 1) SHOAL_OK(share_memory(reply.fds[0], attached.member, attached.spill));
  if (is_driver_ && options_.print_logs) {
    own([&] {
      remote_logs_ = std::make_unique<RemoteLogs>(
          *clock_, *network_, job_, [this](const auto& host, auto notice) { on_logs(host, notice); },
          [this](NodeId node, const auto& text) { no_more_logs(node, text); });
    });
    SHOAL_OK(ask(*node_, Method::kFollowLogs, to_bytes(JobRef{job_}), options_.control_timeout));
  }
  return {};
}

// This process keeps to the node's shared limit from now on.
Result<void> Session::share_memory(const Fd& membership_page, std::int32_t member, const std::string& spill_folder) {
  using runtime::UsageBoard;
  SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(membership_page));
  if (bytes != UsageBoard::kBytes || static_cast<std::size_t>(member) >= UsageBoard::kMaxMembers)
    return fail(internal("malformed membership page"));
  ObjectStore::Place place;
  SHOAL_TRY(place.membership_page, runtime::map(membership_page, bytes, runtime::Access::kReadWrite));
  place.member = static_cast<std::size_t>(member);
  place.folder = spill_folder;
  place.interrupted = options_.interrupted;
  const auto notify = [this](Method method, Message message) {
    auto shared = std::make_shared<Message>(std::move(message));
    loop_.post([this, method, shared] {
      if (Peer* const node = node_ ? node_->peer() : nullptr) node->notify(number(method), std::move(*shared));
    });
  };
  place.ask_others = [notify](std::uint64_t wanted) { notify(Method::kMakeRoom, body(to_bytes(MakeRoom{wanted}))); };
  place.moved = [notify](const ObjectKey& object, Result<Fd> file) {
    if (!file) return;  // the node keeps its copy
    Message m = body(to_bytes(ObjectRef{object.id, object.job, 0, {}, {}, object.home}));
    m.fds.push_back(*std::move(file));
    notify(Method::kMoveObject, std::move(m));
  };
  objects_.join(std::move(place));
  return {};
}

Result<void> Session::reach(Link& link, const std::string& endpoint) {
  own([&] { link.dial(endpoint); });
  SHOAL_OK(wait([&] { return !link.dialling(); }));
  return own([&]() -> Result<void> {
    if (link.peer()) return {};
    return fail(link.failure());
  });
}

Result<void> Session::wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline) {
  switch (loop_thread_.wait(done, deadline, options_.interrupted)) {
    case LoopThread::Woken::kDone:
      return {};
    case LoopThread::Woken::kDeadline:
      return fail(deadline_exceeded("it was not ready in time"));
    case LoopThread::Woken::kInterrupted:
      return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
  }
  return fail(internal("a wait returned without a result"));
}

std::chrono::steady_clock::time_point Session::deadline_in(runtime::Duration limit) const {
  const auto now = clock_->now();
  return limit < LoopThread::kForever - now ? now + limit : LoopThread::kForever;
}

Result<Message> Session::ask(Link& link, Method method, Bytes bytes, runtime::Duration timeout, const std::function<void()>& sending) {
  auto answer = std::make_shared<std::optional<Result<Message>>>();
  own([&] {
    Peer* const peer = link.peer();
    if (!peer) {
      answer->emplace(fail(&link == head_.get() ? head_gone() : unavailable("the node is gone").with_reason("NodeGone")));
      return;
    }
    if (sending) sending();
    peer->call(number(method), body(std::move(bytes)), timeout, [answer](Result<Message> r) { answer->emplace(std::move(r)); });
  });
  SHOAL_OK(wait([&] { return answer->has_value(); }));
  return std::move(**answer);
}

Result<void> Session::reach_head_once() {
  const auto reached = reach(*head_, head_endpoint_);
  if (reached) return {};
  return fail(reached.error().reason() == "Interrupted" ? reached.error() : head_gone());
}

Result<void> Session::with_head(const std::function<Result<void>()>& attempt) {
  const auto end = deadline_in(options_.head_timeout);
  for (;;) {
    const auto done = attempt();
    if (done || done.error().reason() != "HeadGone" || clock_->now() >= end) return done;
    const auto alone = [this] { return node_->peer() == nullptr; };
    const auto waited = wait(alone, deadline_in(kHeadPause));
    if (waited) return done;  // without a node no head is restarted
    if (waited.error().code() != Code::kDeadlineExceeded) return waited;
  }
}

Result<void> Session::reach_head() {
  return with_head([this] { return reach_head_once(); });
}

Result<Message> Session::ask_head(Method method, const Bytes& bytes, const std::function<void()>& sending) {
  Result<Message> reply = fail(head_gone());
  SHOAL_OK(with_head([&]() -> Result<void> {
    SHOAL_OK(reach_head_once());
    reply = ask(*head_, method, bytes.clone(), options_.control_timeout, sending);
    return reply || reply.error().reason() != "Disconnected" ? Result<void>() : fail(head_gone());
  }));
  return reply;
}

std::string Session::head_endpoint() {
  return own([this] { return head_endpoint_; });
}

std::string Session::endpoint() {
  return own([this] { return actor_host_->endpoint(); });
}

// ---- actors
// ------------------------------------------------------------------------------------------------------------------------

Result<std::optional<FoundActor>> Session::create_gang(const GangSpec& spec) {
  // Called once the connection exists, since a new connection asks the head about every expected actor. Actors in creating_ are not asked
  // about, since a restarted head may lack them until the repeated request.
  const auto expect = [&] {
    for (const auto& a : spec.actors) {
      creating_.insert(a.id);
      calls_->expect(a.id, a.class_name);
    }
  };
  GangSpec asked = spec;
  if (options_.worker) asked.creator = worker_;
  const auto created = ask_head(Method::kCreateGang, to_bytes(asked), expect);
  own([&] {
    for (const auto& a : spec.actors) creating_.erase(a.id);
  });
  if (created && created->body.size() == 0) return std::optional<FoundActor>();
  const auto forget = [&](const Error& why) {
    own([&] {
      for (const auto& a : spec.actors) calls_->forget(a.id, why);
    });
  };
  if (!created && created.error().reason() == "Unschedulable") {
    own([&] {
      for (const auto& a : spec.actors)
        calls_->unknown(a.id, Error(created.error()).in("actor " + a.class_name + "(" + to_string(a.id) + ")"));
    });
    return std::optional<FoundActor>();
  }
  if (!created) {
    forget(created.error());
    return fail(created.error());
  }
  forget(not_found("another actor has this actor's name"));
  SHOAL_TRY(auto exists, from_bytes<FoundActor>(created->body));
  SHOAL_OK(know(exists.row.id, exists.row.class_name));  // a report on it may have come earlier
  return std::optional(std::move(exists));
}

Result<FoundActor> Session::find_actor(const FindActor& request) {
  Result<FoundActor> out = fail(head_gone());
  SHOAL_OK(with_head([&]() -> Result<void> {
    SHOAL_OK(reach_head_once());
    auto answer = std::make_shared<std::optional<Result<FoundActor>>>();
    own([&] {
      if (!head_->peer()) return answer->emplace(fail(head_gone())), void();
      head_->peer()->call(number(Method::kFindActor), body(to_bytes(request)), options_.control_timeout,
                          [this, answer](Result<Message> reply) { answer->emplace(found(reply)); });
    });
    SHOAL_OK(wait([&] { return answer->has_value(); }));
    out = std::move(**answer);
    return out || out.error().reason() != "Disconnected" ? Result<void>() : fail(head_gone());
  }));
  return out;
}

// Adds the actor before any later report on it is handled. Loop only.
Result<FoundActor> Session::found(const Result<Message>& reply) {
  if (!reply) return fail(reply.error());
  SHOAL_TRY(auto out, from_bytes<FoundActor>(reply->body));
  if (calls_) {
    if (!calls_->knows(out.row.id)) calls_->expect(out.row.id, out.row.class_name);
    calls_->updated(out.row);
  }
  return out;
}

Result<void> Session::know(ActorId actor, const std::string& class_name) {
  if (own([&] { return calls_->knows(actor); })) return {};
  SHOAL_OK(reach_head());
  auto answer = std::make_shared<std::optional<Result<void>>>();
  own([&] {
    if (calls_->knows(actor)) return answer->emplace(), void();
    if (!head_->peer()) return answer->emplace(fail(head_gone())), void();
    calls_->expect(actor, class_name);
    watch(actor, options_.control_timeout, [answer](Result<void> r) { answer->emplace(std::move(r)); });
  });
  auto known = wait([&] { return answer->has_value(); });
  if (known) known = **answer;
  if (!known && known.error().reason() == "Disconnected") known = fail(head_gone());
  if (!known) own([&] { calls_->forget(actor, known.error()); });
  return known;
}

// Asks the head for reports on an actor, for as long as this connection lasts. Loop only.
void Session::watch(ActorId actor, runtime::Duration timeout, std::function<void(Result<void>)> done) {
  head_->peer()->call(number(Method::kWatchActor), body(to_bytes(ActorRef{actor})), timeout,
                      [this, actor, done = std::move(done)](Result<Message> reply) {
                        const auto row = reply ? from_bytes<ActorRow>(reply->body) : Result<ActorRow>(fail(reply.error()));
                        if (row && calls_) calls_->updated(*row);
                        if (!row && calls_ && row.error().code() == Code::kNotFound) calls_->unknown(actor, row.error());
                        if (done) done(row ? Result<void>() : fail(row.error()));
                      });
}

ValueFuture Session::call(Call call, std::vector<ValueFuture> deps, std::uint64_t* task) {
  return own([&] {
    if (task != nullptr) *task = call.task = calls_->new_task();
    return calls_->call(std::move(call), std::move(deps));
  });
}

std::vector<ValueFuture> Session::split(const ValueFuture& whole, std::size_t count) {
  std::vector<runtime::Promise<Value>> promises(count);
  own([&] {
    whole.then([promises](const Result<Value>& value) {
      auto parts = value && !value->raised() ? value->split(promises.size()) : Result<std::vector<Value>>();
      for (std::size_t i = 0; i < promises.size(); ++i) {
        if (!value || value->raised()) {
          promises[i].set(value);
        } else if (!parts) {
          promises[i].set(fail(parts.error()));
        } else {
          promises[i].set(std::move((*parts)[i]));
        }
      }
    });
  });
  std::vector<ValueFuture> out;
  for (const auto& p : promises) out.push_back(p.future());
  return out;
}

Result<void> Session::kill(ActorId actor, bool restart) {
  SHOAL_OK(ask_head(Method::kKillActor, to_bytes(KillActor{actor, restart})));
  return {};
}

Result<bool> Session::withdraw(ActorId actor) {
  if (!own([&] { return calls_->waits_for_nobody(actor); })) return false;
  SHOAL_TRY(const Message reply, ask_head(Method::kWatchActor, to_bytes(ActorRef{actor})));
  SHOAL_TRY(const auto row, from_bytes<ActorRow>(reply.body));
  if (row.state != ActorState::kPending && !own([&] { return calls_->waits_for_arguments(actor); })) return false;
  SHOAL_OK(kill(actor));
  return true;
}

Result<void> Session::retire(ActorId worker) {
  SHOAL_OK(ask_head(Method::kKillActor, to_bytes(KillActor{.actor = worker, .hand_on = true})));
  return {};
}

Result<FoundActor> Session::creation_spec() {
  SHOAL_TRY(const Message reply, ask_head(Method::kGetCreationSpec, to_bytes(GetCreationSpec{worker_})));
  return from_bytes<FoundActor>(reply.body);
}

void Session::in_any_order(ActorId actor, bool any) {
  own([&] { calls_->in_any_order(actor, any); });
}

// No handle refers to this actor, which this process made. Loop only.
ValueFuture Session::release(ActorId actor) {
  auto nothing = Value::make({kNoArguments});
  if (!calls_ || !nothing) {
    const runtime::Promise<Value> promise;
    promise.set(fail(cancelled("this process left the cluster")));
    return promise.future();
  }
  Call call;
  call.actor = actor;
  call.method = kRelease;
  call.args = *std::move(nothing);
  if (calls_->waits_for_nobody(actor)) withdraw_soon(actor);
  return calls_->call(std::move(call), {});
}

// Like withdraw(); its release then fails. Loop only.
void Session::withdraw_soon(ActorId actor) {
  if (!head_->peer()) return;
  head_->peer()->call(number(Method::kWatchActor), body(to_bytes(ActorRef{actor})), options_.control_timeout,
                      [this, actor](const Result<Message>& reply) {
                        const auto row = reply ? from_bytes<ActorRow>(reply->body) : Result<ActorRow>(fail(reply.error()));
                        if (!row || !head_->peer() || !calls_->waits_for_nobody(actor)) return;
                        if (row->state != ActorState::kPending && !calls_->waits_for_arguments(actor)) return;
                        head_->peer()->call(number(Method::kKillActor), body(to_bytes(KillActor{actor, false})), options_.control_timeout,
                                            [](const Result<Message>&) {});
                      });
}

void Session::keep_until_answered(ActorId actor, std::shared_ptr<const void> what) {
  own([&] { calls_->keep_until_answered(actor, std::move(what)); });
}

Result<void> Session::cancel(const ToCancel& what, CancelHow how) {
  return own([&] { return cancel_now(what, how); });
}

Result<void> Session::cancel_now(const ToCancel& what, CancelHow how) {
  const ValueFuture result = what.answer();
  for (const auto& pool : task_pools_) pool->cancel(result, how);
  if (!result.ready() && how.force && calls_->pending(result)) {
    return fail(invalid_argument("force applies to remote functions: cancelling a call does not end an actor's process")
                    .with_hint("cancel the call without force, or kill() the actor"));
  }
  what.done();  // first, since cancelling may run callbacks
  if (!result.ready()) calls_->cancel(result, how);
  return {};
}

Result<void> Session::cancel_published(const ObjectKey& object, CancelHow how) {
  const auto promised = promised_.find(object.id);
  if (promised == promised_.end() || object.job != job_) return {};  // ready already
  const ToCancel what = promised->second;                            // a copy, since cancelling may erase the entry
  return cancel_now(what, how);
}

Result<void> Session::cancel_elsewhere(const ObjectKey& object, WorkerId owner, CancelHow how) {
  if (owner == worker_) return own([&] { return cancel_published(object, how); });
  SHOAL_OK(ask(*node_, Method::kCancelResult, to_bytes(CancelResult{object, owner, how.recursive, how.force}), options_.control_timeout));
  return {};
}

bool Session::dead(ActorId actor) {
  return own([&] { return calls_->cause(actor) != nullptr || calls_->forgotten(actor); });
}

std::shared_ptr<TaskPool> Session::make_task_pool(std::function<void()> wanted, bool spread, bool lends) {
  return own([&] {
    const auto call = [this](Call c, std::vector<ValueFuture> deps) { return calls_->call(std::move(c), std::move(deps)); };
    const auto cancel = [this](const ValueFuture& result, CancelHow how) { calls_->cancel(result, how); };
    auto pool =
        std::make_shared<TaskPool>(*clock_, call, cancel, std::move(wanted), TaskPool::Options{.retry_delay = options_.retry_delay});
    if (spread) pool->spread([this](ActorId worker) { return calls_->node(worker); });
    if (lends) {
      pool->lend({.lend = [this](ActorId worker) { lend(worker); },
                  .resume = [this](ActorId worker, std::function<void(bool)> done) { resume(worker, done); }});
    }
    pool->note_in(*book_, worker_, next_pool_task_);
    task_pools_.push_back(pool);
    return pool;
  });
}

// Lends an idle worker's CPUs to others until it has work. Loop only.
void Session::lend(ActorId worker) {
  auto* head = head_->peer();
  if (head != nullptr) head->notify(number(Method::kWorkerBlocked), body(to_bytes(WorkerBlocked{calls_->worker(worker), true})));
}

// Without a head no others get them. Loop only.
void Session::resume(ActorId worker, const std::function<void(bool)>& done) {
  auto* head = head_->peer();
  if (head == nullptr) return loop_.post([done] { done(true); });
  head->call(number(Method::kWorkerBlocked), body(to_bytes(WorkerBlocked{calls_->worker(worker), false})), options_.control_timeout,
             [done](const Result<Message>& reply) { done(reply || reply.error().code() != Code::kResourceExhausted); });
}

GroupId Session::new_group_id() {
  return own(
      [this] { return GroupId{static_cast<std::uint64_t>(clock_->unix_millis()) << 32 | (random_->id<GroupId>().value & 0xffffffff)}; });
}

Result<void> Session::create_group(const GroupSpec& spec) {
  const auto created = ask_head(Method::kCreateGroup, to_bytes(spec), [&] {
    creating_groups_.insert(spec.id);
    groups_.expect(spec.id);
  });
  own([&] {
    creating_groups_.erase(spec.id);
    if (!created) groups_.unknown(spec.id, created.error());
  });
  if (!created) return fail(created.error());
  return {};
}

ValueFuture Session::group_ready(GroupId group, Value value) {
  (void)reach_head();  // otherwise the future fails
  return own([&] {
    const bool known = groups_.knows(group);
    auto out = groups_.ready(group, std::move(value));
    if (!known) watch(group);
    return out;
  });
}

// Loop only.
void Session::watch(GroupId group) {
  if (!head_->peer()) return groups_.unknown(group, head_gone());
  head_->peer()->call(number(Method::kWatchGroup), body(to_bytes(GroupRef{group})), options_.control_timeout,
                      [this, group](Result<Message> reply) {
                        const auto row = reply ? from_bytes<GroupRow>(reply->body) : Result<GroupRow>(fail(reply.error()));
                        if (row) groups_.updated(*row);
                        if (!row && row.error().reason() != "Disconnected") groups_.unknown(group, row.error());
                      });
}

Result<void> Session::remove_group(GroupId group) {
  SHOAL_OK(reach_head());
  return own([&]() -> Result<void> {
    auto* const peer = head_->peer();
    if (!peer) return fail(head_gone());
    peer->notify(number(Method::kRemoveGroup), body(to_bytes(GroupRef{group})));
    removed_groups_.push_back(group);
    if (removed_groups_.size() > kMaxRemoved) removed_groups_.pop_front();
    return {};
  });
}

Result<GroupRow> Session::group(GroupId group) {
  SHOAL_TRY(const Message reply, ask_head(Method::kWatchGroup, to_bytes(GroupRef{group})));
  return from_bytes<GroupRow>(reply.body);
}

Result<GroupRow> Session::find_group(const FindActor& request) {
  SHOAL_TRY(const Message reply, ask_head(Method::kFindGroup, to_bytes(request)));
  return from_bytes<GroupRow>(reply.body);
}

Result<ListReply> Session::list(ListRequest::What what, JobId job) {
  return list_all({what, job}, [this](Bytes request) -> Result<ListReply> {
    SHOAL_TRY(const Message reply, ask_head(Method::kList, request));
    return from_bytes<ListReply>(reply.body);
  });
}

Result<ClusterStatus> Session::status() {
  SHOAL_TRY(const Message reply, ask_head(Method::kStatus, {}));
  return from_bytes<ClusterStatus>(reply.body);
}

Result<ClusterStatus> Session::resources() {
  SHOAL_TRY(const Message reply, ask_head(Method::kStatus, to_bytes(JobRef{job_})));
  return from_bytes<ClusterStatus>(reply.body);
}

Result<bool> Session::put_package(const PackagePart& part) {
  SHOAL_TRY(const Message reply, ask_head(Method::kPutPackage, to_bytes(part)));
  SHOAL_TRY(const auto has, from_bytes<HasPackage>(reply.body));
  return has.whole;
}

Result<PackagePart> Session::get_package(const std::string& name, std::uint64_t offset) {
  SHOAL_TRY(const Message reply, ask_head(Method::kGetPackage, to_bytes(PackagePart{name, 0, offset, {}})));
  return from_bytes<PackagePart>(reply.body);
}

Result<void> Session::shutdown_cluster() {
  SHOAL_OK(reach_head_once());
  own([this] { ends_cluster_ = true; });
  SHOAL_OK(ask(*head_, Method::kShutdown, {}, options_.control_timeout));
  return {};
}

runtime::Traffic Session::traffic() { return own(traffic_); }

Result<void> Session::sync_logs() {
  if (!is_driver_ || !options_.print_logs) return {};
  SHOAL_OK(ask(*node_, Method::kSyncLogs, {}, std::chrono::seconds(1)));
  own([this] { remote_logs_->sync(); });
  (void)wait([this] { return !remote_logs_->syncing(); }, deadline_in(kLeaveWithin));
  own([this] {
    if (printer_) printer_->flush();
  });
  return {};
}

// ---- objects
// -----------------------------------------------------------------------------------------------------------------------

ValueFuture Session::put(Value value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return promise.future();
}

std::shared_ptr<const void> Session::publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel) {
  auto hold = references_.hold({{job_, id, node_id_}});
  own([&] { put_when_ready(id, future, std::move(to_cancel)); });
  return hold;
}

void Session::give(ObjectId id, const ValueFuture& future) {
  own([&] { put_when_ready(id, future); });
}

// Loop only.
void Session::put_when_ready(ObjectId id, const ValueFuture& future, ToCancel to_cancel) {
  if (!future.ready()) promised_[id] = to_cancel.answer ? std::move(to_cancel) : ToCancel{[future] { return future; }, [] {}};
  future.then([this, id](const Result<Value>& value) {
    promised_.erase(id);
    Peer* const node = node_ ? node_->peer() : nullptr;
    if (!node) return;
    references_.flush();
    const auto put = [&]() -> Result<void> {
      const std::vector<ObjectKey> contains = value ? value->refs() : std::vector<ObjectKey>();
      Message m = body(to_bytes(ObjectRef{id, job_, value ? value->total_bytes() : 0, worker_, contains}));
      SHOAL_TRY(const auto memory, shared_memory(value, objects_.at_once()));
      if (value && value->shared()) memory->published_as({job_, id});
      SHOAL_TRY(Fd fd, memory->descriptor());
      m.fds.push_back(std::move(fd));
      return node->notify(number(Method::kPutObject), std::move(m));
    };
    const auto done = put();
    if (done) return;
    Message m = body(to_bytes(ObjectRef{id, job_, 0, worker_, {}}));
    m.payload = runtime::encode_error(Error(done.error()).in("an object that was to be shared"));
    (void)node->notify(number(Method::kPutObject), std::move(m));  // so that waiting processes fail
  });
}

// Loop only. Without a node nothing is counted.
void Session::count(const std::vector<References::Change>& changes) {
  Peer* const node = node_ ? node_->peer() : nullptr;
  if (!node) return;
  CountObjects out;
  for (const auto& c : changes) {
    out.changes.push_back({c.object, c.holder, c.by, c.holder_node});
    if (out.changes.size() < CountObjects::kMaxChanges && &c != &changes.back()) continue;
    node->notify(number(Method::kCountObjects), body(to_bytes(out)));
    out.changes.clear();
  }
}

ValueFuture Session::fetch(const ObjectKey& object, WorkerId owner) {
  return own([&] { return fetch_now(object, owner); });
}

ValueFuture Session::fetch_now(const ObjectKey& object, WorkerId owner) {
  references_.flush();  // earlier releases must reach the node first
  const runtime::Promise<Value> promise;
  Peer* const node = node_ ? node_->peer() : nullptr;
  if (!node) {
    promise.set(fail(unavailable("the node is gone").with_reason("NodeGone")));
    return promise.future();
  }
  node->call(number(Method::kGetObject), body(to_bytes(ObjectRef{object.id, object.job, 0, owner, {}, object.home})), Peer::kNoTimeout,
             [this, promise, object](Result<Message> r) {
               if (!r) return promise.set(fail(r.error()));
               if (r->fds.size() != 1) return promise.set(fail(internal("an object arrived without its memory")));
               auto value = Value::from_memory(std::move(r->fds[0]));
               if (value) {
                 value->memory()->published_as({object.job, object.id, object.home == node_id_ ? NodeId() : object.home});
                 objects_.keeps(value->memory());
               }
               if (value && value->kind() == Value::Kind::kError) {
                 const auto head = value->pieces()[0];
                 return promise.set(fail(runtime::decode_error(Bytes::copy_of(head.data(), head.size()))));
               }
               const auto described = from_bytes<ObjectRef>(r->body);
               if (value && described) value->refer(described->contains, references_.received(described->contains));
               promise.set(std::move(value));
             });
  return promise.future();
}

void Session::drop(ObjectId id) {
  own([&] {
    if (auto* node = node_->peer())
      node->notify(number(Method::kDropObject), body(to_bytes(ObjectRef{id, job_, 0, {}, {}})), runtime::Flush::kLater);
  });
}

// ---- hosting
// -----------------------------------------------------------------------------------------------------------------------

Result<void> Session::ready() {
  WorkerUpdate update;
  update.worker = worker_;
  update.state = WorkerState::kRunning;
  update.pid = getpid();
  update.endpoint = endpoint();
  SHOAL_OK(ask(*node_, Method::kWorkerReady, to_bytes(update), options_.control_timeout));
  return {};
}

Result<runtime::Future<HostedActor>> Session::host_actor(HostActor actor, std::shared_ptr<Hosted> hosted, runtime::Duration timeout) {
  actor.worker = worker_;
  actor.job = job_;
  actor.pid = getpid();
  actor.endpoint = endpoint();
  SHOAL_OK(reach_head());
  return own([&]() -> Result<runtime::Future<HostedActor>> {
    Peer* const head = head_->peer();
    if (!head) return fail(head_gone());
    actor_host_->add(actor.actor, actor.class_name, std::move(hosted));
    return host_requests_->add(*head, actor, timeout, [this, id = actor.actor] { actor_host_->remove(id); });
  });
}

void Session::set_attributes(const SetAttributes& attributes) {
  own([&] {
    if (auto* head = head_->peer()) head->notify(number(Method::kSetAttributes), body(to_bytes(attributes)));
  });
}

Result<void> Session::leave() {
  SHOAL_OK(ask_head(Method::kWorkerLeaves, to_bytes(GetCreationSpec{worker_})));
  return {};
}

void Session::set_blocked(bool blocked) {
  (void)reach_head_once();  // without a head nothing is placed
  own([&] {
    blocked_ = blocked;
    if (auto* head = head_->peer()) head->notify(number(Method::kWorkerBlocked), body(to_bytes(WorkerBlocked{worker_, blocked})));
  });
}

Result<Fd> Session::open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member) {
  SHOAL_TRY(Message reply, ask(*node_, Method::kOpenArena, to_bytes(OpenArena{key, bytes, job_, member}), options_.control_timeout));
  if (reply.fds.size() != 1) return fail(internal("an arena arrived without its memory"));
  SHOAL_TRY(const std::size_t size, runtime::memory_bytes(reply.fds[0]));
  if (size != bytes) return fail(internal("an arena arrived with another size"));
  return std::move(reply.fds[0]);
}

void Session::drop_arena(const std::string& key) {
  own([&] {
    if (auto* node = node_->peer()) {
      node->call(number(Method::kDropArena), body(to_bytes(ArenaRef{key, job_})), options_.control_timeout, [](Result<Message>) {});
    }
  });
}

// ---- news
// --------------------------------------------------------------------------------------------------------------------------

// A restarted head has no watches.
void Session::on_head_opened() {
  calls_->news_again();
  for (const ActorId actor : calls_->expected()) {
    if (!creating_.contains(actor)) watch(actor, Peer::kNoTimeout, {});
  }
  for (const GroupId group : groups_.expected()) {
    if (!creating_groups_.contains(group)) watch(group);
  }
  host_requests_->ask_again(*head_->peer());
  // The head may have ended before it stored these.
  for (const GroupId group : removed_groups_) head_->peer()->notify(number(Method::kRemoveGroup), body(to_bytes(GroupRef{group})));
  if (blocked_) head_->peer()->notify(number(Method::kWorkerBlocked), body(to_bytes(WorkerBlocked{worker_, true})));
  if (job_) head_->peer()->call(number(Method::kWatchJob), body(to_bytes(JobRef{job_})), Peer::kNoTimeout, [](Result<Message>) {});
}

void Session::on_closed() {
  if (ends_cluster_) return;
  if (calls_ && !head_->peer()) calls_->head_gone();
  if (calls_ && !head_->peer() && !node_->peer()) calls_->no_more_news(unavailable("its node is gone"));
}

void Session::on_head_notice(runtime::Request notice) {
  if (ends_cluster_) return;
  switch (static_cast<Method>(notice.method)) {
    case Method::kActorUpdate:
      if (const auto row = from_bytes<ActorRow>(notice.message.body); row && calls_) calls_->updated(*row);
      break;
    case Method::kGroupUpdate:
      if (const auto row = from_bytes<GroupRow>(notice.message.body)) groups_.updated(*row);
      break;
    case Method::kJobOnNode:
      if (const auto m = from_bytes<ListReply>(notice.message.body); m && remote_logs_) {
        for (const NodeRow& node : m->nodes) {
          if (node.id != node_id_) remote_logs_->follow(node);
        }
      }
      break;
    case Method::kWarning:
      // Every process of the job gets the warning, but workers' output reaches the driver anyway.
      if (!is_driver_ && !options_.print_logs) break;
      if (const auto w = from_bytes<Warning>(notice.message.body)) std::fprintf(stderr, "shoal: warning: %s\n", w->text.c_str());
      break;
    default:
      break;  // from a newer head
  }
}

// Requests from the node: inspection, or the cancellation of a call of this process.
Result<Message> Session::asked(const runtime::Request& request) {
  const auto method = static_cast<Method>(request.method);
  if (method == Method::kInspect) {
    SHOAL_TRY(const auto inspect, from_bytes<Inspect>(request.message.body));
    return Message{{}, to_bytes(reported(inspect)), {}};
  }
  if (method != Method::kCancelResult) return fail(unimplemented("a client accepts no such requests"));
  SHOAL_TRY(const auto cancel, from_bytes<CancelResult>(request.message.body));
  SHOAL_OK(cancel_published(cancel.object, {cancel.recursive, cancel.force}));
  return Message();
}

ProcessReport Session::reported(const Inspect& asked) {
  ProcessReport out;
  if (asked.what == Inspect::What::kObjects) {
    out.objects = report_memories(objects_.all(), job_, *random_);
    out.left_out = cut(out.objects, Inspect::kMaxRows);
  } else if (asked.what == Inspect::What::kTasks) {
    constexpr std::size_t limit = Inspect::kMaxRows;
    out.left_out = book_->report_running(out.tasks, limit);
    if (calls_) out.left_out += calls_->tell(out.tasks, limit);
    for (const auto& pool : task_pools_) out.left_out += pool->tell(out.tasks, limit);
    book_->report_over(out.tasks, limit);
  } else if (asked.what == Inspect::What::kMetrics) {
    out.metrics = last_metrics_ ? *last_metrics_ : metrics(false);
  }
  return out;
}

std::vector<MetricFamily> Session::metrics(bool last) const {
  std::vector<MetricFamily> out;
  if (options_.measured) out = options_.measured(last);
  CallBook::Counts counts;
  if (calls_) calls_->count(counts);
  for (const auto& pool : task_pools_) pool->count(counts);
  book_->measure(std::move(counts), out);
  return out;
}

void Session::note_open(const ValueFuture& whole) {
  ++*num_open_;
  whole.then([open = num_open_](const Result<Value>&) { --*open; });
}

bool Session::any_open_calls() const {
  return *num_open_ > 0 || (calls_ && calls_->any_open()) ||
         std::any_of(task_pools_.begin(), task_pools_.end(), [](const auto& p) { return p->any_open(); });
}

bool Session::any_open_calls(ActorId actor) const { return calls_ && calls_->any_open(actor); }

void Session::send_last_metrics(runtime::Duration within) {
  const auto answered = std::make_shared<bool>(true);
  own([&] {
    Peer* const peer = node_->peer();
    if (peer == nullptr) return;
    const ReportedMetrics last{metrics(is_driver_)};
    if (is_driver_) last_metrics_ = last.metrics;
    if (last.metrics.empty()) return;
    *answered = false;
    peer->call(number(Method::kLastMetrics), {{}, to_bytes(last), {}}, within, [answered](Result<Message>) { *answered = true; });
  });
  (void)wait([&] { return *answered; });
}

void Session::on_node_notice(runtime::Request notice) {
  switch (static_cast<Method>(notice.method)) {
    case Method::kWorkerExited:
    case Method::kLogLines:
      on_logs(host_name_, notice);
      break;
    case Method::kHeads:
      if (const auto m = from_bytes<Heads>(notice.message.body); m && head_) {
        head_endpoint_ = fmt::format("{}", fmt::join(m->endpoints, ","));
        head_->heads_are(head_endpoint_, m->moved);
      }
      break;
    case Method::kKillHere:
      if (const auto m = from_bytes<KillHosted>(notice.message.body); m && actor_host_) {
        actor_host_->kill(m->actor, m->cause.value_or(unavailable("it was killed")));
      }
      break;
    case Method::kMakeRoom:
      if (const auto m = from_bytes<MakeRoom>(notice.message.body)) objects_.wanted(m->bytes);
      break;
    default:
      break;
  }
}

void Session::on_logs(const std::string& host, const runtime::Request& notice) {
  if (static_cast<Method>(notice.method) == Method::kWorkerExited) {
    const auto m = from_bytes<WorkerUpdate>(notice.message.body);
    if (m && calls_ && !ends_cluster_) calls_->process_gone(m->worker, m->cause.value_or(unavailable("its process ended")));
    return;
  }
  const auto m = from_bytes<LogLines>(notice.message.body);
  if (!m) return;
  const std::string rank = m->rank >= 0 && !m->label.starts_with("rank") ? fmt::format(" {}", m->rank) : "";
  const std::string at = host == host_name_ ? "" : ", ip=" + host;
  if (!printer_) printer_ = std::make_unique<LinePrinter>(*clock_, options_.fold_logs);
  printer_->print(fmt::format("{}{} pid={}{}", m->label, rank, m->pid, at), m->stream == 2, notice.message.payload.view());
}

// A draining node needs no warning.
void Session::no_more_logs(NodeId node, const std::string& text) {
  const auto warn = [this, node, text](const Result<Message>& reply) {
    if (!calls_) return;  // this process leaves
    const auto page = reply ? from_bytes<ListReply>(reply->body) : Result<ListReply>(fail(reply.error()));
    const bool drained = page && std::any_of(page->nodes.begin(), page->nodes.end(),
                                             [&](const NodeRow& n) { return n.id == node && n.scheduling() == NodeScheduling::kDraining; });
    if (!drained) std::fprintf(stderr, "shoal: warning: %s\n", text.c_str());
  };
  auto* const head = head_->peer();
  if (head == nullptr) return warn(fail(head_gone()));
  head->call(number(Method::kList), body(to_bytes(ListRequest{ListRequest::What::kNodes, {}, node.value - 1})), options_.control_timeout,
             warn);
}

void Session::abandon_after_fork() {
  loop_.close_tracked();
  objects_.abandon_after_fork();
}

}  // namespace shoal::actors
