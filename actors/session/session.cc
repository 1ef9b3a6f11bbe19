#include "actors/session/session.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>

#include "runtime/net/socket_network.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

using runtime::LoopThread;
using runtime::Message;
using runtime::Peer;

namespace {

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

Error head_gone() {
  return unavailable("the head is gone").with_reason("HeadGone").with_hint("running actors go on; `shoal status` tells when it is back");
}

// What the node keeps of a result. An error is an object, too: whoever gets it shall hear of it.
Result<Value> shared_copy(const Result<Value>& value) {
  if (!value) return Value::make_shared({runtime::encode_error(value.error()).span()}, Value::Kind::kError);
  if (value->shared()) return *value;
  return Value::make_shared(value->pieces(), value->kind());
}

}  // namespace

// The connection to head or node; reconnected by whoever asks next.
class Session::Link final : public runtime::PeerHandler {
 public:
  using OnNotice = std::function<void(runtime::Request)>;
  Link(OnNotice on_notice, std::function<void(const Error&)> on_closed)
      : on_notice_(std::move(on_notice)), on_closed_(std::move(on_closed)) {}

  std::unique_ptr<Peer> peer;

 private:
  void on_request(Peer&, runtime::Request, runtime::Responder responder) override {
    responder.fail(unimplemented("a client takes no requests"));
  }
  void on_notice(Peer&, runtime::Request notice) override { on_notice_(std::move(notice)); }
  void on_closed(Peer&, const Error& why) override {
    const auto owned = std::move(peer);
    on_closed_(why);
  }
  OnNotice on_notice_;
  std::function<void(const Error&)> on_closed_;
};

Session::Session(SessionOptions options)
    : options_(std::move(options)), clock_(runtime::make_real_clock(loop_)), random_(runtime::make_real_random()), loop_thread_(loop_) {
  own([this] {
    auto network = std::make_unique<runtime::SocketNetwork>(loop_, *clock_, *random_, options_.token, runtime::SocketOptions());
    stop_network_ = [raw = network.get()](std::function<void()> drained) { raw->stop(std::move(drained)); };
    traffic_ = [raw = network.get()] { return raw->traffic(); };
    network_ = std::move(network);
    calls_ = std::make_unique<ActorCalls>(*clock_, *network_, ActorCalls::Options());
    actor_host_ = std::make_unique<ActorHost>(*clock_, *network_);
    head_ = std::make_unique<Link>([this](runtime::Request n) { on_head_notice(std::move(n)); }, [](const Error&) {});
    node_ = std::make_unique<Link>([this](runtime::Request n) { on_node_notice(std::move(n)); },
                                   [this](const Error&) { calls_->no_more_news(unavailable("its node is gone")); });
  });
}

Session::~Session() {
  if (is_driver_) {
    own([this] {
      if (head_->peer) head_->peer->notify(number(Method::kEndDriver), body(to_bytes(JobRef{job_})));
    });
  }
  bool drained = false;
  own([this, &drained] {
    calls_.reset();
    actor_host_.reset();
    head_->peer.reset();
    node_->peer.reset();
    stop_network_([&drained] { drained = true; });
  });
  loop_thread_.wait([&drained] { return drained; }, std::chrono::steady_clock::now() + std::chrono::seconds(5));
}

Result<std::unique_ptr<Session>> Session::open(SessionOptions options) {
  std::unique_ptr<Session> session(new Session(std::move(options)));
  SHOAL_OK(session->connect());
  return session;
}

Result<void> Session::connect() {
  if (options_.node.empty()) {
    SHOAL_OK(connect_driver());
  } else {
    job_ = options_.job;
    SHOAL_OK(connect_node(options_.node));
  }
  const auto at = runtime::Endpoint::unix_at("shoal-" + to_string(worker_) + "-" + to_string(new_id<ObjectId>()));
  SHOAL_OK(own([&] { return actor_host_->listen(at); }));
  return {};
}

