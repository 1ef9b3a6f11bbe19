// The format of every control message, whether each field of the schema is listed, and the texts with which malformed ones are refused.
#include <capnp/any.h>
#include <capnp/dynamic.h>

#include <cstdio>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "actors/protocol/wire/cancelling.capnp.h"
#include "actors/protocol/wire/cancelling.h"
#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/inspection.capnp.h"
#include "actors/protocol/wire/inspection.h"
#include "actors/protocol/wire/joining.capnp.h"
#include "actors/protocol/wire/joining.h"
#include "actors/protocol/wire/log_files.capnp.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/node_messages.h"
#include "actors/protocol/wire/packages.capnp.h"
#include "actors/protocol/wire/packages.h"
#include "actors/protocol/wire/run_files.capnp.h"
#include "actors/protocol/wire/run_files.h"
#include "actors/protocol/wire/task_log.h"
#include "runtime/core/golden.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {
namespace {

std::string hex_of(const Bytes& bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(bytes.data()[i]));
    out += digits;
  }
  return out;
}

Error cause() {
  return unavailable("was killed: ").because(not_found("no file").with_reason("Gone")).with_reason("Died").with_hint("h").in("a").in("b");
}
Resources amounts() { return Resources::from_amounts({{"CPU", 1}, {"GPU", 0.5}}).value(); }
Launch launch() {
  return {Launch::Kind::kNativeWorker, "/bin/prog", {"a", ""}, true, "build", "/cwd", {{"E", "1"}, {"D", ""}}, {"/x", "/y"}};
}
std::vector<LabelMatch> labels() { return {{"zone", {"a", "b"}, true}, {"kind", {}, false}}; }
Submission submission() { return {"mine", "python train.py", "{\"pip\": []}", {{"team", "a"}, {"run", "7"}}}; }

GangSpec whole_gang() {
  GangSpec v;
  v.id = GangId{1};
  v.job = JobId{2};
  v.actors = {{ActorId{3}, "Counter", amounts()}};
  v.launch = launch();
  v.where = {GroupId{4}, 5, NodeId{6}, true, true, true, labels(), {{"p", {"q"}, false}}};
  v.creator = WorkerId{7};
  v.refuse_infeasible = true;
  v.name = "name";
  v.name_space = "space";
  v.handle = std::string("h\0x", 3);
  v.get_if_exists = v.detached = true;
  v.max_restarts = 8;
  v.max_task_retries = 9;
  v.creation_spec = "spec";
  return v;
}
GroupSpec group() {
  return {GroupId{1}, JobId{2}, "name", "space", Strategy::kStrictSpread, {amounts(), {}}, {labels(), {}}, "rack", true};
}
GroupRow group_row() {
  return {GroupId{1}, JobId{2}, "name", "space", Strategy::kSpread, GroupState::kRemoved, {amounts(), {}}, {NodeId{3}, NodeId{4}},
          "why",      cause()};
}
ActorRow actor_row() {
  ActorRow v;
  v.id = ActorId{1};
  v.class_name = "Counter";
  v.state = ActorState::kRestarting;
  v.job = JobId{2};
  v.node = NodeId{3};
  v.worker = WorkerId{4};
  v.previous = WorkerId{5};
  v.pid = 6;
  v.gang = GangId{7};
  v.rank = 8;
  v.world_size = 9;
  v.generation = 10;
  v.name = "name";
  v.name_space = "space";
  v.detached = true;
  v.max_restarts = 11;
  v.max_task_retries = 12;
  v.num_restarts = 13;
  v.endpoint = "tcp:a:1";
  v.pending_reason = "why";
  v.attributes = {{"rows", "10"}, {"bytes", "20"}};
  v.cause = cause();
  return v;
}
NodeRow node_row() {
  const Resources half = Resources::from_amounts({{"CPU", 0.5}}).value();
  return {NodeId{1}, "host", 2, NodeState::kDead, "tcp:a:1", amounts(), half, {{"zone", "a"}}, true, 3};
}
WorkerRow worker_row() { return {WorkerId{1}, NodeId{2}, JobId{3}, 4, WorkerState::kStopped, "role", 5, cause()}; }
JobRow job_row() { return {JobId{1}, "name", JobState::kStopped, 2, 3, 4, 5, 6, "why", cause(), submission()}; }
ObjectRef object_ref() {
  return {ObjectId{1}, JobId{2}, 3, WorkerId{4}, {{JobId{5}, ObjectId{6}, NodeId{7}}, {JobId{8}, ObjectId{9}, {}}}, NodeId{10}};
}
std::vector<MetricFamily> metrics() {
  return {{"m", "help", MetricKind::kHistogram, {0.5, 1}, {{{{"a", "x"}, {"b", ""}}, 2.5, {1, 2, 3}}, {{}, 4, {}}}},
          {"n", "", MetricKind::kLevel, {}, {}}};
}
std::vector<ObjectReport> objects() {
  return {{JobId{1}, ObjectId{2}, 3, ObjectState::kFailed, true, 4, 5, {{WorkerId{6}, 7}, {WorkerId{8}, -9}}}};
}
ProcessReport process() {
  const TaskReport task{1, WorkerId{2}, ActorId{3}, "method", "function", TaskState::kFailed, 4, 5, "error"};
  return {WorkerId{1}, JobId{2}, 3, "role", {task, task}, objects(), 4, cause(), metrics(), 5};
}

