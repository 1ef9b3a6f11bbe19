#include "actors/protocol/wire/pieces.h"

#include <algorithm>

namespace shoal::actors {

using runtime::text;

Resources read_resources(capnp::List<wire::Amount>::Reader list) {
  check_size(list, 1000, "resources");
  Resources out;
  for (const auto a : list) {
    KJ_REQUIRE(a.getUnits() >= 0 && a.getUnits() <= (std::int64_t{1} << 60), "an amount out of range");
    out.set_units(text(a.getName()), a.getUnits());
  }
  return out;
}

std::vector<std::string> read_texts(capnp::List<capnp::Text>::Reader list) {
  check_size(list, kMaxList, "texts");
  std::vector<std::string> out;
  for (const auto t : list) out.push_back(text(t));
  return out;
}

void fill_texts(capnp::List<capnp::Text>::Builder builder, const std::vector<std::string>& texts) {
  for (unsigned i = 0; i < texts.size(); ++i) builder.set(i, texts[i]);
}

std::map<std::string, std::string> read_map(capnp::List<wire::Pair>::Reader list) {
  check_size(list, 10'000, "pairs");
  std::map<std::string, std::string> out;
  for (const auto p : list) out[text(p.getName())] = text(p.getValue());
  return out;
}

std::string bytes_of(capnp::Data::Reader data) {
  KJ_REQUIRE(data.size() <= GangSpec::kMaxCreationSpec, "a client's own bytes are too many");
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

namespace {

// The kernel ends arguments, variables and paths at a zero byte.
std::string text_of_process(capnp::Text::Reader given) {
  std::string out = text(given);
  KJ_REQUIRE(out.find('\0') == std::string::npos, "a zero byte in an argument, variable or path of a process");
  return out;
}

std::vector<std::string> texts_of_process(capnp::List<capnp::Text>::Reader given) {
  std::vector<std::string> out;
  check_size(given, kMaxList, "texts");
  for (const auto t : given) out.push_back(text_of_process(t));
  return out;
}

}  // namespace

void fill(wire::Launch::Builder m, const Launch& launch) {
  m.setKind(number(launch.kind));
  m.setProgram(launch.program);
  fill_texts(m.initArgv(count(launch.argv)), launch.argv);
  m.setTorch(launch.torch);
  m.setBuildId(launch.build_id);
  m.setCwd(launch.cwd);
  fill_pairs(m.initEnv(count(launch.env)), launch.env);
  fill_texts(m.initPythonPath(count(launch.python_path)), launch.python_path);
}

Launch read_launch(wire::Launch::Reader m) {
  Launch out;
  out.kind = checked<Launch::Kind>(m.getKind(), Launch::kNumKinds, "launch kind");
  out.program = text_of_process(m.getProgram());
  out.argv = texts_of_process(m.getArgv());
  out.torch = m.getTorch();
  out.build_id = text(m.getBuildId());
  out.cwd = text_of_process(m.getCwd());
  check_size(m.getEnv(), 10'000, "environment");
  for (const auto p : m.getEnv()) out.env.emplace_back(text_of_process(p.getName()), text_of_process(p.getValue()));
  out.python_path = texts_of_process(m.getPythonPath());
  return out;
}

std::vector<LabelMatch> read_labels(capnp::List<wire::LabelMatch>::Reader list) {
  check_size(list, 1000, "labels");
  std::vector<LabelMatch> out;
  for (const auto m : list) out.push_back({text(m.getLabel()), read_texts(m.getValues()), m.getNegated()});
  return out;
}

std::vector<std::vector<LabelMatch>> read_labels(capnp::List<capnp::List<wire::LabelMatch>>::Reader list) {
  check_size(list, GroupSpec::kMaxBundles, "labels of bundles");
  std::vector<std::vector<LabelMatch>> out;
  for (const auto labels : list) out.push_back(read_labels(labels));
  return out;
}

void fill(wire::Where::Builder m, const Where& where) {
  m.setGroup(where.group.value);
  m.setBundle(where.bundle);
  m.setNode(where.node.value);
  m.setSoft(where.soft);
  m.setSpread(where.spread);
  fill_labels(m.initLabels(count(where.labels)), where.labels);
  fill_labels(m.initPrefers(count(where.prefers)), where.prefers);
}

Where read_where(wire::Where::Reader m) {
  return {GroupId{m.getGroup()},      m.getBundle(), NodeId{m.getNode()}, m.getSoft(), m.getSpread(), read_labels(m.getLabels()),
          read_labels(m.getPrefers())};
}

void fill(wire::GroupRow::Builder m, const GroupRow& row) {
  m.setId(row.id.value);
  m.setJob(row.job.value);
  m.setName(row.name);
  m.setNameSpace(row.name_space);
  m.setStrategy(number(row.strategy));
  m.setState(number(row.state));
  auto bundles = m.initBundles(count(row.bundles));
  for (unsigned i = 0; i < row.bundles.size(); ++i) {
    fill_resources(bundles[i].initResources(count(row.bundles[i].all())), row.bundles[i]);
    bundles[i].setNode(row.nodes.at(i).value);
  }
  m.setPendingReason(row.pending_reason);
  fill_cause(m, row.cause);
}

GroupRow read_group(wire::GroupRow::Reader m) {
  GroupRow row;
  row.id = GroupId{m.getId()};
  row.job = JobId{m.getJob()};
  row.name = text(m.getName());
  row.name_space = text(m.getNameSpace());
  row.strategy = read_strategy(m.getStrategy());
  row.state = checked<GroupState>(m.getState(), 4, "group state");
  check_size(m.getBundles(), GroupSpec::kMaxBundles, "bundles");
  for (const auto b : m.getBundles()) {
    row.bundles.push_back(read_resources(b.getResources()));
    row.nodes.push_back(NodeId{b.getNode()});
  }
  row.pending_reason = text(m.getPendingReason());
  row.cause = read_cause(m);
  return row;
}

void fill(wire::ActorRow::Builder m, const ActorRow& row) {
  m.setId(row.id.value);
  m.setClassName(row.class_name);
  m.setState(number(row.state));
  m.setJob(row.job.value);
  m.setNode(row.node.value);
  m.setWorker(row.worker.value);
  m.setPid(row.pid);
  m.setGang(row.gang.value);
  m.setRank(row.rank);
  m.setWorldSize(row.world_size);
  m.setGeneration(row.generation);
  m.setEndpoint(row.endpoint);
  m.setPendingReason(row.pending_reason);
  fill_pairs(m.initAttributes(count(row.attributes)), row.attributes);
  fill_cause(m, row.cause);
  m.setName(row.name);
  m.setNameSpace(row.name_space);
  m.setDetached(row.detached);
  m.setMaxRestarts(row.max_restarts);
  m.setMaxTaskRetries(row.max_task_retries);
  m.setNumRestarts(row.num_restarts);
  m.setPrevious(row.previous.value);
}

ActorRow read_actor(wire::ActorRow::Reader m) {
  ActorRow row;
  row.id = ActorId{m.getId()};
  row.class_name = text(m.getClassName());
  row.state = checked<ActorState>(m.getState(), 5, "actor state");
  row.job = JobId{m.getJob()};
  row.node = NodeId{m.getNode()};
  row.worker = WorkerId{m.getWorker()};
  row.pid = m.getPid();
  row.gang = GangId{m.getGang()};
  row.rank = m.getRank();
  row.world_size = m.getWorldSize();
  row.generation = m.getGeneration();
  row.endpoint = text(m.getEndpoint());
  row.pending_reason = text(m.getPendingReason());
  row.attributes = read_map(m.getAttributes());
  row.cause = read_cause(m);
  row.name = text(m.getName());
  row.name_space = text(m.getNameSpace());
  row.detached = m.getDetached();
  row.max_restarts = m.getMaxRestarts();
  row.max_task_retries = m.getMaxTaskRetries();
  row.num_restarts = m.getNumRestarts();
  row.previous = WorkerId{m.getPrevious()};
  return row;
}

void fill(wire::NodeRow::Builder m, const NodeRow& row) {
  m.setId(row.id.value);
  m.setHost(row.host);
  m.setPid(row.pid);
  m.setState(number(row.state));
  m.setEndpoint(row.endpoint);
  fill_resources(m.initTotal(count(row.total.all())), row.total);
  fill_resources(m.initAvailable(count(row.available.all())), row.available);
  fill_pairs(m.initLabels(count(row.labels)), row.labels);
  m.setCordoned(row.cordoned);
  m.setDrainUntilUnixMs(row.drain_until_unix_ms);
}

NodeRow read_node(wire::NodeRow::Reader m) {
  NodeRow row;
  row.id = NodeId{m.getId()};
  row.host = text(m.getHost());
  row.pid = m.getPid();
  row.state = checked<NodeState>(m.getState(), 2, "node state");
  row.endpoint = text(m.getEndpoint());
  row.total = read_resources(m.getTotal());
  row.available = read_resources(m.getAvailable());
  row.labels = read_map(m.getLabels());
  row.cordoned = m.getCordoned();
  row.drain_until_unix_ms = m.getDrainUntilUnixMs();
  return row;
}

void fill(wire::WorkerRow::Builder m, const WorkerRow& row) {
  m.setId(row.id.value);
  m.setNode(row.node.value);
  m.setJob(row.job.value);
  m.setPid(row.pid);
  m.setState(number(row.state));
  m.setRole(row.role);
  m.setRank(row.rank);
  fill_cause(m, row.cause);
}

WorkerRow read_worker(wire::WorkerRow::Reader m) {
  WorkerRow row;
  row.id = WorkerId{m.getId()};
  row.node = NodeId{m.getNode()};
  row.job = JobId{m.getJob()};
  row.pid = m.getPid();
  row.state = checked<WorkerState>(m.getState(), kNumWorkerStates, "worker state");
  row.role = text(m.getRole());
  row.rank = m.getRank();
  row.cause = read_cause(m);
  return row;
}

void fill(wire::Submission::Builder m, const Submission& v) {
  m.setId(v.id);
  m.setEntrypoint(v.entrypoint);
  m.setRuntimeEnv(v.runtime_env);
  fill_pairs(m.initMetadata(count(v.metadata)), v.metadata);
}

Submission read_submission(wire::Submission::Reader m) {
  Submission v{text(m.getId()), text(m.getEntrypoint()), text(m.getRuntimeEnv()), read_map(m.getMetadata())};
  std::size_t metadata_bytes = 0;
  for (const auto& [name, value] : v.metadata) metadata_bytes += name.size() + value.size();
  KJ_REQUIRE(v.id.size() <= Submission::kMaxId && v.entrypoint.size() <= Submission::kMaxText &&
                 v.runtime_env.size() <= Submission::kMaxText && metadata_bytes <= Submission::kMaxText,
             "a submission is too long");
  return v;
}

void fill(wire::JobRow::Builder m, const JobRow& row) {
  m.setId(row.id.value);
  m.setName(row.name);
  m.setState(number(row.state));
  m.setDriverPid(row.driver_pid);
  m.setNumWorkers(row.num_workers);
  m.setStartedUnixMs(row.started_unix_ms);
  m.setEndedUnixMs(row.ended_unix_ms);
  m.setExitCode(row.exit_code);
  m.setPendingReason(row.pending_reason);
  fill_cause(m, row.cause);
  fill(m.initSubmission(), row.submission);
}

JobRow read_job(wire::JobRow::Reader m) {
  JobRow row;
  row.id = JobId{m.getId()};
  row.name = text(m.getName());
  row.state = checked<JobState>(m.getState(), 5, "job state");
  row.driver_pid = m.getDriverPid();
  row.num_workers = m.getNumWorkers();
  row.started_unix_ms = m.getStartedUnixMs();
  row.ended_unix_ms = m.getEndedUnixMs();
  row.exit_code = m.getExitCode();
  row.pending_reason = text(m.getPendingReason());
  row.cause = read_cause(m);
  row.submission = read_submission(m.getSubmission());
  return row;
}

}  // namespace shoal::actors
