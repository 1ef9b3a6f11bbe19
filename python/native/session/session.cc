#include "python/native/session/session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/session/folder.h"
#include "python/native/session/hosting.h"
#include "python/native/metrics.h"
#include "python/native/session/refs.h"
#include "runtime/process/memory_limit.h"

namespace shoal::python {

namespace {
thread_local int uses_here = 0;  // nested uses on this thread
}

PySession::Use::Use(std::shared_ptr<actors::Session> session, std::shared_ptr<Users> users)
    : session_(std::move(session)), users_(std::move(users)) {
  ++uses_here;
}

PySession::Use::~Use() {
  --uses_here;
  session_.reset();  // before the notification: close() waits for it
  const std::lock_guard lock(users_->mutex);
  --users_->count;
  users_->left.notify_all();
}

std::unique_ptr<PySession> PySession::open(actors::SessionOptions options) {
  const auto users = std::make_shared<Users>();
  options.measured = [](bool last) { return recorder().reported(last); };
  options.interrupted = [users] { return users->ending || signals_pending(); };
  std::unique_ptr<PySession> out(new PySession(users));
  users->session = without_gil([&] { return actors::Session::open(std::move(options)); });
  return out;
}

// Breaks the cycle between session and users.
PySession::~PySession() {
  users_->session.reset();
  if (due) due->incoming.taken.forget();
  if (taken) taken->taken.forget();
}

std::shared_ptr<actors::Session> PySession::Users::enter() {
  if (forked) return nullptr;
  const std::lock_guard lock(mutex);
  if (session) ++count;
  return session;
}

std::optional<PySession::Use> PySession::use_of(const std::shared_ptr<Users>& users) {
  auto session = users->enter();
  if (!session) return {};
  return std::optional<Use>(std::in_place, std::move(session), users);
}

PySession::Use PySession::use() const {
  if (auto session = users_->enter()) return Use(std::move(session), users_);
  const bool forked = users_->forked;
  raise(unavailable(forked ? "this process was forked from one that uses Shoal; start Shoal in it anew (shoal.init)"
                           : "this session is closed")
            .with_reason(forked ? "Forked" : "Closed"));
}

void PySession::close() {
  const nb::gil_scoped_release release;
  std::unique_lock lock(users_->mutex);
  const auto ended = std::exchange(users_->session, nullptr);
  if (!ended) return;
  users_->ending = true;
  users_->left.wait(lock, [this] { return users_->count == uses_here; });
  users_->ending = uses_here > 0;  // the session's own closing must not be cut short
  if (due) due->incoming.taken.forget();
  if (taken) taken->taken.forget();
  lock.unlock();
}

void PySession::abandon_after_fork() {
  if (!users_->session) return;
  users_->session->abandon_after_fork();
  new std::shared_ptr<actors::Session>(std::move(users_->session));  // leaked: its thread does not exist in this process
  users_->forked = true;
}

using actors::Session;
using actors::Value;
using actors::ValueFuture;

namespace {

void count(Session& session, const std::shared_ptr<Tally>& tally, const std::vector<Ref*>& refs) {
  session.own([&] {
    tally->of += refs.size();
    for (const auto* ref : refs) ref->follow(tally);
  });
}

std::shared_ptr<Tally> tally(Session& session, const std::vector<Ref*>& refs) {
  auto out = std::make_shared<Tally>();
  count(session, out, refs);
  return out;
}

// Counts only during the wait: a program may wait repeatedly for a result that never comes.
Result<void> wait_until(Session& session, const std::vector<Ref*>& refs, const std::function<bool(const Tally&)>& enough,
                        std::chrono::steady_clock::time_point deadline) {
  const auto t = tally(session, refs);
  bool all = false;
  const auto is_enough = [&] {
    all = t->ready == t->of;
    return enough(*t);
  };
  const auto waited = session.wait(is_enough, deadline);
  if (all) return waited;
  session.own([&] {
    for (const auto* ref : refs) ref->leave(t);
  });
  return waited;
}

actors::Launch launch_of(const nb::dict& d) {
  actors::Launch l;
  const auto text = [&](const char* key) { return d.contains(key) ? nb::cast<std::string>(d[key]) : std::string(); };
  l.kind = actors::Launch::Kind::kPythonWorker;
  l.program = text("program");
  l.cwd = text("cwd");
  l.torch = d.contains("torch") && nb::cast<bool>(d["torch"]);
  if (d.contains("env")) l.env = nb::cast<std::vector<std::pair<std::string, std::string>>>(d["env"]);
  if (d.contains("python_path")) l.python_path = nb::cast<std::vector<std::string>>(d["python_path"]);
  return l;
}

nb::dict resources_dict(const actors::Resources& r) {
  nb::dict out;
  for (const auto& [name, units] : r.all()) out[name.c_str()] = static_cast<double>(units) / actors::Resources::kUnit;
  return out;
}

nb::object cause_of(const std::optional<Error>& cause) { return cause ? nb::object(nb::cast(cause->to_string())) : nb::none(); }

std::vector<actors::LabelMatch> labels_of(const nb::handle& labels) {
  std::vector<actors::LabelMatch> out;
  for (auto& [label, values, negated] : nb::cast<std::vector<std::tuple<std::string, std::vector<std::string>, bool>>>(labels)) {
    out.push_back({label, values, negated});
  }
  return out;
}

actors::Strategy strategy_of(const std::string& name) {
  for (const auto s :
       {actors::Strategy::kPack, actors::Strategy::kSpread, actors::Strategy::kStrictPack, actors::Strategy::kStrictSpread}) {
    if (name == actors::to_string(s)) return s;
  }
  throw nb::value_error("a strategy is PACK, SPREAD, STRICT_PACK or STRICT_SPREAD");
}

actors::Where where_of(const nb::dict& d) {
  actors::Where w;
  const auto id = [&](const char* key) { return d.contains(key) ? parse_hex(nb::cast<std::string>(d[key])).value_or(0) : 0; };
  const auto flag = [&](const char* key) { return d.contains(key) && nb::cast<bool>(d[key]); };
  w.group = GroupId{id("group")};
  if (d.contains("bundle")) w.bundle = nb::cast<int>(d["bundle"]);
  w.node = NodeId{id("node")};
  w.soft = flag("soft");
  w.spread = flag("spread");
  if (d.contains("labels")) w.labels = labels_of(d["labels"]);
  if (d.contains("prefers")) w.prefers = labels_of(d["prefers"]);
  return w;
}

nb::dict group_dict(const actors::GroupRow& r) {
  nb::dict d;
  d["id"] = to_string(r.id);
  d["job"] = to_string(r.job);
  d["name"] = r.name;
  d["namespace"] = r.name_space;
  d["strategy"] = actors::to_string(r.strategy);
  d["state"] = actors::to_string(r.state);
  nb::list bundles, nodes;
  for (const auto& b : r.bundles) bundles.append(resources_dict(b));
  for (const NodeId n : r.nodes) nodes.append(n ? to_string(n) : std::string());
  d["bundles"] = bundles;
  d["nodes"] = nodes;
  d["pending_reason"] = r.pending_reason;
  d["cause"] = cause_of(r.cause);
  return d;
}

actors::GangSpec gang_of(Session& session, const std::string& class_name, std::size_t count, const std::map<std::string, double>& each,
                         const nb::dict& launch, const nb::dict& where) {
  actors::GangSpec spec;
  spec.id = session.new_id<GangId>();
  spec.job = session.job();
  const auto resources = unwrap(actors::Resources::of(each));
  for (std::size_t i = 0; i < count; ++i) spec.actors.push_back({session.new_id<ActorId>(), class_name, resources});
  spec.launch = launch_of(launch);
  spec.where = where_of(where);
  return spec;
}

std::optional<actors::FoundActor> create(Session& session, const actors::GangSpec& spec) {
  auto created = [&] {
    const nb::gil_scoped_release release;
    return session.create_gang(spec);
  }();
  return unwrap(std::move(created));
}

nb::list rows_of(const actors::ListReply& reply) {
  nb::list out;
  for (const auto& r : reply.actors) {
    nb::dict d;
    d["id"] = to_string(r.id);
    d["class"] = r.class_name;
    d["state"] = actors::to_string(r.state);
    d["job"] = to_string(r.job);
    d["node"] = to_string(r.node);
    d["pid"] = r.pid;
    d["rank"] = r.rank;
    d["world_size"] = r.world_size;
    d["generation"] = r.generation;
    d["name"] = r.name;
    d["namespace"] = r.name_space;
    d["detached"] = r.detached;
    d["num_restarts"] = r.num_restarts;
    d["max_restarts"] = r.max_restarts;
    d["attributes"] = r.attributes;
    d["pending_reason"] = r.pending_reason;
    d["cause"] = cause_of(r.cause);
    out.append(d);
  }
  for (const auto& r : reply.nodes) {
    nb::dict d;
    d["id"] = to_string(r.id);
    d["host"] = r.host;
    d["state"] = actors::to_string(r.state);
    d["pid"] = r.pid;
    d["total"] = resources_dict(r.total);
    d["available"] = resources_dict(r.available);
    d["labels"] = r.labels;
    d["cordoned"] = r.scheduling() != actors::NodeScheduling::kSchedulable;
    out.append(d);
  }
  for (const auto& r : reply.groups) out.append(group_dict(r));
  for (const auto& r : reply.workers) {
    nb::dict d;
    d["id"] = to_string(r.id);
    d["role"] = r.role;
    d["state"] = actors::to_string(r.state);
    d["pid"] = r.pid;
    d["job"] = to_string(r.job);
    d["cause"] = cause_of(r.cause);
    out.append(d);
  }
  for (const auto& r : reply.jobs) {
    nb::dict d;
    d["id"] = to_string(r.id);
    d["name"] = r.name;
    d["state"] = actors::to_string(r.state);
    d["exit_code"] = r.exit_code;
    d["cause"] = cause_of(r.cause);
    out.append(d);
  }
  return out;
}

std::unique_ptr<PySession> open_session(const std::string& folder, const std::string& head, const std::string& node,
                                        const std::string& name, const std::string& role, const std::string& worker, const std::string& job,
                                        bool print_logs, bool fold_logs, bool ends_job, double retry_delay_s, double head_timeout_s) {
  actors::SessionOptions o;
  const auto session_folder = unwrap(actors::SessionFolder::open(folder));
  o.credentials = unwrap(session_folder.credentials());
  if (const auto info = session_folder.info()) o.own_node = info->node;
  o.head = head;
  o.node = node;
  o.name = name;
  o.role = role;
  o.worker = WorkerId{parse_hex(worker).value_or(0)};
  o.job = JobId{parse_hex(job).value_or(0)};
  o.print_logs = print_logs;
  o.fold_logs = fold_logs;
  o.ends_job = ends_job;
  using Seconds = std::chrono::duration<double>;
  o.retry_delay = std::chrono::duration_cast<runtime::Duration>(Seconds(retry_delay_s));
  o.head_timeout = std::chrono::duration_cast<runtime::Duration>(Seconds(head_timeout_s));
  return PySession::open(std::move(o));
}

// Two ids as 32 hex digits; the second may be missing.
std::pair<std::uint64_t, std::uint64_t> two_ids(const std::string& hex) {
  const std::string second = hex.size() > 16 ? hex.substr(16) : "";
  return {parse_hex(hex.substr(0, 16)).value_or(0), parse_hex(second).value_or(0)};
}

ObjectId object_id(const std::string& hex) { return ObjectId{two_ids(hex).second}; }

// An object by its id and place: its owner's process and node.
std::pair<actors::ObjectKey, WorkerId> object_at(const std::string& id, const std::string& place) {
  const auto [job, object] = two_ids(id);
  const auto [worker, node] = two_ids(place);
  return {{JobId{job}, ObjectId{object}, NodeId{node}}, WorkerId{worker}};
}

// Calls `does` with the streams, on the loop.
template <class Does>
auto of_streams(PySession& s, const Does& does) {
  const auto use = s.use();
  Session& session = *use;
  const nb::gil_scoped_release release;
  return session.own([&] { return does(session.streams()); });
}

ActorId actor_id(std::string_view hex) { return ActorId{parse_hex(hex).value_or(0)}; }

}  // namespace

void bind_session(nb::module_& m) {
  m.def(
      "find_session",
      [](const std::string& address, const std::string& home) {
        const auto root = unwrap(actors::SessionFolder::root(home.c_str()));
        const auto folder = unwrap(actors::SessionFolder::at_address(root, address));
        const auto info = unwrap(folder.info());
        return std::pair(folder.path(), info.way());
      },
      nb::arg("address"), nb::arg("home"),
      "(folder, head's endpoint) of the running cluster at this address (\"auto\": the latest that is no program's own). `home`: of "
      "session "
      "folders, \"\" for this user's. Refuses a home that another user could have written.");
  m.def(
      "shared_clusters",
      [](const std::string& home) {
        std::vector<std::string> out;
        std::set<std::string> stores;  // heads that share a store are one cluster
        for (const auto& folder : actors::SessionFolder::shared(unwrap(actors::SessionFolder::root(home.c_str())))) {
          const auto info = folder.info();
          if (!info || (!info->store.empty() && !stores.insert(info->store).second)) continue;
          out.push_back(info->head.empty() ? info->head_local : info->head);
        }
        return out;
      },
      nb::arg("home"), "Addresses of the running clusters that are no program's own, the latest first.");
  m.def(
      "machine_memory", [] { return runtime::machine_memory().total; },
      "Bytes that this process may use: what the machine has, or its control groups leave of that.");
  nb::class_<Tally>(m, "Tally", "How many of some refs are ready.").def_ro("of", &Tally::of).def_ro("ready", &Tally::ready);

  nb::class_<PySession> session(m, "Session", "This process's place in a cluster.");
  session
      .def_static("open", &open_session, nb::kw_only(), nb::arg("folder"), nb::arg("head") = "", nb::arg("node") = "", nb::arg("name") = "",
                  nb::arg("role") = "driver", nb::arg("worker") = "", nb::arg("job") = "", nb::arg("print_logs") = true,
                  nb::arg("fold_logs") = false, nb::arg("ends_job") = true, nb::arg("retry_delay_s"), nb::arg("head_timeout_s") = 60.0)
      .def("close", &PySession::close)
      .def("abandon_after_fork", &PySession::abandon_after_fork)
      .def_prop_ro("job", [](PySession& s) { return to_string(s.use()->job()); })
      .def_prop_ro("worker", [](PySession& s) { return to_string(s.use()->worker()); })
      .def_prop_ro("node", [](PySession& s) { return to_string(s.use()->node()); })
      .def_prop_ro(
          "place", [](PySession& s) { return to_string(s.use()->worker()) + to_string(s.use()->node()); },
          "Where what this process publishes lives: its own id and its node's.")
      .def_prop_ro("folder", [](PySession& s) { return s.use()->folder(); })
      .def_prop_ro("host", [](PySession& s) { return s.use()->host(); })
      .def_prop_ro("head_endpoint", [](PySession& s) { return s.use()->head_endpoint(); })
      .def_prop_ro("node_endpoint", [](PySession& s) { return s.use()->node_endpoint(); })

      .def(
          "create_gang",
          [](PySession& s, const std::string& class_name, std::size_t count, const std::map<std::string, double>& each,
             const nb::dict& launch, bool refuse_infeasible, const nb::dict& where) {
            const auto use = s.use();
            Session& session = *use;
            actors::GangSpec spec = gang_of(session, class_name, count, each, launch, where);
            spec.refuse_infeasible = refuse_infeasible;
            create(session, spec);
            std::vector<std::string> ids;
            for (const auto& a : spec.actors) ids.push_back(to_string(a.id));
            return ids;
          },
          nb::arg("class_name"), nb::arg("count"), nb::arg("resources"), nb::arg("launch"), nb::arg("refuse_infeasible") = false,
          nb::arg("where") = nb::dict(), "Ids of `count` actors that are placed together or not at all, each in a process of its own.")
      .def(
          "new_actor_id", [](PySession& s) { return to_string(s.use()->new_id<ActorId>()); }, "For create_actor.")
      .def(
          "create_actor",
          [](PySession& s, const std::string& id, const std::string& class_name, const std::map<std::string, double>& resources,
             const nb::dict& launch, const std::string& name, const std::string& name_space, const nb::bytes& handle, bool get_if_exists,
             bool detached, const nb::dict& where, int max_restarts, int max_task_retries,
             const nb::bytes& creation_spec) -> std::optional<nb::bytes> {
            const auto use = s.use();
            Session& session = *use;
            actors::GangSpec spec = gang_of(session, class_name, 1, resources, launch, where);
            spec.actors[0].id = actor_id(id);
            spec.name = name;
            spec.name_space = name_space;
            spec.handle = std::string(handle.c_str(), handle.size());
            spec.get_if_exists = get_if_exists;
            spec.detached = detached;
            spec.max_restarts = max_restarts;
            spec.max_task_retries = max_task_retries;
            spec.creation_spec = std::string(creation_spec.c_str(), creation_spec.size());
            const auto exists = create(session, spec);
            if (!exists) return std::nullopt;
            return nb::bytes(exists->handle.data(), exists->handle.size());
          },
          nb::arg("id"), nb::arg("class_name"), nb::arg("resources"), nb::arg("launch"), nb::kw_only(), nb::arg("name") = "",
          nb::arg("name_space") = "", nb::arg("handle") = nb::bytes("", 0), nb::arg("get_if_exists") = false, nb::arg("detached") = false,
          nb::arg("where") = nb::dict(), nb::arg("max_restarts") = 0, nb::arg("max_task_retries") = 0,
          nb::arg("creation_spec") = nb::bytes("", 0),
          "An actor of this id, or (get_if_exists) the handle of the living one of its name: then the id names nobody.")
      .def(
          "find_actor",
          [](PySession& s, const std::string& name, const std::string& name_space) {
            const auto use = s.use();
            auto found = [&] {
              const nb::gil_scoped_release release;
              return use->find_actor({name, name_space});
            }();
            const auto v = unwrap(std::move(found));
            return nb::bytes(v.handle.data(), v.handle.size());
          },
          nb::arg("name"), nb::arg("name_space"), "The handle of the living actor of this name.")
      .def(
          "create_group",
          [](PySession& s, const std::vector<std::map<std::string, double>>& bundles, const std::string& strategy, const std::string& name,
             const std::string& name_space, bool detached, const nb::list& labels) {
            const auto use = s.use();
            Session& session = *use;
            actors::GroupSpec spec;
            spec.id = session.new_group_id();
            spec.job = session.job();
            spec.name = name;
            spec.name_space = name_space;
            spec.detached = detached;
            for (const auto& of_bundle : labels) spec.labels.push_back(labels_of(of_bundle));
            for (const auto& b : bundles) spec.bundles.push_back(unwrap(actors::Resources::of(b)));
            spec.strategy = strategy_of(strategy);
            const auto created = [&] {
              const nb::gil_scoped_release release;
              return session.create_group(spec);
            }();
            unwrap(created);
            return to_string(spec.id);
          },
          nb::arg("bundles"), nb::arg("strategy"), nb::arg("name"), nb::arg("name_space"), nb::arg("detached"), nb::arg("labels"),
          "Id of a placement group that is, or will be, reserved.")
      .def(
          "group_ready",
          [](PySession& s, const std::string& group, const nb::bytes& value) {
            auto v = unwrap(Value::make({span_of(value)}));
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            return Ref(session.group_ready(GroupId{parse_hex(group).value_or(0)}, std::move(v)));
          },
          nb::arg("group"), nb::arg("value"), "A reference to `value` (one that has no buffers) that is ready when the group is.")
      .def(
          "remove_group",
          [](PySession& s, const std::string& group) {
            const auto use = s.use();
            const auto removed = [&] {
              const nb::gil_scoped_release release;
              return use->remove_group(GroupId{parse_hex(group).value_or(0)});
            }();
            unwrap(removed);
          },
          nb::arg("group"))
      .def(
          "group",
          [](PySession& s, const std::string& group) {
            const auto use = s.use();
            auto row = [&] {
              const nb::gil_scoped_release release;
              return use->group(GroupId{parse_hex(group).value_or(0)});
            }();
            return group_dict(unwrap(std::move(row)));
          },
          nb::arg("group"), "What the head knows of it.")
      .def(
          "find_group",
          [](PySession& s, const std::string& name, const std::string& name_space) {
            const auto use = s.use();
            auto row = [&] {
              const nb::gil_scoped_release release;
              return use->find_group({name, name_space});
            }();
            return group_dict(unwrap(std::move(row)));
          },
          nb::arg("name"), nb::arg("name_space"))
      .def(
          "know",
          [](PySession& s, const std::string& actor, const std::string& class_name) {
            const auto use = s.use();
            const auto known = [&] {
              const nb::gil_scoped_release release;
              return use->know(actor_id(actor), class_name);
            }();
            unwrap(known);
          },
          nb::arg("actor"), nb::arg("class_name"))
      .def(
          "call",
          [](PySession& s, std::string_view actor, std::string_view method, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
             const std::vector<Ref*>& deps, const std::vector<Ref*>& refs, const PyIncoming* parent, std::optional<std::int32_t> retries) {
            actors::Call call;
            call.retries = retries;
            call.actor = actor_id(actor);
            call.parent = key_of(parent);
            call.method = method;
            const auto use = s.use();
            Session& session = *use;
            auto futures = futures_of(session, deps);
            call.args = unwrap(make_value(session, head, buffers, refs));
            stand_alone(session, deps);
            const nb::gil_scoped_release release;
            std::uint64_t task = 0;
            auto result = session.call(std::move(call), std::move(futures), &task);
            return Ref(std::move(result)).of_task(task);
          },
          nb::arg("actor"), nb::arg("method"), nb::arg("head"), nb::arg("buffers"), nb::arg("deps"), nb::arg("refs") = nb::list(),
          nb::arg("parent") = nb::none(), nb::arg("retries") = nb::none(),
          "`parent`: the call of this process in which it is made. `refs`: those that were pickled with its arguments. `retries` after "
          "deaths of a process that is started again; None: as the "
          "actor's options say.")
      .def(
          "in_any_order",
          [](PySession& s, const std::string& actor, bool any) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.in_any_order(actor_id(actor), any);
          },
          nb::arg("actor"), nb::arg("any"), "Whether calls on it that wait for a reference hold up those behind them: not in any order.")
      .def(
          "keep_until_answered",
          [](PySession& s, const std::string& actor, const Ref& ref) {
            const auto use = s.use();
            Session& session = *use;
            auto hold = ref.hold();
            const nb::gil_scoped_release release;
            session.keep_until_answered(actor_id(actor), std::move(hold));
          },
          nb::arg("actor"), nb::arg("ref"), "What it refers to stays until every call on the actor that was made by now has its answer.")
      .def(
          "cancel",
          [](PySession& s, const Ref& ref, bool recursive, bool force) {
            const auto use = s.use();
            Session& session = *use;
            const auto done = [&] {
              const nb::gil_scoped_release release;
              return session.cancel(ref.to_cancel(), {recursive, force});
            }();
            unwrap(done);
          },
          nb::arg("ref"), nb::arg("recursive"), nb::arg("force"), "Nobody wants it any more.")
      .def(
          "cancel_elsewhere",
          [](PySession& s, const std::string& id, const std::string& owner, bool recursive, bool force) {
            const auto use = s.use();
            const auto done = [&] {
              const nb::gil_scoped_release release;
              const auto [object, worker] = object_at(id, owner);
              return use->cancel_elsewhere(object, worker, {recursive, force});
            }();
            unwrap(done);
          },
          nb::arg("id"), nb::arg("owner"), nb::arg("recursive"), nb::arg("force"),
          "The same of what that process (place), or this one, has published.")
      .def(
          "withdraw",
          [](PySession& s, const std::string& actor) {
            const auto use = s.use();
            const auto withdrawn = [&] {
              const nb::gil_scoped_release release;
              return use->withdraw(actor_id(actor));
            }();
            return unwrap(withdrawn);
          },
          nb::arg("actor"), "Kills an actor that was never placed and that no call waits for here. Whether it did.")
      .def(
          "retire",
          [](PySession& s, const std::string& worker) {
            const auto use = s.use();
            const auto retired = [&] {
              const nb::gil_scoped_release release;
              return use->retire(actor_id(worker));
            }();
            unwrap(retired);
          },
          nb::arg("worker"), "Kills a worker of functions that is not needed any more; what it made lives on as this process's.")
      .def(
          "kill",
          [](PySession& s, const std::string& actor, bool restart) {
            const auto use = s.use();
            const auto killed = [&] {
              const nb::gil_scoped_release release;
              return use->kill(actor_id(actor), restart);
            }();
            unwrap(killed);
          },
          nb::arg("actor"), nb::arg("restart") = false)
      .def(
          "has_package",
          [](PySession& s, const std::string& name) {
            const auto use = s.use();
            auto has = [&] {
              const nb::gil_scoped_release release;
              return use->put_package({name, 0, 0, {}});
            }();
            return unwrap(std::move(has));
          },
          nb::arg("name"), "Whether the head has all of a package.")
      .def(
          "put_package",
          [](PySession& s, const std::string& name, std::uint64_t total, std::uint64_t offset, const nb::bytes& data) {
            const auto use = s.use();
            const actors::PackagePart part{name, total, offset, std::string(data.c_str(), data.size())};
            auto has = [&] {
              const nb::gil_scoped_release release;
              return use->put_package(part);
            }();
            return unwrap(std::move(has));
          },
          nb::arg("name"), nb::arg("total"), nb::arg("offset"), nb::arg("data"),
          "Leaves a part of a package with the head, in order; whether that has all of it now.")
      .def(
          "get_package",
          [](PySession& s, const std::string& name, std::uint64_t offset) {
            const auto use = s.use();
            auto got = [&] {
              const nb::gil_scoped_release release;
              return use->get_package(name, offset);
            }();
            const auto part = unwrap(std::move(got));
            return nb::make_tuple(part.total, nb::bytes(part.data.data(), part.data.size()));
          },
          nb::arg("name"), nb::arg("offset"), "(bytes of all of it, the part that begins there).")
      .def(
          "creation_spec",
          [](PySession& s) {
            const auto use = s.use();
            auto found = [&] {
              const nb::gil_scoped_release release;
              return use->creation_spec();
            }();
            const auto v = unwrap(std::move(found));
            return nb::make_tuple(to_string(v.row.id), nb::bytes(v.handle.data(), v.handle.size()));
          },
          "(id, what it is made from) of the actor that this process is to make by itself.")
      .def(
          "dead",
          [](PySession& s, const std::string& actor) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            return session.dead(actor_id(actor));
          },
          nb::arg("actor"), "Whether this process has heard of its death.")
      .def(
          "list",
          [](PySession& s, const std::string& what) {
            using What = actors::ListRequest::What;
            const std::map<std::string, What> kinds = {{"actors", What::kActors},
                                                       {"nodes", What::kNodes},
                                                       {"workers", What::kWorkers},
                                                       {"jobs", What::kJobs},
                                                       {"groups", What::kGroups}};
            if (!kinds.contains(what)) throw nb::value_error("actors, nodes, workers, jobs or groups");
            const auto use = s.use();
            auto reply = [&] {
              const nb::gil_scoped_release release;
              return use->list(kinds.at(what));
            }();
            return rows_of(unwrap(std::move(reply)));
          },
          nb::arg("what"))
      .def(
          "resources",
          [](PySession& s) {
            const auto use = s.use();
            auto status = [&] {
              const nb::gil_scoped_release release;
              return use->resources();
            }();
            const auto v = unwrap(std::move(status));
            return nb::make_tuple(resources_dict(v.total), resources_dict(v.available), v.wanted_back);
          },
          "(total, available) of the cluster, and whether others wait for what this job's workers of remote functions hold.")
      .def(
          "traffic",
          [](PySession& s) {
            const auto use = s.use();
            const auto traffic = [&] {
              const nb::gil_scoped_release release;
              return use->traffic();
            }();
            return nb::make_tuple(traffic.sent, traffic.received);
          },
          "(sent, received): frames of all connections of this process so far.")
      .def(
          "sync_logs",
          [](PySession& s) {
            const auto use = s.use();
            const auto done = [&] {
              const nb::gil_scoped_release release;
              return use->sync_logs();
            }();
            unwrap(done);
          },
          "What workers have printed by now is printed here, too.")
      .def("shutdown_cluster",
           [](PySession& s) {
             const auto use = s.use();
             const auto done = [&] {
               const nb::gil_scoped_release release;
               return use->shutdown_cluster();
             }();
             unwrap(done);
           })

      .def(
          "put",
          [](PySession& s, const nb::bytes& head, const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& refs) {
            const auto use = s.use();
            return Ref(use->put(unwrap(make_value(*use, head, buffers, refs))));
          },
          nb::arg("head"), nb::arg("buffers"), nb::arg("refs") = nb::list(), "`refs`: those that were pickled with it.")
      .def(
          "publish",
          [](PySession& s, Ref& ref, const std::string& id) {
            const auto use = s.use();
            Session& session = *use;
            stand_alone(session, {&ref});
            auto hold = [&] {
              const nb::gil_scoped_release release;
              return session.publish(object_id(id), ref.future(), ref.to_cancel());
            }();
            ref.name({session.job(), object_id(id), session.node()}, std::move(hold));
          },
          nb::arg("ref"), nb::arg("id"),
          "Gives a value to the node, so that other processes, of other jobs too, can fetch it by this id: the job's and 16 digits. The "
          "node "
          "keeps it as long as a reference to it is somewhere.")
      .def(
          "give",
          [](PySession& s, const Ref& ref, const std::string& id) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.give(object_id(id), ref.future());
          },
          nb::arg("ref"), nb::arg("id"), "The same, but the node keeps it until somebody drops it.")
      .def(
          "borrow",
          [](PySession& s, const std::string& id, const std::string& owner) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            const auto [object, worker] = object_at(id, owner);
            auto hold = session.references().hold({object});
            return Ref(session.fetch(object, worker), object, std::move(hold));
          },
          nb::arg("id"), nb::arg("owner"), "What somebody has published; it stays as long as this does. `owner`: whose it is (place).")
      .def(
          "hold",
          [](PySession& s, const std::string& id, const std::string& owner) {
            const auto use = s.use();
            const auto object = object_at(id, owner).first;
            return Ref(runtime::Promise<Value>().future(), object, use->references().hold({object}));
          },
          nb::arg("id"), nb::arg("owner"), "The same, of which the value is not asked for: it is never ready.")
      .def(
          "pin", [](PySession& s, const Ref& ref) { s.pinned.push_back(ref.hold()); }, nb::arg("ref"),
          "What it refers to stays as long as this process: its name has gone where nobody counts.")
      .def(
          "fetch",
          [](PySession& s, const std::string& id, const std::string& owner) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            const auto [object, worker] = object_at(id, owner);
            return Ref(session.fetch(object, worker));
          },
          nb::arg("id"), nb::arg("owner"))
      .def(
          "drop",
          [](PySession& s, const std::string& id) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.drop(object_id(id));
          },
          nb::arg("id"), "Kept for nobody from now on, also if it comes later.")

      .def(
          "open_stream", [](PySession& s) { return of_streams(s, [](actors::Streams& streams) { return streams.open(); }); },
          "A number for the items of a call that is to be made and that yields.")
      .def(
          "follow_stream",
          [](PySession& s, std::uint64_t stream, const Ref& done) {
            of_streams(s, [&](actors::Streams& streams) { streams.follow(stream, done.future()); });
          },
          nb::arg("stream"), nb::arg("done"), "When that is ready, so is every item: there is none behind it.")
      .def(
          "next_item",
          [](PySession& s, std::uint64_t stream) {
            return of_streams(s, [&](actors::Streams& streams) { return Ref(streams.next(stream)); });
          },
          nb::arg("stream"), "The item that is to be taken next: ready when it is there, or the call is done and there is none.")
      .def(
          "take_item", [](PySession& s, std::uint64_t stream) { of_streams(s, [&](actors::Streams& streams) { streams.take(stream); }); },
          nb::arg("stream"))
      .def(
          "close_stream",
          [](PySession& s, std::uint64_t stream) { of_streams(s, [&](actors::Streams& streams) { streams.close(stream); }); },
          nb::arg("stream"), "Nobody takes its items any more.")

      .def(
          "hand_over", [](PySession& s) { s.use()->hand_over(); },
          "For a thread that goes to sleep until a Readiness has something: the connections are served without it from now on.")
      .def(
          "wait_all",
          [](PySession& s, const std::vector<Ref*>& refs, std::optional<double> timeout) {
            const auto use = s.use();
            Session& session = *use;
            const auto deadline = deadline_in(timeout);
            const auto waited = [&] {
              const nb::gil_scoped_release release;
              return wait_until(session, refs, [](const Tally& t) { return t.ready == t.of || t.failed; }, deadline);
            }();
            if (!waited && waited.error().code() == Code::kDeadlineExceeded) return false;
            unwrap(waited);
            return true;
          },
          nb::arg("refs"), nb::arg("timeout") = nb::none(), "True once all are ready or one has failed; False when the time is over first.")
      .def(
          "wait_some",
          [](PySession& s, const std::vector<Ref*>& refs, std::size_t count, std::optional<double> timeout) {
            std::vector<bool> out(refs.size());
            const auto look = [&] {
              std::transform(refs.begin(), refs.end(), out.begin(), [](const Ref* r) { return r->ready(); });
              return static_cast<std::size_t>(std::count(out.begin(), out.end(), true)) >= count;
            };
            const auto use = s.use();
            if (look()) return out;
            const auto deadline = deadline_in(timeout);
            const auto waited = [&] {
              const nb::gil_scoped_release release;
              return wait_until(*use, refs, [&](const Tally& t) { return t.ready >= count; }, deadline);
            }();
            if (!waited && waited.error().code() != Code::kDeadlineExceeded) unwrap(waited);
            (void)look();
            return out;
          },
          nb::arg("refs"), nb::arg("count"), nb::arg("timeout") = nb::none(), "Which are ready once `count` are, or the time is over.")

      .def(
          "wait_calls",
          [](PySession& s, double timeout, std::string_view actor) {
            const auto use = s.use();
            const std::optional<ActorId> of = actor.empty() ? std::nullopt : std::optional(actor_id(actor));
            const auto none = [&] { return of ? !use->any_open_calls(*of) : !use->any_open_calls(); };
            const auto waited = [&] {
              const nb::gil_scoped_release release;
              return use->own(none) ? Result<void>() : use->wait(none, deadline_in(timeout));
            }();
            if (!waited && waited.error().code() != Code::kDeadlineExceeded) unwrap(waited);
            return waited.has_value();
          },
          nb::arg("timeout"), nb::arg("actor") = "",
          "Waits until all calls that this process has made, or made on this actor, are answered. Returns whether they are, in that time.")
      .def(
          "host_queue",
          [](PySession& s, const std::string& class_name) {
            const auto use = s.use();
            Session& session = *use;
            const auto id = session.new_id<ActorId>();
            auto queue = std::make_shared<actors::CallQueue>();
            actors::HostActor request;
            request.actor = id;
            request.class_name = class_name;
            request.gang_key = class_name + "-" + to_string(id);
            const auto placed = [&]() -> Result<void> {
              const nb::gil_scoped_release release;
              SHOAL_TRY(const auto future, session.host_actor(std::move(request), queue, std::chrono::seconds(30)));
              SHOAL_OK(session.wait([&] { return future.ready(); }));
              if (!future.peek()) return fail(future.peek().error());
              return {};
            }();
            unwrap(placed);
            s.queues[to_string(id)] = std::move(queue);
            return to_string(id);
          },
          nb::arg("class_name"), "Id of an actor in this process whose calls wait for next_report.")
      .def(
          "next_report",
          [](PySession& s, const std::string& queue, const std::shared_ptr<Tally>& t, std::size_t seen) -> std::unique_ptr<PyIncoming> {
            const auto use = s.use();
            Session& session = *use;
            const auto calls = s.queues.at(queue);
            std::unique_ptr<PyIncoming> out;
            const auto waited = [&] {
              const nb::gil_scoped_release release;
              return session.wait([&] {
                if (t->failed || t->ready > seen) return true;
                if (calls->empty()) return t->ready == t->of;
                out = std::make_unique<PyIncoming>(calls->pop(), s.users());
                return true;
              });
            }();
            unwrap(waited);
            return out;
          },
          nb::arg("queue"), nb::arg("tally"), nb::arg("seen"),
          "The next call, or None once more than `seen` of what the tally counts are ready, or one has failed.")
      .def(
          "tally",
          [](PySession& s, const std::vector<Ref*>& refs) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            return tally(session, refs);
          },
          nb::arg("refs"), "Counts which of these become ready.")
      .def(
          "count",
          [](PySession& s, const std::shared_ptr<Tally>& t, const std::vector<Ref*>& refs) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            count(session, t, refs);
          },
          nb::arg("tally"), nb::arg("refs"), "Counts these, too.")
      .def("close_queue", [](PySession& s, const std::string& queue) {
        const auto use = s.use();
        Session& session = *use;
        const nb::gil_scoped_release release;
        s.queues.erase(queue);
        session.own([&] { session.actor_host().remove(ActorId{parse_hex(queue).value_or(0)}); });
      });
  bind_hosting(m, session);
}

}  // namespace shoal::python