Bytes from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return Bytes::copy_of(out);
}

// True if two messages have the same contents. One may lack fields that were added to the schema later.
bool same(const Bytes& a, const Bytes& b) {
  using Any = capnp::AnyPointer;
  return runtime::read<Any>(a, [&](Any::Reader x) { return runtime::read<Any>(b, [&](Any::Reader y) { return x == y; }); }).value_or(false);
}

class Messages {
 public:
  template <class T>
  Messages& add(const char* name, const T& value) {
    const Bytes bytes = to_bytes(value);
    EXPECT_TRUE(same(bytes, from_hex(golden_[name]))) << name << " " << hex_of(bytes);
    const auto back = from_bytes<T>(bytes);
    EXPECT_TRUE(back) << name << ": " << back.error().to_string();
    if (!back) return *this;
    EXPECT_EQ(hex_of(to_bytes(*back)), hex_of(bytes)) << name;
    return *this;
  }

  Messages() {
    std::ifstream file("actors/protocol/wire/testdata/messages.txt");
    for (std::string name, hex; file >> name >> hex;) golden_[name] = hex;
  }

 private:
  std::map<std::string, std::string> golden_;
};

// The contents are compared with messages that an earlier build wrote, so a list of fields that names the wrong field is noticed.
TEST(WireFormat, EveryMessageHasItsBytes) {
  Messages all;
  all.add("RegisterNode", RegisterNode{NodeId{1}, "host", 2, "tcp:a:1", amounts(), {{"zone", "a"}, {"rack", "b"}}})
      .add("RegisteredNode", RegisteredNode{"session", 1, {"a", "b"}})
      .add("Heads", Heads{{"a", "b"}, true})
      .add("WorkerUpdate", WorkerUpdate{WorkerId{1}, WorkerState::kExited, 2, "tcp:a:1", 3, cause(), JobId{4}, "role"})
      .add("RegisterDriver", RegisterDriver{"name", 1, JobId{2}})
      .add("RegisteredDriver", RegisteredDriver{JobId{1}, "node", "session"})
      .add("GangSpec", whole_gang())
      .add("JobSpec", JobSpec{"name", launch(), 1, amounts(), true, 2, submission()})
      .add("StopJob", StopJob{JobId{1}, true})
      .add("SetNodeScheduling", SetNodeScheduling{NodeId{1}, NodeScheduling::kDraining, 2})
      .add("JobRef", JobRef{JobId{1}})
      .add("KillActor", KillActor{ActorId{1}, true, true})
      .add("KillActor.restart", KillActor{ActorId{1}, true, false})
      .add("GetCreationSpec", GetCreationSpec{WorkerId{1}})
      .add("WorkerBlocked", WorkerBlocked{WorkerId{1}, true})
      .add("GroupSpec", group())
      .add("GroupRef", GroupRef{GroupId{1}})
      .add("GroupRow", group_row())
      .add("FindActor", FindActor{"name", "space"})
      .add("FoundActor", FoundActor{actor_row(), std::string("h\0x", 3)})
      .add("ActorRef", ActorRef{ActorId{1}})
      .add("HostActor", HostActor{ActorId{1}, "Shard", "key", 2, 3, WorkerId{4}, JobId{5}, 6, "tcp:a:1", {{"rows", "10"}}})
      .add("HostedActor", HostedActor{GangId{1}, 2, {ActorId{3}, ActorId{4}}})
      .add("SetAttributes", SetAttributes{ActorId{1}, {{"rows", "10"}, {"bytes", "20"}}})
      .add("ListRequest", ListRequest{ListRequest::What::kGroups, JobId{1}, 2})
      .add("ListReply", ListReply{{actor_row(), {}}, {node_row(), {}}, {worker_row(), {}}, {job_row(), {}}, {group_row(), {}}, 1})
      .add("ListReply.empty", ListReply{})
      .add("ClusterStatus", ClusterStatus{"session", 1, amounts(), amounts(), 2, 3, 4, 5, 6, {"p", "q"}, 7, {"s"}, 8, "store", {"h"}, true})
      .add("ActorRow", actor_row())
      .add("ActorRow.empty", ActorRow{})
      .add("JobRow", job_row())
      .add("Warning", Warning{"text"});
  all.add("StartWorker", StartWorker{WorkerId{1}, JobId{2}, launch(), 3, "label", 4, true})
      .add("StartWorker.empty", StartWorker{})
      .add("StopWorker", StopWorker{WorkerId{1}, 2, 3})
      .add("KillHosted", KillHosted{WorkerId{1}, 2, ActorId{3}, cause()})
      .add("KillHosted.empty", KillHosted{})
      .add("Attach", Attach{WorkerId{1}, JobId{2}, "role"})
      .add("Attached", Attached{NodeId{1}, JobId{2}, "head", "session", "host", WorkerId{3}, 4, "spill"})
      .add("OpenArena", OpenArena{"key", 1, JobId{2}, 3, true})
      .add("OpenedArena", OpenedArena{true})
      .add("ArenaRef", ArenaRef{"key", JobId{1}})
      .add("ObjectRef", object_ref())
      .add("ObjectRef.empty", ObjectRef{})
      .add("PullObject", PullObject{object_ref(), 1, 2})
      .add("CountObjects",
           CountObjects{{{{JobId{1}, ObjectId{2}, NodeId{3}}, WorkerId{4}, -5, NodeId{6}, CountObjects::Change::Kind::kGone}, {}}, 7})
      .add("MeetNode", MeetNode{NodeId{1}, NodeId{2}})
      .add("NodeRef", NodeRef{NodeId{1}})
      .add("NodeGone", NodeGone{NodeId{1}, cause()})
      .add("MakeRoom", MakeRoom{1})
      .add("LogLines", LogLines{WorkerId{1}, 2, "label", 3, 4})
      .add("FreePort", FreePort{1})
      .add("ReadLog", ReadLog{WorkerId{1}, 2, 3});
  all.add("Inspect", Inspect{Inspect::What::kMetrics})
      .add("ProcessReport", process())
      .add("ProcessReport.empty", ProcessReport{})
      .add("NodeReport", NodeReport{NodeId{1}, 2, objects(), {{"{}", 3}, {}}, {process(), {}}, 4, 5, 6, 7, metrics()})
      .add("ReportedMetrics", ReportedMetrics{metrics()})
      .add("ReadTaskLog", ReadTaskLog{{WorkerId{1}, 2, 3}, WorkerId{4}, 5})
      .add("ReadLogFile", ReadLogFile{"name", 1})
      .add("SignCertificate", SignCertificate{"request", "host"})
      .add("SignedCertificate", SignedCertificate{"certificate", true})
      .add("PackagePart", PackagePart{"name", 1, 2, std::string("d\0x", 3)})
      .add("HasPackage", HasPackage{true})
      .add("CancelResult", CancelResult{{JobId{1}, ObjectId{2}, NodeId{3}}, WorkerId{4}, false, true})
      .add("RunFiles", RunFiles{1, {{"b-17-2", "steps.0-3.jsonl", 4, 5, false}, {"b-17-2", "steps.0-1.jsonl", 0, 0, true}}});
}

