#include "tests/simulation/sim_driver.h"

#include <algorithm>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/method.h"
#include "actors/protocol/wire/node_messages.h"
#include "tests/simulation/sim_worker.h"

namespace shoal::simulation {

using namespace std::chrono_literals;
using actors::Method;
using actors::number;
using runtime::Message;

namespace {

constexpr runtime::Duration kConnectTimeout = 5s, kControlTimeout = 30s, kReconnect = 300ms;

Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }

actors::Resources of_cpus(double cpus) { return actors::Resources::from_amounts({{"CPU", cpus}}).value(); }

}  // namespace

SimDriver::SimDriver(runtime::SimWorld& world, ProcessTable& processes, const std::string& host, std::vector<runtime::Endpoint> heads,
                     std::optional<runtime::Endpoint> node)
    : world_(world),
      processes_(processes),
      clock_(world.clock_of(host)),
      pid_(processes.start()),
      network_(world.fabric().attach(host, pid_)),
      calls_(clock_, *network_, {}),
      head_{std::move(heads)},
      node_{std::move(node)} {
  connect_head();
}

SimDriver::~SimDriver() { crash(); }

void SimDriver::crash() {
  if (std::exchange(gone_, true)) return;
  network_->crash();
  processes_.ended(pid_);
}

void SimDriver::leave() {
  if (head_.peer) head_.peer->notify(number(Method::kEndDriver), body(to_bytes(actors::JobRef{job_})));
}

// ---- head and node ----

void SimDriver::connect_head() {
  network_->connect(head_.endpoints[head_.at], runtime::Role::kClient, kConnectTimeout,
                    [this](Result<std::unique_ptr<runtime::Connection>> r) {
                      if (!r) return retry_later();
                      head_.peer = std::make_unique<runtime::Peer>(*std::move(r), clock_, *this);
                      const actors::RegisterDriver me{"simulated", pid_, job_};
                      if (job_) return joined_head();
                      head_.peer->call(number(Method::kRegisterDriver), body(to_bytes(me)), kControlTimeout, [this](Result<Message> reply) {
                        if (!reply) {
                          if (reply.error().reason() == "Disconnected" || gone_) return;  // on_closed() connects again
                          head_.peer.reset();
                          return retry_later();
                        }
                        job_ = actors::from_bytes<actors::RegisteredDriver>(reply->body).value().job;
                        joined_head();
                      });
                    });
}

void SimDriver::retry_later() {
  head_.at = (head_.at + 1) % head_.endpoints.size();
  head_.retry = clock_.after(kReconnect, [this] { connect_head(); });
}

// Watches the driver's actors again: while there was no connection, the head reported no changes of them.
void SimDriver::joined_head() {
  if (node_.endpoint && !node_.peer) connect_node();
  for (const auto& [actor, n] : next_) {
    if (calls_.actors().cause(actor) == nullptr) watch(actor);
  }
  for (const GroupId group : removed_groups_) head_.peer->notify(number(Method::kRemoveGroup), body(to_bytes(actors::GroupRef{group})));
}

void SimDriver::connect_node() {
  network_->connect(*node_.endpoint, runtime::Role::kClient, kConnectTimeout, [this](Result<std::unique_ptr<runtime::Connection>> r) {
    if (!r) {
      node_.retry = clock_.after(kReconnect, [this] { connect_node(); });
      return;
    }
    node_.peer = std::make_unique<runtime::Peer>(*std::move(r), clock_, *this);
    node_.peer->call(number(Method::kAttach), body(to_bytes(actors::Attach{{}, job_, "driver"})), kControlTimeout,
                     [this](Result<Message> reply) {
                       if (reply) node_.worker = actors::from_bytes<actors::Attached>(reply->body).value().worker;
                     });
  });
}

void SimDriver::watch(ActorId actor) {
  head_.peer->call(number(Method::kWatchActor), body(to_bytes(actors::ActorRef{actor})), runtime::Peer::kNoTimeout,
                   [this, actor](Result<Message> r) {
                     if (r) return calls_.updated(actors::from_bytes<actors::ActorRow>(r->body).value());
                     if (r.error().code() == Code::kNotFound) lost(actor, r.error());
                   });
}

void SimDriver::lost(ActorId actor, const Error& cause) {
  actors::ActorRow row;
  row.id = actor;
  row.state = actors::ActorState::kDead;
  row.cause = cause;
  calls_.updated(row);
}

void SimDriver::on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a client takes no requests"));
}

