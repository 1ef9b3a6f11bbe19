#include "actors/protocol/wire/head_messages.h"

#include "actors/protocol/wire/cancelling.h"
#include "actors/protocol/wire/inspection.h"
#include "actors/protocol/wire/joining.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/packages.h"
#include "actors/protocol/wire/task_log.h"

#include <random>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

GangSpec gang() {
  GangSpec g;
  g.id = GangId{7};
  g.job = JobId{9};
  g.actors = {{ActorId{1}, "Counter", Resources::from_amounts({{"CPU", 1}, {"GPU", 0.5}}).value()}, {ActorId{2}, "Counter", {}}};
  g.launch = {Launch::Kind::kPythonWorker, "/usr/bin/python3", {"a", ""}, true, "id", "/tmp", {{"A", "b"}, {"C", ""}}, {"/x"}};
  g.refuse_infeasible = true;
  g.creator = WorkerId{11};
  return g;
}

TEST(Messages, AGangArrivesAsItWasSent) {
  const auto back = from_bytes<GangSpec>(to_bytes(gang())).value();
  EXPECT_EQ(back.launch, gang().launch);
  EXPECT_EQ(back.actors.size(), 2u);
  EXPECT_EQ(back.actors[0].resources, gang().actors[0].resources);
  EXPECT_EQ(back.id, GangId{7});
  EXPECT_TRUE(back.refuse_infeasible);
  EXPECT_EQ(back.creator, WorkerId{11});
}

// A series of metrics whose labels differ behind a zero byte only would be one with another.
TEST(Messages, TextsWithZeroBytesStayDifferent) {
  const std::string a("x\0a", 3), b("x\0b", 3);
  const ReportedMetrics metrics{{{"m", "", MetricKind::kGauge, {}, {{{{"l", a}}, 1, {}}, {{{"l", b}}, 2, {}}}}}};
  EXPECT_EQ(from_bytes<ReportedMetrics>(to_bytes(metrics)).value().metrics[0].samples, metrics.metrics[0].samples);
  ActorRow row;
  row.name = a;
  row.attributes = {{a, b}};
  EXPECT_EQ(from_bytes<ActorRow>(to_bytes(row)).value().name, a);
  EXPECT_EQ(from_bytes<ActorRow>(to_bytes(row)).value().attributes, row.attributes);
}

// The kernel would end such a text at the zero byte, when the process is started with it.
TEST(Messages, AProcessIsNotLaunchedWithZeroBytes) {
  const std::string zero("x\0y", 3);
  for (const auto spoil : std::initializer_list<void (*)(Launch&, const std::string&)>{
           [](Launch& l, const std::string& t) { l.program = t; }, [](Launch& l, const std::string& t) { l.argv[0] = t; },
           [](Launch& l, const std::string& t) { l.cwd = t; }, [](Launch& l, const std::string& t) { l.env[0].first = t; },
           [](Launch& l, const std::string& t) { l.env[0].second = t; }, [](Launch& l, const std::string& t) { l.python_path[0] = t; }}) {
    GangSpec spoilt = gang();
    spoil(spoilt.launch, zero);
    const auto refused = from_bytes<GangSpec>(to_bytes(spoilt));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.error().message().find("zero byte"), std::string::npos) << refused.error().message();
  }
}

TEST(Messages, RowsCarryTheirCause) {
  ActorRow row;
  row.id = ActorId{5};
  row.state = ActorState::kDead;
  row.attributes = {{"rows", "10"}};
  row.cause = unavailable("was killed by SIGKILL").with_reason("ActorDied").in("actor A");
  ListReply reply;
  reply.actors = {row, row};
  const auto back = from_bytes<ListReply>(to_bytes(reply)).value();
  ASSERT_EQ(back.actors.size(), 2u);
  EXPECT_EQ(back.actors[1].cause->to_string(), row.cause->to_string());
  EXPECT_EQ(back.actors[1].attributes.at("rows"), "10");
  row.cause.reset();
  EXPECT_FALSE(from_bytes<ActorRow>(to_bytes(row)).value().cause);
}

TEST(Messages, ASubmissionComesBackWithItsRow) {
  JobRow row;
  row.submission = {"mine", "python train.py", "{\"pip\": []}", {{"team", "a"}, {"run", "7"}}};
  EXPECT_EQ(from_bytes<JobRow>(to_bytes(row)).value().submission, row.submission);
  JobSpec spec;
  spec.submission = row.submission;
  EXPECT_EQ(from_bytes<JobSpec>(to_bytes(spec)).value().submission, row.submission);
  spec.submission.runtime_env = std::string(Submission::kMaxText + 1, 'x');
  EXPECT_FALSE(from_bytes<JobSpec>(to_bytes(spec)));
}

TEST(Messages, ANodesDutyIsInItsRow) {
  ListReply reply;
  reply.nodes.resize(1);
  reply.nodes[0].cordoned = true;
  reply.nodes[0].drain_until_unix_ms = 77;
  const auto back = from_bytes<ListReply>(to_bytes(reply)).value().nodes[0];
  EXPECT_EQ(back.scheduling(), NodeScheduling::kDraining);
  EXPECT_EQ(back.drain_until_unix_ms, 77);
  EXPECT_FALSE(from_bytes<SetNodeScheduling>(to_bytes(SetNodeScheduling{NodeId{1}, static_cast<NodeScheduling>(3), 0})));
  EXPECT_FALSE(from_bytes<SetNodeScheduling>(
      to_bytes(SetNodeScheduling{NodeId{1}, NodeScheduling::kDraining, SetNodeScheduling::kMaxDeadlineMs + 1})));
}

TEST(Messages, AnEnumFromTheFutureIsHostile) {
  ActorRow row;
  row.state = static_cast<ActorState>(99);
  EXPECT_EQ(from_bytes<ActorRow>(to_bytes(row)).error().code(), Code::kInvalidArgument);
}

TEST(Messages, ARankOutsideItsGangIsHostile) {
  HostActor m;
  m.rank = 2;
  m.world_size = 2;
  EXPECT_FALSE(from_bytes<HostActor>(to_bytes(m)));
}

TEST(Messages, NoAlteredMessageCrashesTheReader) {
  std::mt19937 random(1);
  const Bytes good = to_bytes(gang());
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    Bytes bad = good.clone();
    for (int k = 0; k < 4; ++k) bad.data()[random() % bad.size()] = static_cast<std::byte>(random());
    refused += !from_bytes<GangSpec>(bad);
    (void)from_bytes<ListReply>(bad);
    (void)from_bytes<HostActor>(bad);
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shoal::actors