Result<void> Session::connect_driver() {
  head_endpoint_ = options_.head;
  SHOAL_OK(connect_head());
  SHOAL_TRY(const Message reply, ask(*head_, Method::kRegisterDriver, to_bytes(RegisterDriver{options_.name, getpid(), options_.job}),
                                     options_.control_timeout));
  SHOAL_TRY(const auto registered, from_bytes<RegisteredDriver>(reply.body));
  job_ = registered.job;
  folder_ = registered.session;
  is_driver_ = !options_.job && options_.ends_job;
  SHOAL_OK(connect_node(registered.node));
  return {};
}

Result<void> Session::connect_node(const std::string& endpoint) {
  node_endpoint_ = endpoint;
  SHOAL_TRY(auto peer, dial(endpoint, runtime::Role::kClient, *node_));
  own([&] { node_->peer = std::move(peer); });
  SHOAL_TRY(const Message reply,
            ask(*node_, Method::kAttach, to_bytes(Attach{options_.worker, job_, options_.role}), options_.control_timeout));
  SHOAL_TRY(const auto attached, from_bytes<Attached>(reply.body));
  node_id_ = attached.node;
  worker_ = attached.worker;
  job_ = attached.job;
  folder_ = attached.session;
  host_name_ = attached.host;
  head_endpoint_ = attached.head;
  if (is_driver_ && options_.print_logs) {
    SHOAL_OK(ask(*node_, Method::kFollowLogs, to_bytes(JobRef{job_}), options_.control_timeout));
  }
  return {};
}

Result<void> Session::connect_head() {
  SHOAL_TRY(auto peer, dial(head_endpoint_, runtime::Role::kClient, *head_));
  own([&] { head_->peer = std::move(peer); });
  return {};
}

Result<std::unique_ptr<Peer>> Session::dial(const std::string& endpoint, runtime::Role role, runtime::PeerHandler& handler) {
  SHOAL_TRY(const auto to, runtime::parse_endpoint(endpoint));
  auto answer = std::make_shared<std::optional<Result<std::unique_ptr<runtime::Connection>>>>();
  own([&] {
    network_->connect(to, role, options_.connect_timeout,
                      [answer](Result<std::unique_ptr<runtime::Connection>> r) { answer->emplace(std::move(r)); });
  });
  SHOAL_OK(wait([&] { return answer->has_value(); }));
  if (!**answer) return fail((*answer)->error());
  return own([&] { return std::make_unique<Peer>(std::move(***answer), *clock_, handler); });
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
  return fail(internal("a wait that never ended"));
}

std::chrono::steady_clock::time_point Session::deadline_in(runtime::Duration limit) const {
  const auto now = clock_->now();
  return limit < LoopThread::kForever - now ? now + limit : LoopThread::kForever;
}

Result<Message> Session::ask(Link& link, Method method, Bytes bytes, runtime::Duration timeout) {
  auto answer = std::make_shared<std::optional<Result<Message>>>();
  own([&] {
    if (!link.peer) {
      answer->emplace(fail(&link == head_.get() ? head_gone() : unavailable("the node is gone").with_reason("NodeGone")));
      return;
    }
    link.peer->call(number(method), body(std::move(bytes)), timeout, [answer](Result<Message> r) { answer->emplace(std::move(r)); });
  });
  SHOAL_OK(wait([&] { return answer->has_value(); }));
  return std::move(**answer);
}

Result<Message> Session::ask_head(Method method, Bytes bytes) {
  const bool connected = own([this] { return head_->peer != nullptr; });
  if (!connected) {
    if (const auto again = connect_head(); !again) return fail(again.error().reason() == "Interrupted" ? again.error() : head_gone());
  }
  auto reply = ask(*head_, method, std::move(bytes), options_.control_timeout);
  if (!reply && reply.error().reason() == "Disconnected") return fail(head_gone());
  return reply;
}

std::string Session::endpoint() {
  return own([this] { return actor_host_->endpoint(); });
}

// ---- actors
// ------------------------------------------------------------------------------------------------------------------------

