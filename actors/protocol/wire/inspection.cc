#include "actors/protocol/wire/inspection.h"

#include <sys/stat.h>

#include "actors/protocol/cluster/metric_name.h"
#include "actors/protocol/wire/inspection.capnp.h"
#include "actors/protocol/wire/pieces.h"

namespace shoal::actors {

using runtime::read;
using runtime::text;
using runtime::write;

const char* to_string(TaskState state) {
  switch (state) {
    case TaskState::kPendingArguments:
      return "PENDING_ARGS_AVAIL";
    case TaskState::kPendingPlace:
      return "PENDING_NODE_ASSIGNMENT";
    case TaskState::kSubmitted:
      return "SUBMITTED_TO_WORKER";
    case TaskState::kPendingTurn:
      return "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY";
    case TaskState::kRunning:
      return "RUNNING";
    case TaskState::kFinished:
      return "FINISHED";
    case TaskState::kFailed:
      return "FAILED";
  }
  return "?";
}

std::uint64_t which_memory(const Fd& memory) {
  struct stat known {};
  if (fstat(memory.get(), &known) != 0) return 0;
  return static_cast<std::uint64_t>(known.st_ino) ^ (static_cast<std::uint64_t>(known.st_dev) << 40);
}

namespace {

void fill(wire::TaskReport::Builder m, const TaskReport& v) {
  m.setNumber(v.number);
  m.setCaller(v.caller.value);
  m.setActor(v.actor.value);
  m.setMethod(v.method);
  m.setFunction(v.function);
  m.setState(number(v.state));
  m.setStartUnixUs(v.start_unix_us);
  m.setEndUnixUs(v.end_unix_us);
  m.setError(v.error);
}

TaskReport read_task(wire::TaskReport::Reader m) {
  return {m.getNumber(),       WorkerId{m.getCaller()}, ActorId{m.getActor()},
          text(m.getMethod()), text(m.getFunction()),   checked<TaskState>(m.getState(), 7, "state of a task"),
          m.getStartUnixUs(),  m.getEndUnixUs(),        text(m.getError())};
}

void fill(wire::ObjectReport::Builder m, const ObjectReport& v) {
  m.setJob(v.job.value);
  m.setId(v.id.value);
  m.setBytes(v.bytes);
  m.setState(number(v.state));
  m.setSpilled(v.spilled);
  m.setContained(v.contained);
  m.setMemory(v.memory);
  auto holders = m.initHolders(count(v.holders));
  for (unsigned i = 0; i < v.holders.size(); ++i) {
    holders[i].setWorker(v.holders[i].worker.value);
    holders[i].setCount(v.holders[i].count);
  }
}

ObjectReport read_object(wire::ObjectReport::Reader m) {
  ObjectReport out{JobId{m.getJob()}, ObjectId{m.getId()}, m.getBytes(),  checked<ObjectState>(m.getState(), 3, "state of an object"),
                   m.getSpilled(),    m.getContained(),    m.getMemory(), {}};
  check_size(m.getHolders(), kMaxList, "holders");
  for (const auto h : m.getHolders()) out.holders.push_back({WorkerId{h.getWorker()}, h.getCount()});
  return out;
}

void fill(wire::EnvironmentReport::Builder m, const EnvironmentReport& v) {
  m.setText(v.text);
  m.setProcesses(v.processes);
}

EnvironmentReport read_environment(wire::EnvironmentReport::Reader m) { return {text(m.getText()), m.getProcesses()}; }

void fill(wire::MetricFamily::Sample::Builder m, const MetricSample& v) {
  auto labels = m.initLabels(2 * count(v.labels));
  for (unsigned i = 0; i < v.labels.size(); ++i) {
    labels.set(2 * i, v.labels[i].first);
    labels.set(2 * i + 1, v.labels[i].second);
  }
  m.setValue(v.value);
  auto counts = m.initCounts(count(v.counts));
  for (unsigned i = 0; i < v.counts.size(); ++i) counts.set(i, v.counts[i]);
}

void fill(wire::MetricFamily::Builder m, const MetricFamily& v) {
  m.setName(v.name);
  m.setHelp(v.help);
  m.setKind(number(v.kind));
  auto bounds = m.initBounds(count(v.bounds));
  for (unsigned i = 0; i < v.bounds.size(); ++i) bounds.set(i, v.bounds[i]);
  auto samples = m.initSamples(count(v.samples));
  for (unsigned i = 0; i < v.samples.size(); ++i) fill(samples[i], v.samples[i]);
}

void fill_families(capnp::List<wire::MetricFamily>::Builder list, const std::vector<MetricFamily>& families) {
  for (unsigned i = 0; i < families.size(); ++i) fill(list[i], families[i]);
}

// Refuses an invalid name, since it would make the whole text unreadable for Prometheus.
std::string metric_name(capnp::Text::Reader name) {
  KJ_REQUIRE(is_metric_name(text(name)), "no name of a metric");
  return text(name);
}

MetricSample read_sample(wire::MetricFamily::Sample::Reader m) {
  MetricSample out;
  const auto labels = m.getLabels();
  check_size(labels, kMaxList, "labels");
  for (unsigned i = 0; i + 1 < labels.size(); i += 2) out.labels.emplace_back(metric_name(labels[i]), text(labels[i + 1]));
  out.value = m.getValue();
  check_size(m.getCounts(), kMaxList, "counts");
  for (const auto n : m.getCounts()) out.counts.push_back(n);
  return out;
}

MetricFamily read_family(wire::MetricFamily::Reader m) {
  MetricFamily out{
      metric_name(m.getName()), text(m.getHelp()), checked<MetricKind>(m.getKind(), kNumMetricKinds, "kind of metric"), {}, {}};
  check_size(m.getBounds(), kMaxList, "bounds");
  for (const auto b : m.getBounds()) out.bounds.push_back(b);
  out.samples = read_rows<MetricSample>(m.getSamples(), read_sample);
  return out;
}

void fill(wire::ProcessReport::Builder m, const ProcessReport& v) {
  m.setWorker(v.worker.value);
  m.setJob(v.job.value);
  m.setPid(v.pid);
  m.setRole(v.role);
  auto tasks = m.initTasks(count(v.tasks));
  for (unsigned i = 0; i < v.tasks.size(); ++i) fill(tasks[i], v.tasks[i]);
  auto objects = m.initObjects(count(v.objects));
  for (unsigned i = 0; i < v.objects.size(); ++i) fill(objects[i], v.objects[i]);
  m.setLeftOut(v.left_out);
  fill_cause(m, v.silent);
  fill_families(m.initMetrics(count(v.metrics)), v.metrics);
  m.setForgotten(v.forgotten);
}

ProcessReport read_process(wire::ProcessReport::Reader m) {
  return {WorkerId{m.getWorker()},
          JobId{m.getJob()},
          m.getPid(),
          text(m.getRole()),
          read_rows<TaskReport>(m.getTasks(), read_task),
          read_rows<ObjectReport>(m.getObjects(), read_object),
          m.getLeftOut(),
          read_cause(m),
          read_rows<MetricFamily>(m.getMetrics(), read_family),
          m.getForgotten()};
}

}  // namespace

Bytes to_bytes(const Inspect& v) {
  return write<wire::Inspect>([&](wire::Inspect::Builder m) { m.setWhat(number(v.what)); });
}
template <>
Result<Inspect> from_bytes(const Bytes& bytes) {
  return read<wire::Inspect>(bytes,
                             [](wire::Inspect::Reader m) { return Inspect{checked<Inspect::What>(m.getWhat(), 4, "kind of inspection")}; });
}

Bytes to_bytes(const ProcessReport& v) {
  return write<wire::ProcessReport>([&](wire::ProcessReport::Builder m) { fill(m, v); });
}
template <>
Result<ProcessReport> from_bytes(const Bytes& bytes) {
  return read<wire::ProcessReport>(bytes, read_process);
}

Bytes to_bytes(const NodeReport& v) {
  return write<wire::NodeReport>([&](wire::NodeReport::Builder m) {
    m.setNode(v.node.value);
    m.setPid(v.pid);
    auto objects = m.initObjects(count(v.objects));
    for (unsigned i = 0; i < v.objects.size(); ++i) fill(objects[i], v.objects[i]);
    auto environments = m.initEnvironments(count(v.environments));
    for (unsigned i = 0; i < v.environments.size(); ++i) fill(environments[i], v.environments[i]);
    auto processes = m.initProcesses(count(v.processes));
    for (unsigned i = 0; i < v.processes.size(); ++i) fill(processes[i], v.processes[i]);
    m.setLeftOut(v.left_out);
    m.setKeptBytes(v.kept_bytes);
    m.setSpilledBytes(v.spilled_bytes);
    m.setLimitBytes(v.limit_bytes);
    fill_families(m.initMetrics(count(v.metrics)), v.metrics);
  });
}
template <>
Result<NodeReport> from_bytes(const Bytes& bytes) {
  return read<wire::NodeReport>(bytes, [](wire::NodeReport::Reader m) {
    return NodeReport{NodeId{m.getNode()},
                      m.getPid(),
                      read_rows<ObjectReport>(m.getObjects(), read_object),
                      read_rows<EnvironmentReport>(m.getEnvironments(), read_environment),
                      read_rows<ProcessReport>(m.getProcesses(), read_process),
                      m.getLeftOut(),
                      m.getKeptBytes(),
                      m.getSpilledBytes(),
                      m.getLimitBytes(),
                      read_rows<MetricFamily>(m.getMetrics(), read_family)};
  });
}

Bytes to_bytes(const ReportedMetrics& v) {
  return write<wire::ReportedMetrics>([&](wire::ReportedMetrics::Builder m) { fill_families(m.initMetrics(count(v.metrics)), v.metrics); });
}
template <>
Result<ReportedMetrics> from_bytes(const Bytes& bytes) {
  return read<wire::ReportedMetrics>(
      bytes, [](wire::ReportedMetrics::Reader m) { return ReportedMetrics{read_rows<MetricFamily>(m.getMetrics(), read_family)}; });
}

}  // namespace shoal::actors
