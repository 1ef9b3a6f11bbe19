// The session's requests to the head for actors, gangs and placement groups.
#include "python/native/session/rows.h"

namespace shoal::python {

using actors::Session;
using actors::Value;

namespace {

using Amounts = std::map<std::string, double>;

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

actors::Strategy strategy_of(const std::string& name) {
  for (const auto s :
       {actors::Strategy::kPack, actors::Strategy::kSpread, actors::Strategy::kStrictPack, actors::Strategy::kStrictSpread}) {
    if (name == actors::to_string(s)) return s;
  }
  throw nb::value_error("a strategy is PACK, SPREAD, STRICT_PACK or STRICT_SPREAD");
}

// Converts objects of LabelMatch (python/shoal/_actors/placement.py), which is a class of Python because it is pickled.
std::vector<actors::LabelMatch> labels_of(const nb::handle& matches) {
  std::vector<actors::LabelMatch> out;
  for (const auto m : nb::cast<nb::list>(matches)) {
    out.push_back(
        {nb::cast<std::string>(m.attr("label")), nb::cast<std::vector<std::string>>(m.attr("values")), nb::cast<bool>(m.attr("negated"))});
  }
  return out;
}

actors::Where where_of(const nb::dict& d) {
  actors::Where w;
  const auto text = [&](const char* key) { return d.contains(key) ? nb::cast<std::string>(d[key]) : std::string(); };
  const auto flag = [&](const char* key) { return d.contains(key) && nb::cast<bool>(d[key]); };
  w.group = id_of<GroupId>(text("group"));
  if (d.contains("bundle")) w.bundle = nb::cast<int>(d["bundle"]);
  w.node = id_of<NodeId>(text("node"));
  w.soft = flag("soft");
  w.at_once = flag("at_once");
  w.spread = flag("spread");
  if (d.contains("labels")) w.labels = labels_of(d["labels"]);
  if (d.contains("prefers")) w.prefers = labels_of(d["prefers"]);
  return w;
}

actors::GangSpec gang_of(Session& session, const std::string& class_name, std::size_t count, const Amounts& each, const nb::dict& launch,
                         const nb::dict& where) {
  actors::GangSpec spec;
  spec.id = session.new_id<GangId>();
  spec.job = session.identity().job;
  const auto resources = unwrap(actors::Resources::from_amounts(each));
  for (std::size_t i = 0; i < count; ++i) spec.actors.push_back({session.new_id<ActorId>(), class_name, resources});
  spec.launch = launch_of(launch);
  spec.where = where_of(where);
  return spec;
}

std::vector<std::string> create_gang(const PySession& s, const std::string& class_name, std::size_t count, const Amounts& each,
                                     const nb::dict& launch, bool refuse_infeasible, const nb::dict& where) {
  const auto use = s.use();
  actors::GangSpec spec = gang_of(*use, class_name, count, each, launch, where);
  spec.refuse_infeasible = refuse_infeasible;
  without_gil([&] { return use->actors().create_gang(spec); });
  std::vector<std::string> ids;
  for (const auto& a : spec.actors) ids.push_back(to_string(a.id));
  return ids;
}

std::optional<nb::bytes> create_actor(const PySession& s, const std::string& id, const std::string& class_name, const Amounts& resources,
                                      const nb::dict& launch, const std::string& name, const std::string& name_space,
                                      const nb::bytes& handle, bool get_if_exists, bool detached, const nb::dict& where, int max_restarts,
                                      int max_task_retries, const nb::bytes& creation_spec) {
  const auto use = s.use();
  actors::GangSpec spec = gang_of(*use, class_name, 1, resources, launch, where);
  spec.actors[0].id = id_of<ActorId>(id);
  spec.name = name;
  spec.name_space = name_space;
  spec.handle = std::string(handle.c_str(), handle.size());
  spec.get_if_exists = get_if_exists;
  spec.detached = detached;
  spec.max_restarts = max_restarts;
  spec.max_task_retries = max_task_retries;
  spec.creation_spec = std::string(creation_spec.c_str(), creation_spec.size());
  const auto exists = without_gil([&] { return use->actors().create_gang(spec); });
  if (!exists) return std::nullopt;
  return nb::bytes(exists->handle.data(), exists->handle.size());
}

nb::bytes find_actor(const PySession& s, const std::string& name, const std::string& name_space) {
  const auto found = unwrap(in_session(s, [&](Session& session) { return session.actors().find({name, name_space}); }));
  return nb::bytes(found.handle.data(), found.handle.size());
}

// The id and the creation spec of an actor that its process makes without its creator.
std::pair<std::string, nb::bytes> creation_spec(const PySession& s) {
  const auto found = unwrap(in_session(s, [](Session& session) { return session.hosting().creation_spec(); }));
  return {to_string(found.row.id), nb::bytes(found.handle.data(), found.handle.size())};
}

std::string create_group(const PySession& s, const std::vector<Amounts>& bundles, const std::string& strategy, const std::string& name,
                         const std::string& name_space, bool detached, const nb::list& labels, const std::string& together) {
  const auto use = s.use();
  actors::GroupSpec spec;
  spec.id = use->groups().new_id();
  spec.job = use->identity().job;
  spec.name = name;
  spec.name_space = name_space;
  spec.detached = detached;
  spec.together = together;
  for (const auto of_bundle : labels) spec.labels.push_back(labels_of(of_bundle));
  for (const auto& b : bundles) spec.bundles.push_back(unwrap(actors::Resources::from_amounts(b)));
  spec.strategy = strategy_of(strategy);
  without_gil([&] { return use->groups().create(spec); });
  return to_string(spec.id);
}

Ref group_ready(const PySession& s, const std::string& group, const nb::bytes& value) {
  auto v = unwrap(Value::make({span_of(value)}));
  return in_session(s, [&](Session& session) { return Ref(session.groups().ready(id_of<GroupId>(group), std::move(v))); });
}

void remove_group(const PySession& s, const std::string& group) {
  unwrap(in_session(s, [&](Session& session) { return session.groups().remove(id_of<GroupId>(group)); }));
}

nb::dict group(const PySession& s, const std::string& group) {
  return group_dict(unwrap(in_session(s, [&](Session& session) { return session.groups().row(id_of<GroupId>(group)); })));
}

nb::dict find_group(const PySession& s, const std::string& name, const std::string& name_space) {
  return group_dict(unwrap(in_session(s, [&](Session& session) { return session.groups().find({name, name_space}); })));
}

}  // namespace

void bind_placement(SessionClass& session) {
  session
      .def("create_gang", &create_gang, nb::arg("class_name"), nb::arg("count"), nb::arg("resources"), nb::arg("launch"),
           nb::arg("refuse_infeasible") = false, nb::arg("where") = nb::dict(),
           "Ids of `count` actors that are placed together or not at all, each in its own process.")
      .def(
          "new_actor_id", [](const PySession& s) { return to_string(s.use()->new_id<ActorId>()); }, "For create_actor.")
      .def("create_actor", &create_actor, nb::arg("id"), nb::arg("class_name"), nb::arg("resources"), nb::arg("launch"), nb::kw_only(),
           nb::arg("name") = "", nb::arg("name_space") = "", nb::arg("handle") = nb::bytes("", 0), nb::arg("get_if_exists") = false,
           nb::arg("detached") = false, nb::arg("where") = nb::dict(), nb::arg("max_restarts") = 0, nb::arg("max_task_retries") = 0,
           nb::arg("creation_spec") = nb::bytes("", 0),
           "Makes an actor of this id. With get_if_exists it may return the handle of the living actor of this name instead: then no actor "
           "has the id.")
      .def("find_actor", &find_actor, nb::arg("name"), nb::arg("name_space"), "The handle of the living actor of this name.")
      .def("creation_spec", &creation_spec, "(id, creation spec) of the actor that this process makes without its creator.")
      .def("create_group", &create_group, nb::arg("bundles"), nb::arg("strategy"), nb::arg("name"), nb::arg("name_space"),
           nb::arg("detached"), nb::arg("labels"), nb::arg("together"), "Id of a placement group that is, or will be, reserved.")
      .def("group_ready", &group_ready, nb::arg("group"), nb::arg("value"),
           "A reference to `value` (a pickle without buffers) that is ready when the group is.")
      .def("remove_group", &remove_group, nb::arg("group"))
      .def("group", &group, nb::arg("group"), "The head's row of a placement group.")
      .def("find_group", &find_group, nb::arg("name"), nb::arg("name_space"));
}

}  // namespace shoal::python