Result<void> Session::create_gang(const GangSpec& spec) {
  own([&] {
    for (const auto& a : spec.actors) calls_->expect(a.id, a.class_name);
  });
  SHOAL_OK(ask_head(Method::kCreateGang, to_bytes(spec)));
  return {};
}

Result<void> Session::know(ActorId actor, const std::string& class_name) {
  const bool known = own([&] {
    if (calls_->knows(actor)) return true;
    calls_->expect(actor, class_name);
    return false;
  });
  if (known) return {};
  SHOAL_TRY(const Message reply, ask_head(Method::kWatchActor, to_bytes(ActorRef{actor})));
  SHOAL_TRY(const auto row, from_bytes<ActorRow>(reply.body));
  own([&] { calls_->updated(row); });
  return {};
}

ValueFuture Session::call(Call call, std::vector<ValueFuture> deps) {
  return own([&] { return calls_->call(std::move(call), std::move(deps)); });
}

Result<void> Session::kill(ActorId actor) {
  SHOAL_OK(ask_head(Method::kKillActor, to_bytes(ActorRef{actor})));
  return {};
}

bool Session::dead(ActorId actor) {
  return own([&] { return calls_->cause(actor) != nullptr; });
}

Result<ListReply> Session::list(ListRequest::What what, JobId job) {
  return list_all({what, job}, [this](Bytes request) -> Result<ListReply> {
    SHOAL_TRY(const Message reply, ask_head(Method::kList, std::move(request)));
    return from_bytes<ListReply>(reply.body);
  });
}

Result<ClusterStatus> Session::status() {
  SHOAL_TRY(const Message reply, ask_head(Method::kStatus, {}));
  return from_bytes<ClusterStatus>(reply.body);
}

Result<void> Session::shutdown_cluster() {
  SHOAL_OK(ask_head(Method::kShutdown, {}));
  return {};
}

runtime::Traffic Session::traffic() { return own(traffic_); }

Result<void> Session::sync_logs() {
  if (!is_driver_ || !options_.print_logs) return {};
  SHOAL_OK(ask(*node_, Method::kSyncLogs, {}, std::chrono::seconds(1)));
  return {};
}

// ---- objects
// -----------------------------------------------------------------------------------------------------------------------

ValueFuture Session::put(Value value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return promise.future();
}

void Session::publish(ObjectId id, const ValueFuture& future) {
  own([&] {
    future.then([this, id](const Result<Value>& value) {
      if (!node_->peer) return;
      auto shared = shared_copy(value);
      if (!shared) return;
      auto fd = runtime::duplicate(shared->memory());
      if (!fd) return;
      Message m = body(to_bytes(ObjectRef{id, job_, shared->total_bytes(), worker_}));
      m.fds.push_back(*std::move(fd));
      node_->peer->notify(number(Method::kPutObject), std::move(m));
    });
  });
}

ValueFuture Session::fetch(ObjectId id, WorkerId owner) {
  return own([&] {
    const runtime::Promise<Value> promise;
    if (!node_->peer) {
      promise.set(fail(unavailable("the node is gone").with_reason("NodeGone")));
      return promise.future();
    }
    node_->peer->call(number(Method::kGetObject), body(to_bytes(ObjectRef{id, job_, 0, owner})), Peer::kNoTimeout,
                      [promise](Result<Message> r) {
                        if (!r) return promise.set(fail(r.error()));
                        if (r->fds.size() != 1) return promise.set(fail(internal("an object without its memory")));
                        auto value = Value::from_memory(std::move(r->fds[0]));
                        if (value && value->kind() == Value::Kind::kError) {
                          const auto head = value->pieces()[0];
                          return promise.set(fail(runtime::decode_error(Bytes::copy_of(head.data(), head.size()))));
                        }
                        promise.set(std::move(value));
                      });
    return promise.future();
  });
}