// Sets every field of a message by its schema. Errors stay empty, since their texts depend on each other.
capnp::DynamicValue::Reader some(capnp::Type type, kj::StringPtr name) {
  if (type.isText()) return "a";
  if (type.isData()) return capnp::Data::Reader(reinterpret_cast<const capnp::byte*>("a"), 1);
  if (type.isBool()) return true;
  return name == "worldSize" ? 2 : 1;  // more than the rank
}
void set_all(capnp::DynamicStruct::Builder m);
void set_all(capnp::DynamicList::Builder list) {
  const auto type = list.getSchema().getElementType();
  for (unsigned i = 0; i < list.size(); ++i) {
    if (type.isStruct()) {
      set_all(list[i].as<capnp::DynamicStruct>());
    } else if (type.isList()) {
      set_all(list.init(i, 1).as<capnp::DynamicList>());
    } else {
      list.set(i, some(type, ""));
    }
  }
}
void set_all(capnp::DynamicStruct::Builder m) {
  if (m.getSchema() == capnp::Schema::from<runtime::wire::ErrorMessage>()) return;
  for (const auto field : m.getSchema().getFields()) {
    const auto type = field.getType();
    if (type.isStruct()) {
      set_all(m.init(field).as<capnp::DynamicStruct>());
    } else if (type.isList()) {
      set_all(m.init(field, type.asList().getElementType().isText() ? 2 : 1).as<capnp::DynamicList>());  // labels are pairs
    } else {
      m.set(field, some(type, field.getProto().getName()));
    }
  }
}
void expect_all(capnp::DynamicStruct::Reader m, const std::string& name) {
  if (m.getSchema() == capnp::Schema::from<runtime::wire::ErrorMessage>()) return;
  for (const auto field : m.getSchema().getFields()) {
    const std::string here = name + "." + field.getProto().getName().cStr();
    if (here == "CreateGroup.bundles.node") continue;  // only bundles of a row have nodes
    EXPECT_TRUE(m.has(field, capnp::HasMode::NON_DEFAULT)) << here << " is not in the struct's list of fields";
    if (field.getType().isStruct()) expect_all(m.get(field).as<capnp::DynamicStruct>(), here);
    if (!field.getType().isList()) continue;
    for (const auto one : m.get(field).as<capnp::DynamicList>()) {
      if (one.getType() == capnp::DynamicValue::STRUCT) expect_all(one.as<capnp::DynamicStruct>(), here);
    }
  }
}
template <class T, class Schema>
void expect_all(const char* name) {
  const auto back = from_bytes<T>(runtime::write<Schema>([](typename Schema::Builder m) { set_all(m); }));
  ASSERT_TRUE(back) << name << ": " << back.error().message();
  EXPECT_TRUE(runtime::read<Schema>(to_bytes(*back), [&](typename Schema::Reader m) { expect_all(m, name); }));
}

