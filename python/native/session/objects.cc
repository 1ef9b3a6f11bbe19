// Values that other processes fetch by name, and the items of calls that yield.
#include "python/native/session/objects.h"

#include "python/native/session/refs.h"

namespace shoal::python {

using actors::Session;
using actors::Streams;
using actors::Value;

namespace {

// Splits 32 hex digits into two ids; the second may be missing.
std::pair<std::string_view, std::string_view> two_ids(std::string_view hex) {
  return {hex.substr(0, 16), hex.size() > 16 ? hex.substr(16) : std::string_view()};
}

ObjectId object_id(std::string_view hex) { return id_of<ObjectId>(two_ids(hex).second); }

Ref put(const PySession& s, const nb::bytes& head, const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& refs) {
  const auto use = s.use();
  return Ref(actors::ready_future(unwrap(make_value(*use, head, buffers, refs))));
}

void publish(const PySession& s, Ref& ref, const std::string& id) {
  const auto use = s.use();
  Session& session = *use;
  stand_alone(session, {&ref});
  auto hold = [&] {
    const GilReleased release;
    return session.objects().publish(object_id(id), ref.future(), ref.to_cancel());
  }();
  ref.name({session.identity().job, object_id(id), session.identity().node}, std::move(hold));
}

void give(const PySession& s, const Ref& ref, const std::string& id) {
  in_session(s, [&](Session& session) { session.objects().give(object_id(id), ref.future()); });
}

Ref borrow(const PySession& s, const std::string& id, const std::string& owner) {
  return in_session(s, [&](Session& session) {
    const auto [object, worker] = object_at(id, owner);
    auto hold = session.objects().references().hold({object});
    return Ref(session.objects().fetch(object, worker), object, std::move(hold));
  });
}

Ref hold(const PySession& s, const std::string& id, const std::string& owner) {
  const auto use = s.use();
  const auto object = object_at(id, owner).first;
  return Ref(runtime::Promise<Value>().future(), object, use->objects().references().hold({object}));
}

Ref fetch(const PySession& s, const std::string& id, const std::string& owner) {
  return in_session(s, [&](Session& session) {
    const auto [object, worker] = object_at(id, owner);
    return Ref(session.objects().fetch(object, worker));
  });
}

void drop(const PySession& s, const std::string& id) {
  in_session(s, [&](Session& session) { session.objects().drop(object_id(id)); });
}

// Calls `does` with the streams, on the loop.
template <class Does>
auto of_streams(const PySession& s, const Does& does) {
  return in_session(s, [&](Session& session) { return session.loop().own([&] { return does(session.calls().streams()); }); });
}

Streams::Id open_stream(const PySession& s) {
  return of_streams(s, [](Streams& streams) { return streams.open(); });
}

void follow_stream(const PySession& s, Streams::Id stream, const Ref& answer) {
  of_streams(s, [&](Streams& streams) { streams.follow(stream, answer.future()); });
}

Ref next_item(const PySession& s, Streams::Id stream) {
  return of_streams(s, [&](Streams& streams) { return Ref(streams.next(stream)); });
}

void take_item(const PySession& s, Streams::Id stream) {
  of_streams(s, [&](Streams& streams) { streams.take(stream); });
}

void close_stream(const PySession& s, Streams::Id stream) {
  of_streams(s, [&](Streams& streams) { streams.close(stream); });
}

}  // namespace

std::pair<actors::ObjectKey, WorkerId> object_at(const std::string& id, const std::string& place) {
  const auto [job, object] = two_ids(id);
  const auto [worker, node] = two_ids(place);
  return {{id_of<JobId>(job), id_of<ObjectId>(object), id_of<NodeId>(node)}, id_of<WorkerId>(worker)};
}

void bind_objects(SessionClass& session) {
  session
      .def("put", &put, nb::arg("head"), nb::arg("buffers"), nb::arg("refs") = nb::list(),
           "`refs`: references that were pickled with the value.")
      .def("publish", &publish, nb::arg("ref"), nb::arg("id"),
           "Gives a value to the node, so that other processes, also of other jobs, can fetch it by this id: the job's and 16 digits. The "
           "node keeps it as long as a reference to it exists.")
      .def("give", &give, nb::arg("ref"), nb::arg("id"), "As publish, but the node keeps the value until a process drops it.")
      .def("borrow", &borrow, nb::arg("id"), nb::arg("owner"),
           "A reference to a published object, which stays as long as the reference. `owner`: the place of its owner.")
      .def("hold", &hold, nb::arg("id"), nb::arg("owner"), "As borrow, but without a request for the value: it is never ready.")
      .def(
          "pin", [](PySession& s, const Ref& ref) { s.pinned.push_back(ref.hold()); }, nb::arg("ref"),
          "Keeps the reference's object as long as this process, because its name was passed on without counting.")
      .def("fetch", &fetch, nb::arg("id"), nb::arg("owner"))
      .def("drop", &drop, nb::arg("id"), "Frees the value of this id now, or when it comes.")

      .def("open_stream", &open_stream, "A number for the items of a call that yields and that will be made next.")
      .def("follow_stream", &follow_stream, nb::arg("stream"), nb::arg("answer"), "Ends the stream's items when `answer` is ready.")
      .def("next_item", &next_item, nb::arg("stream"), "The next item. It is ready when the item is here, or the call is done without one.")
      .def("take_item", &take_item, nb::arg("stream"))
      .def("close_stream", &close_stream, nb::arg("stream"), "Drops the stream's items, here and to come.");
}

}  // namespace shoal::python
