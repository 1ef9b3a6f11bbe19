// The session's requests about its cluster and about what the head keeps for a job: rows, resources, packages, logs.
#include "python/native/session/rows.h"

namespace shoal::python {

using actors::Session;

namespace {

nb::object cause_of(const std::optional<Error>& cause) { return cause ? nb::object(nb::cast(cause->to_string())) : nb::none(); }

nb::dict dict_of(const actors::ActorRow& r) {
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
  return d;
}

nb::dict dict_of(const actors::NodeRow& r) {
  nb::dict d;
  d["id"] = to_string(r.id);
  d["host"] = r.host;
  d["state"] = actors::to_string(r.state);
  d["pid"] = r.pid;
  d["total"] = resources_dict(r.total);
  d["available"] = resources_dict(r.available);
  d["labels"] = r.labels;
  d["cordoned"] = r.scheduling() != actors::NodeScheduling::kSchedulable;
  d["draining"] = r.scheduling() == actors::NodeScheduling::kDraining;
  return d;
}

nb::dict dict_of(const actors::WorkerRow& r) {
  nb::dict d;
  d["id"] = to_string(r.id);
  d["role"] = r.role;
  d["state"] = actors::to_string(r.state);
  d["pid"] = r.pid;
  d["job"] = to_string(r.job);
  d["cause"] = cause_of(r.cause);
  return d;
}

nb::dict dict_of(const actors::JobRow& r) {
  nb::dict d;
  d["id"] = to_string(r.id);
  d["name"] = r.name;
  d["state"] = actors::to_string(r.state);
  d["exit_code"] = r.exit_code;
  d["cause"] = cause_of(r.cause);
  return d;
}

nb::list list(const PySession& s, const std::string& what) {
  using What = actors::ListRequest::What;
  const std::map<std::string, What> kinds = {
      {"actors", What::kActors}, {"nodes", What::kNodes}, {"workers", What::kWorkers}, {"jobs", What::kJobs}, {"groups", What::kGroups}};
  if (!kinds.contains(what)) throw nb::value_error("actors, nodes, workers, jobs or groups");
  const auto reply = unwrap(in_session(s, [&](Session& session) { return session.cluster().list(kinds.at(what)); }));
  nb::list out;
  for (const auto& r : reply.actors) out.append(dict_of(r));
  for (const auto& r : reply.nodes) out.append(dict_of(r));
  for (const auto& r : reply.groups) out.append(group_dict(r));
  for (const auto& r : reply.workers) out.append(dict_of(r));
  for (const auto& r : reply.jobs) out.append(dict_of(r));
  return out;
}

actors::ClusterStatus resources(const PySession& s) {
  return unwrap(in_session(s, [](Session& session) { return session.cluster().resources(); }));
}

std::pair<std::uint64_t, std::uint64_t> traffic(const PySession& s) {
  const auto frames = in_session(s, [](Session& session) { return session.traffic(); });
  return {frames.sent, frames.received};
}

bool has_package(const PySession& s, const std::string& name) {
  return unwrap(in_session(s, [&](Session& session) { return session.cluster().put_package({name, 0, 0, {}}); }));
}

bool put_package(const PySession& s, const std::string& name, std::uint64_t total, std::uint64_t offset, const nb::bytes& data) {
  const actors::PackagePart part{name, total, offset, std::string(data.c_str(), data.size())};
  return unwrap(in_session(s, [&](Session& session) { return session.cluster().put_package(part); }));
}

std::pair<std::uint64_t, nb::bytes> get_package(const PySession& s, const std::string& name, std::uint64_t offset) {
  const auto part = unwrap(in_session(s, [&](Session& session) { return session.cluster().get_package(name, offset); }));
  return {part.total, nb::bytes(part.data.data(), part.data.size())};
}

void sync_logs(const PySession& s) {
  unwrap(in_session(s, [](Session& session) { return session.logs().sync(); }));
}

void shutdown_cluster(const PySession& s) {
  unwrap(in_session(s, [](Session& session) { return session.cluster().shutdown(); }));
}

}  // namespace

nb::dict resources_dict(const actors::Resources& r) {
  nb::dict out;
  for (const auto& [name, units] : r.all()) out[nb::cast(name)] = static_cast<double>(units) / actors::Resources::kUnit;
  return out;
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

void bind_cluster(nb::module_& m, SessionClass& session) {
  using actors::ClusterStatus;
  nb::class_<ClusterStatus>(m, "ClusterResources", "Amounts by resource, and whether this job is to give some back.")
      .def_prop_ro("total", [](const ClusterStatus& c) { return resources_dict(c.total); })
      .def_prop_ro("available", [](const ClusterStatus& c) { return resources_dict(c.available); })
      .def_ro("left_out", &ClusterStatus::resources_left_out, "Number of names that both lack: nodes' own in a large cluster.")
      .def_ro("wanted_back", &ClusterStatus::wanted_back, "True if other jobs wait for what this job's workers of remote functions hold.");
  session.def("list", &list, nb::arg("what"), "The head's rows of actors, nodes, workers, jobs or groups.")
      .def("resources", &resources)
      .def("traffic", &traffic, "(sent, received): frames of all connections of this process so far.")
      .def("has_package", &has_package, nb::arg("name"), "True if the head has all of a package.")
      .def("put_package", &put_package, nb::arg("name"), nb::arg("total"), nb::arg("offset"), nb::arg("data"),
           "Leaves a part of a package with the head, in order. Returns True once the head has all of it.")
      .def("get_package", &get_package, nb::arg("name"), nb::arg("offset"), "(bytes of the whole package, the part that begins there).")
      .def("sync_logs", &sync_logs, "Prints the output of workers that was written by now.")
      .def("shutdown_cluster", &shutdown_cluster);
}

}  // namespace shoal::python
