// Waits for results, and for the reports of workers to actors that a driver hosts.
#include <algorithm>

#include "python/native/session/hosting.h"
#include "python/native/session/refs.h"

namespace shoal::python {

using actors::Session;

namespace {

void count(Session& session, const std::shared_ptr<Tally>& tally, const std::vector<Ref*>& refs) {
  session.loop().own([&] {
    tally->total += refs.size();
    for (const auto* ref : refs) ref->follow(tally);
  });
}

std::shared_ptr<Tally> tally(Session& session, const std::vector<Ref*>& refs) {
  auto out = std::make_shared<Tally>();
  count(session, out, refs);
  return out;
}

// Waits until enough() holds for the refs' tally. It leaves nothing behind in their futures, because a program may wait again and again for
// a result that never comes.
Result<void> wait_until(Session& session, const std::vector<Ref*>& refs, const std::function<bool(const Tally&)>& enough,
                        std::chrono::steady_clock::time_point deadline) {
  const auto t = tally(session, refs);
  bool all = false;
  const auto is_enough = [&] {
    all = t->ready == t->total;
    return enough(*t);
  };
  const auto waited = session.loop().wait(is_enough, deadline);
  if (all) return waited;
  session.loop().own([&] {
    for (const auto* ref : refs) ref->leave(t);
  });
  return waited;
}

// Returns false if the wait ended at its deadline. Raises other errors.
bool in_time(const Result<void>& waited) {
  if (!waited && waited.error().code() == Code::kDeadlineExceeded) return false;
  unwrap(waited);
  return true;
}

bool wait_all(const PySession& s, const std::vector<Ref*>& refs, std::optional<double> timeout) {
  const auto deadline = deadline_in(timeout);
  return in_time(in_session(s, [&](Session& session) {
    return wait_until(session, refs, [](const Tally& t) { return t.ready == t.total || t.failed; }, deadline);
  }));
}

std::vector<bool> wait_some(const PySession& s, const std::vector<Ref*>& refs, std::size_t count, std::optional<double> timeout) {
  std::vector<bool> out(refs.size());
  const auto count_ready = [&] {
    std::transform(refs.begin(), refs.end(), out.begin(), [](const Ref* r) { return r->ready(); });
    return static_cast<std::size_t>(std::count(out.begin(), out.end(), true)) >= count;
  };
  const auto use = s.use();
  if (count_ready()) return out;
  const auto deadline = deadline_in(timeout);
  (void)in_time(in_session(
      s, [&](Session& session) { return wait_until(session, refs, [&](const Tally& t) { return t.ready >= count; }, deadline); }));
  (void)count_ready();
  return out;
}

bool wait_calls(const PySession& s, double timeout, std::string_view actor) {
  const std::optional<ActorId> actor_id = actor.empty() ? std::nullopt : std::optional(id_of<ActorId>(actor));
  return in_time(in_session(s, [&](Session& session) {
    const auto none = [&] { return actor_id ? !session.calls().any_open(*actor_id) : !session.calls().any_open(); };
    return session.loop().own(none) ? Result<void>() : session.loop().wait(none, deadline_in(timeout));
  }));
}

std::string host_queue(PySession& s, const std::string& class_name) {
  const auto use = s.use();
  Session& session = *use;
  const auto id = session.new_id<ActorId>();
  auto queue = std::make_shared<actors::CallQueue>();
  actors::HostActor request;
  request.actor = id;
  request.class_name = class_name;
  request.gang_key = class_name + "-" + to_string(id);
  without_gil([&]() -> Result<void> {
    SHOAL_TRY(const auto future, session.hosting().place(std::move(request), queue, std::chrono::seconds(30)));
    SHOAL_OK(session.loop().wait([&] { return future.ready(); }));
    if (!future.peek()) return fail(future.peek().error());
    return {};
  });
  s.queues[to_string(id)] = std::move(queue);
  return to_string(id);
}

std::unique_ptr<PyIncoming> next_report(PySession& s, const std::string& queue, const std::shared_ptr<Tally>& t, std::size_t seen) {
  const auto use = s.use();
  const auto calls = s.queues.at(queue);
  std::unique_ptr<PyIncoming> out;
  without_gil([&] {
    return use->loop().wait([&] {
      if (t->failed || t->ready > seen) return true;
      if (calls->empty()) return t->ready == t->total;
      out = std::make_unique<PyIncoming>(calls->pop(), s.users());
      return true;
    });
  });
  return out;
}

void close_queue(PySession& s, const std::string& queue) {
  in_session(s, [&](Session& session) {
    s.queues.erase(queue);
    session.loop().own([&] { session.hosting().actors().remove(id_of<ActorId>(queue)); });
  });
}

}  // namespace

void bind_waits(nb::module_& m, SessionClass& session) {
  nb::class_<Tally>(m, "Tally", "Counts ready references among some.").def_ro("total", &Tally::total).def_ro("ready", &Tally::ready);
  session
      .def(
          "hand_over", [](const PySession& s) { s.use()->loop().hand_over(); },
          "For a thread that sleeps until a Readiness has something: the background thread serves the connections at once.")
      .def("wait_all", &wait_all, nb::arg("refs"), nb::arg("timeout") = nb::none(),
           "True once all are ready or one has failed; False at the timeout.")
      .def("wait_some", &wait_some, nb::arg("refs"), nb::arg("count"), nb::arg("timeout") = nb::none(),
           "Per reference, if it is ready; once `count` are, or at the timeout.")
      .def("wait_calls", &wait_calls, nb::arg("timeout"), nb::arg("actor") = "",
           "Waits until all calls that this process has made (on this actor, if given) are answered; False at the timeout.")
      .def("host_queue", &host_queue, nb::arg("class_name"), "Id of an actor in this process whose calls wait for next_report.")
      .def("next_report", &next_report, nb::arg("queue"), nb::arg("tally"), nb::arg("seen"),
           "The next call, or None once more than `seen` references of the tally are ready, or one has failed.")
      .def("close_queue", &close_queue, nb::arg("queue"))
      .def(
          "tally",
          [](const PySession& s, const std::vector<Ref*>& refs) {
            return in_session(s, [&](Session& session) { return tally(session, refs); });
          },
          nb::arg("refs"), "Counts these references as they become ready.")
      .def(
          "count",
          [](const PySession& s, const std::shared_ptr<Tally>& t, const std::vector<Ref*>& refs) {
            in_session(s, [&](Session& session) { count(session, t, refs); });
          },
          nb::arg("tally"), nb::arg("refs"), "Counts these references, too.");
}

}  // namespace shoal::python
