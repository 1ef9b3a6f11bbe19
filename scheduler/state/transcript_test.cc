// Golden transcripts: each test compares its story with testdata/<story>.txt, line by line.
//
// After an intended change of behaviour, take the new text from the test's outputs
// (bazel-testlogs/scheduler/state/transcript_test/test.outputs).
#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/transcript_fixture.h"

namespace shoal::scheduler {
namespace {

using actors::NodeScheduling;

TEST_F(TranscriptTest, AnActorRestarts) {
  story("Two nodes join, a job makes an actor, its node dies, and the actor restarts on the other");
  const NodeId n1 = node(1, {{"CPU", 2}}), n2 = node(2, {{"CPU", 2}, {"GPU", 1}});
  const JobId train = joins("train", n2, WorkerId{9001});
  GangSpec counter = request(train, "counter", 1, {{"CPU", 1}});
  counter.max_restarts = 3;
  counter.name = "the counter";
  counter.where.node = n1;
  counter.where.soft = true;
  asks(counter, "3 restarts, named 'the counter', on n1 if possible");
  runs("w1");
  GangSpec rival = request(train, "rival", 1, {{"CPU", 1}});
  rival.name = "the counter";
  asks(rival, "of the same name");
  rival.get_if_exists = true;
  asks(rival, "or the one of that name");
  time(6s);
  time(6s, n1);
  runs("w2");
  rows();
  event("n1 joins under its old id", [&] { return state().step(NodeJoined{{n1, "host1", 1, "unix:@n", of({{"CPU", 2}}), {}}}); });

  story("An actor that dies early waits longer every time, and is dead after its last restart");
  exits("w2", 137);
  runs("w3");
  exits("w3", 137);
  time(100ms);
  runs("w4");
  exits("w4", 1);
  rows();

  story("A worker that announces its end is not restarted");
  GangSpec leaver = request(train, "leaver", 1, {});
  leaver.max_restarts = -1;
  asks(leaver, "restarts without limit");
  runs("w5");
  happens("w5 announces its end", [&] { state().step(WorkerLeaves{worker("w5")}); });
  exits("w5", 0);

  story("A start fails, because the program does not exist on the node");
  GangSpec typo = request(train, "typo", 1, {{"GPU", 1}});
  typo.max_restarts = 5;
  asks(typo, "5 restarts");
  happens("w6 is not started", [&] { state().step(WorkerNotStarted{worker("w6"), 127, not_found("no such program")}); });
  ends_as_in("restarts.txt");
}

TEST_F(TranscriptTest, AGangWaits) {
  story("A gang waits for room as a whole, is warned about, and is placed when a node joins");
  const NodeId n1 = node(1, {{"CPU", 2}});
  const JobId train = joins("train", n1, WorkerId{9001});
  asks(request(train, "wide", 4, {{"CPU", 1}}));
  const GangSpec huge = request(train, "huge", 2, {{"GPU", 8}});
  asks(huge);
  time(500ms);
  time(600ms);
  rows();
  node(2, {{"CPU", 4}});
  for (const auto* w : {"w1", "w2", "w3", "w4"}) runs(w);
  rows();

  story("A member of a gang that waits is killed, and the gang is gone");
  event("huge1 is killed", [&] { return state().step(ActorKilled{huge.actors[1].id}); });

  story("The driver ends, and its actors with it");
  happens("train's driver ends in order", [&] { state().step(DriverEnded{train}); });
  for (const auto* w : {"w1", "w2", "w3", "w4"}) exits(w, 137);
  detaches(n1, WorkerId{9001}, 0);
  rows();
  ends_as_in("gangs.txt");
}

TEST_F(TranscriptTest, AGroupIsWithdrawn) {
  story("A placement group is reserved, and actors use its bundles");
  const NodeId n1 = node(1, {{"CPU", 2}});
  node(2, {{"CPU", 2}});
  const JobId tune = joins("tune", n1, WorkerId{9001});
  actors::GroupSpec pair;
  pair.id = named(GroupId{501}, "pair");
  pair.job = tune;
  pair.strategy = actors::Strategy::kStrictSpread;
  pair.bundles = {of({{"CPU", 1}}), of({{"CPU", 1}})};
  event("tune asks for pair, two bundles on different nodes", [&] { return state().step(GroupRequested{pair}); });
  GangSpec trial = request(tune, "trial", 2, {{"CPU", 1}});
  trial.where.group = pair.id;
  asks(trial, "in pair");
  runs("w1");
  runs("w2");
  GangSpec late = request(tune, "late", 1, {{"CPU", 1}});
  late.where.group = pair.id;
  late.where.bundle = 0;
  asks(late, "in bundle 0 of pair");

  story("A node with a bundle is lost, and the bundle waits for another node");
  happens("n2 is lost", [&] { state().step(NodeLost{NodeId{2}, unavailable("its node's process ended").with_reason("NodeLost")}); });
  rows();
  node(3, {{"CPU", 2}});
  actors::GroupSpec rare = pair;
  rare.id = named(GroupId{502}, "rare");
  rare.bundles = {of({{"TPU", 1}})};
  event("tune asks for rare, a bundle with a TPU", [&] { return state().step(GroupRequested{rare}); });
  time(1s);
  rows();

  story("The group is withdrawn, and the actors in it end");
  happens("pair is removed", [&] { state().step(GroupRemoved{pair.id}); });
  rows();
  exits("w2", 137);

  story("The driver dies, and the group that waits ends with its job");
  detaches(n1, WorkerId{9001}, 137);
  rows();
  ends_as_in("groups.txt");
}

TEST_F(TranscriptTest, ANodeIsDrained) {
  story("A node is cordoned, and then drained: a restartable actor moves, another one ends with the node at the deadline");
  const NodeId n1 = node(1, {{"CPU", 2}}), n2 = node(2, {{"CPU", 2}});
  const JobId serve = joins("serve", n1, WorkerId{9001});
  GangSpec mover = request(serve, "mover", 1, {{"CPU", 1}});
  mover.where.node = n2;
  mover.where.soft = true;
  mover.max_restarts = 1;
  asks(mover, "1 restart, on n2 if possible");
  GangSpec stayer = request(serve, "stayer", 1, {{"CPU", 1}});
  stayer.where.node = n2;
  asks(stayer, "on n2");
  runs("w1");
  runs("w2");
  event("n2 is cordoned", [&] { return state().step(SchedulingSet{{n2, NodeScheduling::kCordoned, 0}}); });
  GangSpec bound = request(serve, "bound", 1, {{"CPU", 1}});
  bound.where.node = n2;
  asks(bound, "on n2");
  event("n2 is drained within 2 s", [&] { return state().step(SchedulingSet{{n2, NodeScheduling::kDraining, 2000}}); });
  exits("w1", 137);
  rows();
  time(2s);
  event("n2 is cordoned again", [&] { return state().step(SchedulingSet{{n2, NodeScheduling::kCordoned, 0}}); });
  happens("n2's process ends", [&] { state().step(NodeLost{n2, unavailable("its node's process ended").with_reason("NodeLost")}); });
  rows();
  ends_as_in("drain.txt");
}

class SubmittedTest : public TranscriptTest {
 protected:
  JobId submits(const std::string& name, std::uint32_t num_workers, const Amounts& each, bool wait = false) {
    JobId job;
    event(fmt::format("{} is submitted, with {} workers of {}", name, num_workers, of(each).to_string()), [&]() -> Result<void> {
      actors::JobSpec spec;
      spec.name = name;
      spec.num_workers = num_workers;
      spec.resources = of(each);
      spec.wait = wait;
      SHOAL_TRY(job, state().step(JobSubmitted{spec}));
      named(job, name);
      return {};
    });
    return job;
  }
};

TEST_F(SubmittedTest, JobsEnd) {
  story("A job of two ranks gets a port, one rank fails, and the other one is stopped");
  const NodeId n1 = node(1, {{"CPU", 2}});
  const JobId ranks = submits("ranks", 2, {{"CPU", 1}});
  happens("n1 is not reached", [&] { state().step(PortNotRequested{ranks}); });
  time(100ms);
  happens("n1 has a free port", [&] { state().step(PortFound{ranks, std::uint16_t{29500}}); });
  runs("w1");
  runs("w2");
  exits("w2", 1);
  exits("w1", 143);
  event("ranks is deleted", [&] { return state().step(JobDeleted{ranks}); });

  story("A job that no node can hold is refused, or waits, and is stopped");
  submits("never", 1, {{"TPU", 1}});
  const JobId patient = submits("patient", 0, {{"TPU", 1}}, true);
  time(1s);
  event("patient is stopped", [&] { return state().step(JobStopped{patient, false}); });

  story("A job is stopped while it runs, and one ends by itself");
  const JobId script = submits("script", 0, {{"CPU", 1}});
  const JobId brief = submits("brief", 0, {{"CPU", 1}});
  runs("w3");
  runs("w4");
  event("script is stopped", [&] { return state().step(JobStopped{script, false}); });
  event("script is deleted", [&] { return state().step(JobDeleted{script}); });
  runs("w3", "did not receive the signal, and reports again");
  exits("w3", 143);
  exits("w4", 0);

  story("A job has no port, and one is lost with its node");
  const JobId portless = submits("portless", 1, {{"CPU", 1}});
  happens("n1 has no free port", [&] { state().step(PortFound{portless, fail(unavailable("no port is free"))}); });
  submits("unlucky", 0, {{"CPU", 1}});
  runs("w5");
  happens("n1 is lost", [&] { state().step(NodeLost{n1, unavailable("its node's process ended").with_reason("NodeLost")}); });
  rows();
  event("brief is stopped too late", [&] { return state().step(JobStopped{brief, true}); });
  ends_as_in("jobs.txt");
}

TEST_F(TranscriptTest, ActorsMakeActors) {
  story("An actor makes a worker of functions, and that makes an actor; the retired worker hands its actor on");
  const NodeId n1 = node(1, {{"CPU", 2}});
  const JobId serve = joins("serve", n1, WorkerId{9001});
  asks(request(serve, "parent", 1, {}));
  runs("w1");
  GangSpec keeper = request(serve, "keeper", 1, {});
  keeper.actors[0].class_name = std::string(actors::kFunctionWorker) + ": step";
  keeper.creator = worker("w1");
  asks(keeper, "made by parent");
  runs("w2");
  GangSpec child = request(serve, "child", 1, {});
  child.creator = worker("w2");
  asks(child, "made by keeper");
  runs("w3");
  GangSpec alone = request(serve, "alone", 1, {});
  alone.creator = worker("w1");
  alone.detached = true;
  asks(alone, "made by parent, detached");
  runs("w4");
  event("keeper is retired", [&] { return state().step(WorkerRetired{keeper.actors[0].id}); });
  exits("w2", 137);

  story("The first actor ends, and what it made with it; the detached actor stays");
  exits("w1", 137);
  exits("w3", 137);
  rows();
  GangSpec orphan = request(serve, "orphan", 1, {});
  orphan.creator = worker("w1");
  asks(orphan, "made by parent");
  event("alone is killed", [&] { return state().step(ActorKilled{alone.actors[0].id}); });
  exits("w4", 137);
  rows();
  ends_as_in("creators.txt");
}

TEST_F(TranscriptTest, RanksHostAGang) {
  story("Ranks host the members of a gang, and one repeats its request");
  const NodeId n1 = node(1, {{"CPU", 2}});
  const JobId fsdp = joins("fsdp", n1, WorkerId{9001});
  const WorkerId rank0{9001}, rank1 = named(WorkerId{9002}, "rank 1");
  attaches(n1, rank1, fsdp, "rank 1");
  const auto hosts = [&](WorkerId rank, std::uint64_t actor, int position, int world_size) {
    const ActorId id = named(ActorId{actor}, fmt::format("shard{}", actor));
    const std::string key = fmt::format("model of {}", world_size);
    event(fmt::format("{} hosts {}, {} of {}", to_string(rank), to_string(id), position, world_size),
          [&] { return state().step(ActorHosted{{id, "ShardActor", key, position, world_size, rank, fsdp, 100, "unix:@d", {}}}); });
  };
  hosts(rank0, 701, 0, 2);
  hosts(rank1, 702, 1, 2);
  happens("shard702 sets attributes", [&] { state().step(AttributesSet{{ActorId{702}, {{"rows", "8"}}}}); });
  hosts(rank0, 701, 0, 2);
  hosts(rank0, 703, 0, 2);

  story("A hosted member is killed, and a gang that loses a member before it is complete fails");
  event("shard701 is killed", [&] { return state().step(ActorKilled{ActorId{701}}); });
  hosts(rank0, 704, 0, 3);
  hosts(rank1, 705, 1, 3);
  detaches(n1, rank1, 1);
  rows();
  ends_as_in("hosted.txt");
}

TEST_F(TranscriptTest, WorkersLendTheirCpus) {
  story("A blocked worker lends its CPUs, and gets them back unless others wait for them");
  const NodeId n1 = node(1, {{"CPU", 3}});
  const JobId small = joins("small", n1, WorkerId{9001}), large = joins("large", n1, WorkerId{9002});
  for (int i = 1; i <= 3; ++i) {
    GangSpec f = request(small, fmt::format("f{}", i), 1, {{"CPU", 1}});
    f.actors[0].class_name = actors::kFunctionWorker;
    asks(f);
    runs(fmt::format("w{}", i));
  }
  happens("w1 waits for others", [&] { state().step(WorkerBlocked{worker("w1"), true}); });
  event("w1 asks to go on", [&] { return state().step(WorkerResumes{worker("w1")}); });
  happens("w1 waits for others", [&] { state().step(WorkerBlocked{worker("w1"), true}); });
  asks(request(large, "wants2", 1, {{"CPU", 2}}));
  event("w1 asks to go on", [&] { return state().step(WorkerResumes{worker("w1")}); });
  rows();

  story("An entry that has waited for long keeps room for itself, for a time");
  time(15s);
  time(16s);
  asks(request(small, "f4", 1, {{"CPU", 1}}));
  happens("w1 goes on", [&] { state().step(WorkerBlocked{worker("w1"), false}); });
  exits("w2", 137);
  rows();
  time(11s);
  rows();
  exits("w3", 137);
  rows();
  ends_as_in("queue.txt");
}

TEST_F(SubmittedTest, HeadsAndNodesComeBack) {
  story("A node loses its connection, joins again, and reports; a worker that it does not report has ended");
  const NodeId n1 = node(1, {{"CPU", 2}}), n2 = node(2, {{"CPU", 1}});
  const JobId serve = joins("serve", n1, WorkerId{9001});
  asks(request(serve, "ended", 1, {{"CPU", 1}}));
  asks(request(serve, "unsent", 1, {{"CPU", 1}}));
  runs("w1");
  happens("w2 is not reached", [&] { state().step(WorkerNotReached{worker("w2"), unavailable("the connection broke")}); });
  happens("n1 is away", [&] { state().step(NodeAway{n1}); });
  asks(request(serve, "wants2", 1, {{"CPU", 2}}));
  rows();
  node(1, {{"CPU", 2}});
  attaches(n1, WorkerId{9001}, serve, "driver");
  time(200ms);
  rows();

  story("A head ends; the next one goes on with its rows, repeats a start, and ends a driver that does not return");
  const JobId lost = joins("lost");
  asks(request(lost, "orphan", 1, {}));
  const JobId waits = submits("waits", 2, {{"CPU", 2}}, true);
  next_head();
  rows();
  event("n1 joins again", [&] { return state().step(NodeJoined{{n1, "host1", 1, "unix:@n", of({{"CPU", 2}}), {}}}); });
  event("n2 joins again", [&] { return state().step(NodeJoined{{n2, "host2", 1, "unix:@n", of({{"CPU", 1}}), {}}}); });
  attaches(n1, WorkerId{9001}, serve, "driver");
  time(200ms);
  time(5s);
  event("waits is stopped", [&] { return state().step(JobStopped{waits, false}); });
  rows();
  ends_as_in("heads.txt");
}

}  // namespace
}  // namespace shoal::scheduler
