// Calls on actors, their cancellation, and the ends of actors.
#include "python/native/session/hosting.h"
#include "python/native/session/objects.h"
#include "python/native/session/refs.h"

namespace shoal::python {

using actors::Session;

namespace {

void know(const PySession& s, const std::string& actor, const std::string& class_name) {
  unwrap(in_session(s, [&](Session& session) { return session.actors().know(id_of<ActorId>(actor), class_name); }));
}

Ref call(const PySession& s, std::string_view actor, std::string_view method, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
         const std::vector<Ref*>& deps, const std::vector<Ref*>& refs, const PyIncoming* parent, std::optional<std::int32_t> retries) {
  actors::Call call;
  call.retries = retries;
  call.actor = id_of<ActorId>(actor);
  call.parent = key_of(parent);
  call.method = method;
  const auto use = s.use();
  Session& session = *use;
  auto futures = futures_of(session, deps);
  call.args = unwrap(make_value(session, head, buffers, refs));
  stand_alone(session, deps);
  const GilReleased release;
  std::uint64_t task = 0;
  auto result = session.calls().call(std::move(call), std::move(futures), &task);
  return Ref(std::move(result)).of_task(task);
}

void in_any_order(const PySession& s, const std::string& actor, bool any) {
  in_session(s, [&](Session& session) { session.calls().in_any_order(id_of<ActorId>(actor), any); });
}

void keep_until_answered(const PySession& s, const std::string& actor, const Ref& ref) {
  auto hold = ref.hold();
  in_session(s, [&](Session& session) { session.calls().keep_until_answered(id_of<ActorId>(actor), std::move(hold)); });
}

void cancel(const PySession& s, const Ref& ref, bool recursive, bool force) {
  unwrap(in_session(s, [&](Session& session) { return session.calls().cancel(ref.to_cancel(), {recursive, force}); }));
}

void cancel_elsewhere(const PySession& s, const std::string& id, const std::string& owner, bool recursive, bool force) {
  const auto [object, worker] = object_at(id, owner);
  unwrap(in_session(s, [&, o = object, w = worker](Session& session) { return session.objects().cancel(o, w, {recursive, force}); }));
}

bool withdraw(const PySession& s, const std::string& actor) {
  return unwrap(in_session(s, [&](Session& session) { return session.actors().withdraw(id_of<ActorId>(actor)); }));
}

void retire(const PySession& s, const std::string& worker) {
  unwrap(in_session(s, [&](Session& session) { return session.actors().retire(id_of<ActorId>(worker)); }));
}

void kill(const PySession& s, const std::string& actor, bool restart) {
  unwrap(in_session(s, [&](Session& session) { return session.actors().kill(id_of<ActorId>(actor), restart); }));
}

bool dead(const PySession& s, const std::string& actor) {
  return in_session(s, [&](Session& session) { return session.actors().dead(id_of<ActorId>(actor)); });
}

}  // namespace

void bind_calls(SessionClass& session) {
  session.def("know", &know, nb::arg("actor"), nb::arg("class_name"), "Prepares calls on an actor that another process made.")
      .def("call", &call, nb::arg("actor"), nb::arg("method"), nb::arg("head"), nb::arg("buffers"), nb::arg("deps"),
           nb::arg("refs") = nb::list(), nb::arg("parent") = nb::none(), nb::arg("retries") = nb::none(),
           "`parent`: the call of this process that makes it. `refs`: references that were pickled with its arguments. `retries`: after "
           "deaths of a process that is started again; None: as the actor's options state.")
      .def("in_any_order", &in_any_order, nb::arg("actor"), nb::arg("any"),
           "In any order, calls on the actor that wait for a reference do not hold up later ones.")
      .def("keep_until_answered", &keep_until_answered, nb::arg("actor"), nb::arg("ref"),
           "Keeps the reference's object until every call on the actor that was made by now has its answer.")
      .def("cancel", &cancel, nb::arg("ref"), nb::arg("recursive"), nb::arg("force"))
      .def("cancel_elsewhere", &cancel_elsewhere, nb::arg("id"), nb::arg("owner"), nb::arg("recursive"), nb::arg("force"),
           "As cancel, for an object that the process `owner` (a place), perhaps this one, has published.")
      .def("withdraw", &withdraw, nb::arg("actor"),
           "Kills an actor that was never placed and that no call of this process waits for. Returns True if it did.")
      .def("retire", &retire, nb::arg("worker"),
           "Kills a worker of functions that is not needed any more. The actors and objects that it made stay, as this process's.")
      .def("kill", &kill, nb::arg("actor"), nb::arg("restart") = false)
      .def("dead", &dead, nb::arg("actor"), "True if this process has the report of the actor's death.");
}

}  // namespace shoal::python