void Session::drop(ObjectId id) {
  own([&] {
    if (node_->peer) node_->peer->notify(number(Method::kDropObject), body(to_bytes(ObjectRef{id, job_, 0, {}})), runtime::Flush::kLater);
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
  if (!own([this] { return head_->peer != nullptr; })) SHOAL_OK(connect_head());
  return own([&]() -> Result<runtime::Future<HostedActor>> {
    if (!head_->peer) return fail(head_gone());
    actor_host_->add(actor.actor, actor.class_name, std::move(hosted));
    const runtime::Promise<HostedActor> promise;
    head_->peer->call(number(Method::kHostActor), body(to_bytes(actor)), timeout, [this, promise, id = actor.actor](Result<Message> reply) {
      if (!reply && actor_host_) actor_host_->remove(id);
      promise.set(reply ? from_bytes<HostedActor>(reply->body) : Result<HostedActor>(fail(reply.error())));
    });
    return promise.future();
  });
}

void Session::set_attributes(const SetAttributes& attributes) {
  own([&] {
    if (head_->peer) head_->peer->notify(number(Method::kSetAttributes), body(to_bytes(attributes)));
  });
}

Result<Fd> Session::open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member) {
  SHOAL_TRY(Message reply, ask(*node_, Method::kOpenArena, to_bytes(OpenArena{key, bytes, job_, member}), options_.control_timeout));
  if (reply.fds.size() != 1) return fail(internal("an arena without its memory"));
  SHOAL_TRY(const std::size_t size, runtime::memory_bytes(reply.fds[0]));
  if (size != bytes) return fail(internal("an arena of the wrong size"));
  return std::move(reply.fds[0]);
}

void Session::drop_arena(const std::string& key) {
  own([&] {
    if (node_->peer) {
      node_->peer->call(number(Method::kDropArena), body(to_bytes(ArenaRef{key, job_})), options_.control_timeout, [](Result<Message>) {});
    }
  });
}

// ---- news
// --------------------------------------------------------------------------------------------------------------------------

void Session::on_head_notice(runtime::Request notice) {
  switch (static_cast<Method>(notice.method)) {
    case Method::kActorUpdate:
      if (const auto row = from_bytes<ActorRow>(notice.message.body); row && calls_) calls_->updated(*row);
      break;
    case Method::kWarning:
      if (const auto w = from_bytes<Warning>(notice.message.body)) std::fprintf(stderr, "shoal: warning: %s\n", w->text.c_str());
      break;
    default:
      break;  // of a newer head
  }
}

void Session::on_node_notice(runtime::Request notice) {
  switch (static_cast<Method>(notice.method)) {
    case Method::kWorkerExited:
      if (const auto m = from_bytes<WorkerUpdate>(notice.message.body); m && calls_) {
        calls_->process_gone(m->worker, m->cause.value_or(unavailable("its process ended")));
      }
      break;
    case Method::kKillHere:
      if (const auto m = from_bytes<KillHosted>(notice.message.body); m && actor_host_) {
        actor_host_->kill(m->actor, m->cause.value_or(unavailable("it was killed")));
      }
      break;
    case Method::kLogLines:
      if (const auto m = from_bytes<LogLines>(notice.message.body)) print(*m, notice.message.payload.view());
      break;
    default:
      break;
  }
}

void Session::print(const LogLines& m, std::string_view text) {
  const std::string prefix =
      m.rank >= 0 && !m.label.starts_with("rank") ? fmt::format("({} {}) ", m.label, m.rank) : fmt::format("({}) ", m.label);
  std::string out;
  for (std::size_t from = 0; from < text.size();) {
    const auto end = std::min(text.find('\n', from), text.size());
    out += prefix;
    out += text.substr(from, end - from);
    out += '\n';
    from = end + 1;
  }
  std::FILE* stream = m.stream == 2 ? stderr : stdout;
  std::fwrite(out.data(), 1, out.size(), stream);
  std::fflush(stream);
}

void Session::abandon_after_fork() { loop_.close_tracked(); }

}  // namespace shoal::actors