void SimDriver::on_notice(runtime::Peer&, runtime::Request notice) {
  switch (static_cast<Method>(notice.method)) {
    case Method::kActorUpdate:
      return calls_.updated(actors::from_bytes<actors::ActorRow>(notice.message.body).value());
    case Method::kWorkerExited: {
      const auto m = actors::from_bytes<actors::WorkerUpdate>(notice.message.body).value();
      return calls_.process_gone(m.worker, m.cause.value_or(unavailable("its process ended")));
    }
    case Method::kHeads: {
      const auto m = actors::from_bytes<actors::Heads>(notice.message.body).value();
      if (m.moved && head_.peer) head_.peer->close(unavailable("another head leads").with_reason("Disconnected"));
      return;
    }
    default:
      return;
  }
}

void SimDriver::on_closed(runtime::Peer& peer, const Error&) {
  if (&peer == head_.peer.get()) {
    const auto owned = std::move(head_.peer);
    return retry_later();
  }
  const auto owned = std::move(node_.peer);
  calls_.lose_watch(unavailable("its node is gone"));
}

// ---- user's calls ----

std::vector<ActorId> SimDriver::create_gang(std::size_t count, double cpus) { return create({}, count, cpus); }

ActorId SimDriver::create_actor(int restarts, GroupId group, WorkerId creator) {
  actors::GangSpec spec;
  spec.max_restarts = spec.max_task_retries = restarts;
  spec.where.group = group;
  spec.creator = creator;
  const ActorId out = create(std::move(spec), 1, 1).front();
  if (restarts != 0) repeated_.insert(out);
  return out;
}

GroupId SimDriver::create_group(std::size_t count, actors::Strategy strategy) {
  actors::GroupSpec spec;
  spec.id = world_.random().id<GroupId>();
  spec.job = job_;
  spec.strategy = strategy;
  spec.bundles.assign(count, of_cpus(1));
  if (head_.peer) head_.peer->call(number(Method::kCreateGroup), body(to_bytes(spec)), kControlTimeout, [](Result<Message>) {});
  return spec.id;
}

void SimDriver::remove_group(GroupId group) {
  removed_groups_.push_back(group);
  if (head_.peer) head_.peer->notify(number(Method::kRemoveGroup), body(to_bytes(actors::GroupRef{group})));
}

std::vector<ActorId> SimDriver::create(actors::GangSpec spec, std::size_t count, double cpus) {
  spec.id = world_.random().id<GangId>();
  spec.job = job_;
  spec.launch.kind = actors::Launch::Kind::kPythonWorker;
  std::vector<ActorId> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = world_.random().id<ActorId>();
    out.push_back(id);
    next_[id] = 1;
    spec.actors.push_back({id, "Echo", of_cpus(cpus)});
    calls_.expect(id, "Echo");
  }
  const auto refused = [this, out](const Error& why) {
    for (const ActorId id : out) lost(id, why);
  };
  if (!head_.peer) {
    refused(unavailable("the head is gone").with_reason("HeadGone"));
    return out;
  }
  head_.peer->call(number(Method::kCreateGang), body(to_bytes(spec)), kControlTimeout, [refused](Result<Message> r) {
    if (!r) refused(r.error());
  });
  return out;
}

actors::ValueFuture SimDriver::call(ActorId actor, const std::string& method, const std::string& text) {
  actors::Call call;
  call.actor = actor;
  call.method = method;
  call.caller = "driver " + std::to_string(pid_);
  call.args = text_value(std::to_string(next_[actor]++) + (repeated_.contains(actor) ? "r " : " ") + text);
  auto future = calls_.call(std::move(call), {});
  futures_.push_back(future);
  return future;
}

void SimDriver::kill(ActorId actor) {
  if (head_.peer)
    head_.peer->call(number(Method::kKillActor), body(to_bytes(actors::ActorRef{actor})), kControlTimeout, [](Result<Message>) {});
}

void SimDriver::submit(std::size_t count, double cpus, int ms, int code) {
  if (!head_.peer) return;
  actors::JobSpec spec;
  spec.name = "programs";
  spec.launch.argv = {"run", std::to_string(ms), std::to_string(code)};
  spec.num_workers = static_cast<std::uint32_t>(count);
  spec.resources = of_cpus(cpus);
  spec.wait = true;
  head_.peer->call(number(Method::kSubmitJob), body(to_bytes(spec)), kControlTimeout, [this](Result<Message> r) {
    if (r) submitted_.push_back(actors::from_bytes<actors::JobRef>(r->body).value().job);
  });
}

void SimDriver::stop(JobId job, bool force) {
  if (head_.peer)
    head_.peer->call(number(Method::kStopJob), body(to_bytes(actors::StopJob{job, force})), kControlTimeout, [](Result<Message>) {});
}

std::size_t SimDriver::num_unanswered() const {
  return static_cast<std::size_t>(std::count_if(futures_.begin(), futures_.end(), [](const auto& f) { return !f.ready(); }));
}

}  // namespace shoal::simulation