TEST(WireFormat, EveryFieldOfTheSchemaIsListed) {
#define SHOAL_MESSAGE(T, Schema) expect_all<T, wire::Schema>(#Schema)
#include "actors/protocol/wire/messages.inc"
  SHOAL_MESSAGE(Inspect, Inspect);
  SHOAL_MESSAGE(ProcessReport, ProcessReport);
  SHOAL_MESSAGE(NodeReport, NodeReport);
  SHOAL_MESSAGE(ReportedMetrics, ReportedMetrics);
#undef SHOAL_MESSAGE
}

// Spoils a message, and returns the text with which the receiver refuses it.
class Refusals {
 public:
  template <class T, class Spoil>
  Refusals& add(const char* name, T value, Spoil spoil) {
    spoil(value);
    const auto back = from_bytes<T>(to_bytes(value));
    EXPECT_FALSE(back) << name;
    if (back) return *this;
    EXPECT_EQ(back.error().code(), Code::kInvalidArgument) << name;
    text += std::string(name) + ": " + back.error().message() + "\n";
    return *this;
  }
  std::string text;
};

TEST(WireFormat, EveryRefusalHasItsText) {
  const std::string zero("x\0y", 3), long_text(RowBounds::kMaxText + 1, 'x'), long_bytes(GangSpec::kMaxCreationSpec + 1, 'x');
  const std::vector<std::string> many_texts((std::size_t{1} << 20) + 1);
  const auto many_resources = [] {
    Resources out;
    for (std::size_t i = 0; i <= RowBounds::kMaxResources; ++i) out.set_units(std::to_string(i), 1);
    return out;
  };
  const auto many_pairs = [] {
    std::map<std::string, std::string> out;
    for (std::size_t i = 0; i <= RowBounds::kMaxPairs; ++i) out[std::to_string(i)];
    return out;
  };
  const auto too_much = [] {
    Resources out;
    out.set_units("CPU", RowBounds::kMaxUnits + 1);
    return out;
  };
  const GangSpec a_gang = whole_gang();
  HostActor hosted;
  hosted.rank = 2;
  hosted.world_size = 3;
  Refusals all;
  all.add("worker state", WorkerUpdate{}, [](auto& v) { v.state = static_cast<WorkerState>(99); })
      .add("endpoint", WorkerUpdate{}, [&](auto& v) { v.endpoint = long_text; })
      .add("role of an update", WorkerUpdate{}, [&](auto& v) { v.role = long_text; })
      .add("driver's name", RegisterDriver{}, [&](auto& v) { v.name = long_text; })
      .add("role", Attach{}, [&](auto& v) { v.role = long_text; })
      .add("resources", RegisterNode{}, [&](auto& v) { v.resources = many_resources(); })
      .add("amount", RegisterNode{}, [&](auto& v) { v.resources = too_much(); })
      .add("labels of a node", RegisterNode{}, [&](auto& v) { v.labels = many_pairs(); })
      .add("texts", Heads{}, [&](auto& v) { v.endpoints = many_texts; })
      .add("actors", a_gang, [](auto& v) { v.actors.resize(GangSpec::kMaxActors + 1); })
      .add("two actors", a_gang, [](auto& v) { v.actors.resize(2); })
      .add("handle", a_gang, [](auto& v) { v.handle = std::string(GangSpec::kMaxHandle + 1, 'x'); })
      .add("creation spec", a_gang, [&](auto& v) { v.creation_spec = long_bytes; })
      .add("name", a_gang, [](auto& v) { v.name = std::string(GangSpec::kMaxName + 1, 'x'); })
      .add("restarts", a_gang, [](auto& v) { v.max_restarts = -2; })
      .add("retries", a_gang, [](auto& v) { v.max_task_retries = -2; })
      .add("launch kind", a_gang, [](auto& v) { v.launch.kind = static_cast<Launch::Kind>(4); })
      .add("zero byte", a_gang, [&](auto& v) { v.launch.program = zero; })
      .add("zero byte of argv", a_gang, [&](auto& v) { v.launch.argv = {zero}; })
      .add("zero byte of a variable", a_gang, [&](auto& v) { v.launch.env = {{zero, ""}}; })
      .add("argv", a_gang, [&](auto& v) { v.launch.argv = many_texts; })
      .add("environment", a_gang, [](auto& v) { v.launch.env.resize(10'001); })
      .add("labels", a_gang, [](auto& v) { v.where.labels.resize(1001); })
      .add("values of a label", a_gang, [&](auto& v) { v.where.prefers = {{"a", many_texts, false}}; })
      .add("workers of a job", JobSpec{}, [](auto& v) { v.num_workers = GangSpec::kMaxActors + 1; })
      .add("submission", JobSpec{}, [](auto& v) { v.submission.id = std::string(Submission::kMaxId + 1, 'x'); })
      .add("submission of a row", JobRow{}, [](auto& v) { v.submission.entrypoint = std::string(Submission::kMaxText + 1, 'x'); })
      .add("scheduling", SetNodeScheduling{}, [](auto& v) { v.scheduling = static_cast<NodeScheduling>(3); })
      .add("deadline", SetNodeScheduling{}, [](auto& v) { v.deadline_ms = SetNodeScheduling::kMaxDeadlineMs + 1; })
      .add("strategy", group(), [](auto& v) { v.strategy = static_cast<Strategy>(4); })
      .add("bundles", group(), [](auto& v) { v.bundles.resize(GroupSpec::kMaxBundles + 1); })
      .add("labels of bundles", group(), [](auto& v) { v.labels.resize(GroupSpec::kMaxBundles + 1); })
      .add("labels of a bundle", group(), [](auto& v) { v.labels[0].resize(1001); })
      .add("name of a group", group(), [](auto& v) { v.name_space = std::string(GangSpec::kMaxName + 1, 'x'); })
      .add("strategy of a row", GroupRow{}, [](auto& v) { v.strategy = static_cast<Strategy>(4); })
      .add("group state", GroupRow{}, [](auto& v) { v.state = static_cast<GroupState>(4); })
      .add("bundles of a row", GroupRow{},
           [](auto& v) {
             v.bundles.resize(GroupSpec::kMaxBundles + 1);
             v.nodes.resize(v.bundles.size());
           })
      .add("found actor", FoundActor{}, [&](auto& v) { v.handle = long_bytes; })
      .add("world size", hosted, [](auto& v) { v.world_size = GangSpec::kMaxActors + 1; })
      .add("no world", hosted, [](auto& v) { v.world_size = 0; })
      .add("rank", hosted, [](auto& v) { v.rank = 3; })
      .add("members", HostedActor{}, [](auto& v) { v.members.resize(GangSpec::kMaxActors + 1); })
      .add("attributes", SetAttributes{}, [&](auto& v) { v.attributes = many_pairs(); })
      .add("kind of list", ListRequest{}, [](auto& v) { v.what = static_cast<ListRequest::What>(5); })
      .add("actor state", ActorRow{}, [](auto& v) { v.state = static_cast<ActorState>(5); })
      .add("job state", JobRow{}, [](auto& v) { v.state = static_cast<JobState>(5); })
      .add("rows", ListReply{}, [](auto& v) { v.nodes = {{}, node_row()}, v.nodes[1].state = static_cast<NodeState>(2); })
      .add("worker state of a row", ListReply{},
           [](auto& v) { v.workers = {worker_row()}, v.workers[0].state = static_cast<WorkerState>(4); })
      .add("sums", ClusterStatus{}, [&](auto& v) { v.total = many_resources(); })
      .add("signal", StopWorker{}, [](auto& v) { v.signal = 32; })
      .add("launch of a worker", StartWorker{}, [&](auto& v) { v.launch.cwd = zero; })
      .add("keys", ObjectRef{}, [](auto& v) { v.contains.resize((1 << 20) + 1); })
      .add("kind of change", CountObjects{{{}}, 0}, [](auto& v) { v.changes[0].kind = static_cast<CountObjects::Change::Kind>(4); })
      .add("kind of inspection", Inspect{}, [](auto& v) { v.what = static_cast<Inspect::What>(4); })
      .add("state of a task", process(), [](auto& v) { v.tasks[1].state = static_cast<TaskState>(7); })
      .add("state of an object", process(), [](auto& v) { v.objects[0].state = static_cast<ObjectState>(3); })
      .add("metric's name", ReportedMetrics{metrics()}, [](auto& v) { v.metrics[0].name = "a b"; })
      .add("label's name", ReportedMetrics{metrics()}, [](auto& v) { v.metrics[0].samples[0].labels[0].first = ""; })
      .add("kind of metric", ReportedMetrics{metrics()}, [](auto& v) { v.metrics[0].kind = static_cast<MetricKind>(4); })
      .add("counts", ReportedMetrics{metrics()}, [](auto& v) { v.metrics[0].samples[0].counts.resize((1 << 20) + 1); })
      .add("bounds", ReportedMetrics{metrics()}, [](auto& v) { v.metrics[0].bounds.resize((1 << 20) + 1); });
  expect_golden(all.text, "actors/protocol/wire/testdata/refusals.txt");
}

}  // namespace
}  // namespace shoal::actors
