// Pools of remote functions (actors/session/tasks/task_pool.h).
#include "actors/session/tasks/task_pool.h"

#include "python/native/session/hosting.h"
#include "python/native/session/refs.h"

namespace shoal::python {

using actors::Session;
using actors::TaskPool;
using Wants = TaskPool::Wants;
using Judgement = TaskPool::Judgement;

namespace {

// The session outlives the pool.
struct PyTaskPool {
  PySession* session = nullptr;
  std::shared_ptr<TaskPool> pool;
};

// Calls fn(pool) on the loop.
template <class F>
auto on_loop(const PyTaskPool& p, F&& fn) {
  return in_session(*p.session, [&](Session& session) { return session.loop().own([&] { return fn(*p.pool); }); });
}

std::vector<std::string> hex_of(const std::vector<ActorId>& ids) {
  std::vector<std::string> out;
  for (const ActorId id : ids) out.push_back(to_string(id));
  return out;
}

// `readiness` notes `number` whenever take_wants has a result.
void make(PyTaskPool* out, PySession& s, const Readiness& readiness, std::uint64_t number, bool spread, bool lends) {
  auto pool = in_session(
      s, [&](Session& session) { return session.calls().pools().make([readiness, number] { readiness.note(number); }, {spread, lends}); });
  new (out) PyTaskPool{&s, std::move(pool)};
}

Ref submit(const PyTaskPool& p, const std::string& name, std::uint64_t function, const nb::bytes& head,
           const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& deps, std::int32_t retries, bool judge_raised,
           std::uint32_t max_calls, const PyIncoming* parent, const std::vector<Ref*>& refs) {
  const auto use = p.session->use();
  Session& session = *use;
  TaskPool::Task task;
  task.name = name;
  task.function = function;
  task.args = unwrap(make_value(session, head, buffers, refs));
  stand_alone(session, deps);
  task.deps = futures_of(session, deps);
  task.retries = retries;
  task.judge_raised = judge_raised;
  task.max_calls = max_calls;
  task.parent = key_of(parent);
  const GilReleased release;
  std::uint64_t number = 0;
  auto result = session.loop().own([&] {
    number = p.pool->next_number();
    return p.pool->submit(std::move(task));
  });
  return Ref(std::move(result)).of_task(number);
}

void add(const PyTaskPool& p, const std::string& actor, const Ref& created, const std::string& node) {
  on_loop(p, [&](TaskPool& pool) { pool.add(id_of<ActorId>(actor), created.future(), id_of<NodeId>(node)); });
}

std::vector<std::string> next_nodes(const PyTaskPool& p, const std::vector<std::string>& roomy) {
  std::vector<NodeId> nodes;
  for (const std::string& n : roomy) nodes.push_back(id_of<NodeId>(n));
  std::vector<std::string> out;
  for (const NodeId n : on_loop(p, [&](TaskPool& pool) { return pool.next_nodes(std::move(nodes)); })) out.push_back(to_string(n));
  return out;
}

std::string first_waiting(const PyTaskPool& p) {
  return on_loop(p, [](TaskPool& pool) { return pool.first_waiting(); });
}

void give_back(const PyTaskPool& p, double lease_s) {
  on_loop(p, [&](TaskPool& pool) { pool.give_back(duration_of(lease_s)); });
}

Wants take_wants(const PyTaskPool& p, double idle_s) {
  return on_loop(p, [&](TaskPool& pool) { return pool.take_wants(duration_of(idle_s)); });
}

void judged(const PyTaskPool& p, std::uint64_t id, bool again) {
  on_loop(p, [&](TaskPool& pool) { pool.judged(id, again); });
}

void fail_waiting(const PyTaskPool& p, const std::string& message, const std::string& reason, const std::string& hint) {
  on_loop(p, [&](TaskPool& pool) { pool.fail_waiting(resource_exhausted(message).with_reason(reason).with_hint(hint)); });
}

void bind_wants(nb::module_& m) {
  nb::class_<Judgement>(m, "Judgement", "A task that raised: the caller decides if it runs again.")
      .def_ro("id", &Judgement::id)
      .def_ro("function", &Judgement::function, "The function's number.")
      .def_prop_ro("raised", [](const Judgement& j) { return Ref(j.raised); });
  nb::class_<Wants>(m, "Wants", "A pool's requests to its owner.")
      .def_ro("workers", &Wants::workers, "How many more workers it wants.")
      .def_ro("starting", &Wants::starting, "True if some workers are not made yet.")
      .def_ro("alone", &Wants::alone, "True if no worker holds its CPUs.")
      .def_ro("empty", &Wants::empty, "True if there are no workers.")
      .def_prop_ro(
          "ended", [](const Wants& w) { return hex_of(w.ended); }, "Ids of workers to be retired.")
      .def_prop_ro(
          "condemned", [](const Wants& w) { return hex_of(w.condemned); }, "Ids of workers to be killed at once.")
      .def_ro("raised", &Wants::raised, "Each needs a call of judged.");
}

}  // namespace

void bind_task_pool(nb::module_& m) {
  bind_wants(m);
  nb::class_<PyTaskPool>(m, "TaskPool", "Remote functions of one kind of worker: waiting tasks, workers, repeated tasks.")
      .def("__init__", &make, nb::arg("session"), nb::arg("readiness"), nb::arg("number"), nb::arg("spread"), nb::arg("lends"),
           nb::keep_alive<1, 2>(),
           "`number` becomes ready when take_wants has a result. `spread`: nodes take turns. `lends`: its workers hold CPUs, which others "
           "may use while they are idle.")
      .def("submit", &submit, nb::arg("name"), nb::arg("function"), nb::arg("head"), nb::arg("buffers"), nb::arg("deps"),
           nb::arg("retries"), nb::arg("judge_raised"), nb::arg("max_calls"), nb::arg("parent") = nb::none(), nb::arg("refs") = nb::list(),
           "The result of a call of the `function` of that number; its code is deps[0].")
      .def("add", &add, nb::arg("actor"), nb::arg("created"), nb::arg("node") = "", "`node`: its intended node, in a pool that spreads.")
      .def("next_nodes", &next_nodes, nb::arg("roomy"), "For a pool that spreads: the nodes among these that should get a worker now.")
      .def("first_waiting", &first_waiting, "Name of the function that waits for a worker first; \"\" if none waits.")
      .def("give_back", &give_back, nb::arg("lease_s"),
           "Others wait for the resources of its workers: idle ones end, or the oldest one after its task.")
      .def("take_wants", &take_wants, nb::arg("idle_s"))
      .def("judged", &judged, nb::arg("id"), nb::arg("again"))
      .def("fail_waiting", &fail_waiting, nb::arg("message"), nb::arg("reason"), nb::arg("hint"),
           "Fails all waiting tasks: no worker can be made.");
}

}  // namespace shoal::python
