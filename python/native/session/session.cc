#include "python/native/session/session.h"

#include <set>
#include <utility>

#include "actors/session/folder/folder.h"
#include "python/native/metrics.h"
#include "runtime/process/cpu_limit.h"
#include "runtime/process/memory_limit.h"

namespace shoal::python {

namespace {
thread_local int own_uses = 0;  // uses of a session by this thread, which may be nested
}

PySession::Use::Use(std::shared_ptr<actors::Session> session, std::shared_ptr<Users> users)
    : session_(std::move(session)), users_(std::move(users)) {
  ++own_uses;
}

PySession::Use::~Use() {
  --own_uses;
  session_.reset();  // dropped before the notification, for which close() waits
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

// Breaks the cycle of references between the session and Users.
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
  raise(unavailable(forked ? "this process was forked from one that uses Shoal; call shoal.init() in it" : "this session is closed")
            .with_reason(forked ? "Forked" : "Closed"));
}

void PySession::close(const std::string& failure) {
  const GilReleased release;
  std::unique_lock lock(users_->mutex);
  const auto ended = std::exchange(users_->session, nullptr);
  if (!ended) return;
  users_->ending = true;
  users_->left.wait(lock, [this] { return users_->count == own_uses; });
  // If this thread is inside a wait, that wait still has to end. Otherwise waits are allowed again: the session's own closing needs them.
  users_->ending = own_uses > 0;
  if (due) due->incoming.taken.forget();
  if (taken) taken->taken.forget();
  ended->set_failure(failure);
  lock.unlock();
}

void PySession::abandon_after_fork() {
  if (!users_->session) return;
  users_->session->abandon_after_fork();
  // Never destroyed: a session's end joins its loop's thread, which a forked child does not have.
  new std::shared_ptr<actors::Session>(std::move(users_->session));
  users_->forked = true;
}

namespace {

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
  o.worker = id_of<WorkerId>(worker);
  o.job = id_of<JobId>(job);
  o.print_logs = print_logs;
  o.fold_logs = fold_logs;
  o.ends_job = ends_job;
  o.retry_delay = duration_of(retry_delay_s);
  o.head_timeout = duration_of(head_timeout_s);
  return PySession::open(std::move(o));
}

std::pair<std::string, std::string> find_session(const std::string& address, const std::string& home) {
  const auto root = unwrap(actors::SessionFolder::root(home.c_str()));
  const auto folder = unwrap(actors::SessionFolder::at_address(root, address));
  const auto info = unwrap(folder.info());
  return std::pair(folder.path(), info.way());
}

std::vector<std::string> shared_clusters(const std::string& home) {
  std::vector<std::string> out;
  std::set<std::string> stores;  // heads that share a store are one cluster
  for (const auto& folder : actors::SessionFolder::shared(unwrap(actors::SessionFolder::root(home.c_str())))) {
    const auto info = folder.info();
    if (!info || (!info->store.empty() && !stores.insert(info->store).second)) continue;
    out.push_back(info->head.empty() ? info->head_local : info->head);
  }
  return out;
}

}  // namespace

void bind_session(nb::module_& m) {
  m.def("find_session", &find_session, nb::arg("address"), nb::arg("home"),
        "(folder, head's endpoint) of the running cluster at this address (\"auto\": the latest that belongs to no program). `home`: the "
        "folder of session folders, \"\" for this user's. Raises for a home that another user could have written.");
  m.def("shared_clusters", &shared_clusters, nb::arg("home"),
        "Addresses of the running clusters that belong to no program, the latest first.");
  m.def(
      "machine_memory", [] { return runtime::machine_memory().total; },
      "Bytes that this process may use: the machine's memory, or the limit of its control groups.");
  m.def(
      "usable_cpus", [] { return runtime::usable_cpus(); },
      "CPUs that this process may use, 1 or more: those of its affinity, or the quota of its control groups, or Slurm's allocation.");

  SessionClass session(m, "Session", "This process's membership in a cluster.");
  session
      .def_static("open", &open_session, nb::kw_only(), nb::arg("folder"), nb::arg("head") = "", nb::arg("node") = "", nb::arg("name") = "",
                  nb::arg("role") = "driver", nb::arg("worker") = "", nb::arg("job") = "", nb::arg("print_logs") = true,
                  nb::arg("fold_logs") = false, nb::arg("ends_job") = true, nb::arg("retry_delay_s"), nb::arg("head_timeout_s") = 60.0)
      .def("close", &PySession::close, nb::arg("failure") = "")
      .def("abandon_after_fork", &PySession::abandon_after_fork)
      .def_prop_ro("job", [](const PySession& s) { return to_string(s.use()->identity().job); })
      .def_prop_ro("worker", [](const PySession& s) { return to_string(s.use()->identity().worker); })
      .def_prop_ro("node", [](const PySession& s) { return to_string(s.use()->identity().node); })
      .def_prop_ro(
          "place", [](const PySession& s) { return to_string(s.use()->identity().worker) + to_string(s.use()->identity().node); },
          "The place of objects that this process publishes: its own id and its node's.")
      .def_prop_ro("folder", [](const PySession& s) { return s.use()->identity().folder; })
      .def_prop_ro("host", [](const PySession& s) { return s.use()->identity().host; })
      .def_prop_ro("head_endpoint", [](const PySession& s) { return s.use()->head().endpoints(); })
      .def_prop_ro("node_endpoint", [](const PySession& s) { return s.use()->node().endpoint(); });
  bind_placement(session);
  bind_cluster(m, session);
  bind_calls(session);
  bind_objects(session);
  bind_waits(m, session);
  bind_hosting(m, session);
}

}  // namespace shoal::python
