#include "scheduler/head/head_fixture.h"

namespace shoal::scheduler {
namespace {

TEST_F(HeadTest, AnUnstoredDecisionIsNotPublished) {
  const JobId before = submit();
  store_.locked = true;
  std::optional<Result<runtime::Message>> during, stopped;
  call(Method::kSubmitJob, to_bytes(waiting()), during);
  call(Method::kStopJob, to_bytes(actors::StopJob{before, false}), stopped);
  world_.run_for(1s);
  EXPECT_FALSE(during || stopped);
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{before, "PENDING"}}));
  EXPECT_GT(store_.num_refused, 1);
  std::optional<Result<runtime::Message>> looked;  // the answer to a request without effect
  call(Method::kStatus, {}, looked);
  world_.run_for(10ms);
  EXPECT_TRUE(looked && *looked);
  store_.locked = false;
  world_.run_for(1s);
  ASSERT_TRUE(during && *during && stopped && *stopped);
  const JobId second = actors::from_bytes<actors::JobRef>((*during)->body)->job;
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{before, "STOPPED"}, {second, "PENDING"}}));
}

TEST_F(HeadTest, AHeadThatCannotStoreItsStateRefusesWithTheReason) {
  store_.locked = true;
  std::optional<Result<runtime::Message>> held, refused;
  call(Method::kSubmitJob, to_bytes(waiting()), held);
  world_.run_for(3s);
  call(Method::kSubmitJob, to_bytes(waiting()), refused);
  world_.run_for(10ms);
  ASSERT_TRUE(refused && !*refused);
  EXPECT_EQ(refused->error().reason(), "NotDurable");
  EXPECT_NE(refused->error().message().find("database is locked"), std::string::npos);
  ASSERT_TRUE(held && !*held);
  EXPECT_EQ(held->error().reason(), "NotDurable");
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_EQ(jobs_kept().size(), 0u);
}

// The requests came before the head had found that it cannot store, so they were decided already.
TEST_F(HeadTest, ARequestThatIsRefusedWhileItWaitsForTheStoreHasNoEffectLater) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  std::optional<Result<runtime::Message>> submitted, joined, created, grouped, stopped;
  const JobId job = submit();
  store_.locked = true;
  holds_ = true;  // records what the node is asked for
  actors::JobSpec runs = waiting();
  runs.wait = false;
  call(Method::kSubmitJob, to_bytes(runs), submitted);
  call(Method::kRegisterDriver, to_bytes(actors::RegisterDriver{}), joined);
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = job;
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  gang.max_restarts = 3;
  call(Method::kCreateGang, to_bytes(gang), created);
  actors::GroupSpec group;
  group.id = GroupId{7};
  group.job = job;
  group.bundles = {actors::Resources::from_amounts({{"CPU", 1}}).value()};
  call(Method::kCreateGroup, to_bytes(group), grouped);
  call(Method::kStopJob, to_bytes(actors::StopJob{job, false}), stopped);
  world_.run_for(3s);
  for (const auto* answer : {&submitted, &joined, &created, &grouped, &stopped}) {
    ASSERT_TRUE(*answer && !**answer);
    EXPECT_EQ((*answer)->error().reason(), "NotDurable");
  }
  EXPECT_NE(stopped->error().message().find("is done once the state can be stored"), std::string::npos);
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_TRUE(std::ranges::none_of(held_, [](const auto& asked) { return asked.first == actors::number(Method::kStartWorker); }));
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{job, "RUNNING"}}));  // until its process has ended
  EXPECT_EQ(head_->state().actor(gang.actors[0].id)->state, actors::ActorState::kDead);
  EXPECT_EQ(head_->state().group(group.id)->state, actors::GroupState::kRemoved);
  head_->state().check_invariants();
}

TEST_F(HeadTest, ARefusedRequestDoesNotGetTheRoomOfAnother) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  store_.locked = true;
  holds_ = true;  // records what the node is asked for
  actors::JobSpec runs = waiting();
  runs.resources = actors::Resources::from_amounts({{"CPU", 1}}).value();  // all of the node
  std::array<std::optional<Result<runtime::Message>>, 3> submitted;
  for (auto& answer : submitted) call(Method::kSubmitJob, to_bytes(runs), answer);
  world_.run_for(3s);
  for (const auto& answer : submitted) EXPECT_TRUE(answer && !*answer);
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_TRUE(std::ranges::none_of(held_, [](const auto& asked) { return asked.first == actors::number(Method::kStartWorker); }));
  EXPECT_TRUE(jobs_kept().empty());
  head_->state().check_invariants();
}

// The head of 20,000 callers must answer heartbeats meanwhile.
TEST_F(HeadTest, ManyRequestsAreRefusedInSeveralTurnsOfTheLoop) {
  const std::size_t most = Commits::Options().max_refused, all = 2 * most + 50;
  store_.locked = true;
  std::vector<std::optional<Result<runtime::Message>>> answers(all);
  for (auto& answer : answers) call(Method::kSubmitJob, to_bytes(waiting()), answer);
  world_.run_for(1s);
  const auto waiting_jobs = [&] { return head_->state().all_records().size(); };
  ASSERT_EQ(waiting_jobs(), all);
  ASSERT_TRUE(world_.run_until([&] { return waiting_jobs() < all; }, 5s));
  EXPECT_EQ(waiting_jobs(), all - most);
  world_.run_for(100ms);
  EXPECT_EQ(waiting_jobs(), 0u);
  for (const auto& answer : answers) EXPECT_TRUE(answer && !*answer);
}

TEST_F(HeadTest, ARepeatedRequestGetsTheAnswerOfTheFirst) {
  const JobId job = submit();
  const auto gang = [&] {
    actors::GangSpec out;
    out.id = world_.random().id<GangId>();
    out.job = job;
    out.actors.emplace_back().id = world_.random().id<ActorId>();
    return out;
  };
  const auto group = [&](std::uint64_t id) {
    actors::GroupSpec out;
    out.id = GroupId{id};
    out.job = job;
    out.bundles = {actors::Resources::from_amounts({{"CPU", 1}}).value()};
    return out;
  };
  using Answers = std::array<std::optional<Result<runtime::Message>>, 4>;
  const auto ask = [&](const actors::GangSpec& gang_spec, const actors::GroupSpec& group_spec, Answers& answers, std::size_t first) {
    call(Method::kCreateGang, to_bytes(gang_spec), answers[first]);
    call(Method::kCreateGroup, to_bytes(group_spec), answers[first + 1]);
    world_.run_for(100ms);
  };
  auto stored_gang = gang(), refused_gang = gang();
  stored_gang.name = "kept";
  const auto stored_group = group(7), refused_group = group(8);
  Answers stored, refused;
  ask(stored_gang, stored_group, stored, 0);
  store_.locked = true;
  ask(refused_gang, refused_group, refused, 0);
  ask(refused_gang, refused_group, refused, 2);
  world_.run_for(3s);
  for (const auto& answer : refused) {
    ASSERT_TRUE(answer && !*answer);
    EXPECT_EQ(answer->error().reason(), "NotDurable");
    EXPECT_EQ(answer->error().message().find("is done once"), std::string::npos) << "it was undone";
  }
  ask(stored_gang, stored_group, stored, 2);  // after a lost answer
  for (const auto& answer : stored) EXPECT_TRUE(answer && *answer);
  std::optional<Result<runtime::Message>> found;
  auto another = gang();
  another.name = "kept";
  another.get_if_exists = true;
  call(Method::kCreateGang, to_bytes(another), found);
  world_.run_for(100ms);
  EXPECT_TRUE(found && *found);
  Answers late;
  ask(refused_gang, refused_group, late, 0);
  EXPECT_TRUE(late[0] && !*late[0] && late[1] && !*late[1]);
}

TEST_F(HeadTest, HostedActorsThatWaitForTheStoreAreRefusedAndMayAskAgain) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  const JobId job = submit();
  constexpr WorkerId kWorker{8};
  node.peer->notify(actors::number(Method::kWorkerUpdate),
                    {to_bytes(actors::WorkerUpdate{kWorker, actors::WorkerState::kRunning, 77, "", 0, {}, job, "rank"}), {}, {}});
  const auto place = [&](std::uint64_t actor, std::int32_t rank, std::optional<Result<runtime::Message>>& answer) {
    actors::HostActor asked;
    asked.actor = ActorId{actor};
    asked.class_name = "ShardActor";
    asked.gang_key = "gang";
    asked.rank = rank;
    asked.world_size = 2;
    asked.worker = kWorker;
    asked.job = job;
    call(Method::kHostActor, to_bytes(asked), answer);
    world_.run_for(100ms);
  };
  std::array<std::optional<Result<runtime::Message>>, 4> answers;
  place(11, 0, answers[0]);  // stored, and waits for the other rank
  store_.locked = true;
  place(12, 1, answers[1]);
  EXPECT_FALSE(answers[0] || answers[1]);
  world_.run_for(2500ms);
  for (const auto& answer : {&answers[0], &answers[1]}) {
    ASSERT_TRUE(*answer && !**answer);
    EXPECT_EQ((*answer)->error().reason(), "NotDurable");
  }
  store_.locked = false;
  node.peer->notify(actors::number(Method::kHeartbeat), {});
  world_.run_for(500ms);
  EXPECT_EQ(head_->state().actor(ActorId{12})->state, actors::ActorState::kDead);
  place(13, 0, answers[2]);
  place(14, 1, answers[3]);
  EXPECT_TRUE(answers[2] && *answers[2] && answers[3] && *answers[3]);
  store_.locked = true;
  std::array<std::optional<Result<runtime::Message>>, 2> undone, again;
  call(Method::kSubmitJob, to_bytes(waiting()), undone[0]);
  world_.run_for(2500ms);
  place(13, 0, again[0]);  // after a lost answer
  ASSERT_TRUE(again[0] && *again[0]);
  EXPECT_TRUE((*again[0])->body.view() == (*answers[2])->body.view());
  place(15, 0, again[1]);  // a new request
  ASSERT_TRUE(again[1] && !*again[1]);
  EXPECT_EQ((*again[1]).error().reason(), "NotDurable");
  head_->state().check_invariants();
}

TEST_F(HeadTest, ARepeatedHostedActorDoesNotEndItsGangWhileTheStoreFails) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  actors::HostActor asked;
  asked.class_name = "ShardActor";
  asked.gang_key = "gang";
  asked.world_size = 2;
  asked.worker = WorkerId{8};
  asked.job = submit();
  const actors::WorkerUpdate runs{asked.worker, actors::WorkerState::kRunning, 77, "", 0, {}, asked.job, "rank"};
  node.peer->notify(actors::number(Method::kWorkerUpdate), {to_bytes(runs), {}, {}});
  const auto place = [&](std::int32_t rank, std::optional<Result<runtime::Message>>& answer) {
    asked.actor = ActorId{11u + static_cast<unsigned>(rank)};
    asked.rank = rank;
    call(Method::kHostActor, to_bytes(asked), answer);
    world_.run_for(100ms);
  };
  std::optional<Result<runtime::Message>> first, undone, again, other;
  place(0, first);  // stored, and waits for the other rank
  store_.locked = true;
  call(Method::kSubmitJob, to_bytes(waiting()), undone);
  world_.run_for(2500ms);
  place(0, again);
  ASSERT_TRUE(again && !*again);
  EXPECT_EQ(again->error().reason(), "NotDurable");
  store_.locked = false;
  node.peer->notify(actors::number(Method::kHeartbeat), {});
  world_.run_for(500ms);
  EXPECT_FALSE(first);
  place(1, other);
  EXPECT_TRUE(first && *first && other && *other);
  head_->state().check_invariants();
}

TEST_F(HeadTest, AReaderDoesNotWaitForAStoreThatFails) {
  std::optional<Result<runtime::Message>> submitted, looked, wrong;
  store_.slow = true;
  call(Method::kSubmitJob, to_bytes(waiting()), submitted);
  world_.run_for(10ms);
  call(Method::kStatus, {}, looked);
  call(Method::kStopJob, to_bytes(actors::StopJob{JobId{1}, false}), wrong);
  world_.run_for(10ms);
  EXPECT_FALSE(submitted || looked || wrong);  // the commit under way may contain what these answers would show
  store_.slow = false;
  store_.locked = true;
  store_.finish(fail(unavailable("database is locked")));
  world_.run_for(10ms);
  EXPECT_FALSE(submitted);
  EXPECT_TRUE(looked && *looked);
  ASSERT_TRUE(wrong && !*wrong);
  EXPECT_EQ(wrong->error().code(), Code::kNotFound);
  client_.reset();  // fails pending calls while the variables of their results exist
}

// If the head lost the announcement at a restart, it would take the announced end for a crash, and start the actor again.
TEST_F(HeadTest, AnAnnouncedEndIsAnsweredOnceItIsStoredAndNeverRefused) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  gang.actors[0].resources = actors::Resources::from_amounts({{"CPU", 1}}).value();
  std::optional<Result<runtime::Message>> created, held, left, left_late;
  call(Method::kCreateGang, to_bytes(gang), created);
  world_.run_for(200ms);
  ASSERT_TRUE(created && *created);
  const WorkerId worker = head_->state().actor(gang.actors[0].id)->worker;
  ASSERT_TRUE(worker);
  store_.locked = true;
  call(Method::kSubmitJob, to_bytes(waiting()), held);
  world_.run_for(300ms);
  ASSERT_GT(store_.num_refused, 0);
  call(Method::kWorkerLeaves, to_bytes(actors::GetCreationSpec{worker}), left);
  world_.run_for(2s);  // longer than refuse_after
  call(Method::kWorkerLeaves, to_bytes(actors::GetCreationSpec{worker}), left_late);
  world_.run_for(300ms);
  EXPECT_FALSE(left || left_late);
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_TRUE(left && *left && left_late && *left_late);
}

TEST_F(HeadTest, SimultaneousEventsAreCommittedTogether) {
  std::vector<std::optional<Result<runtime::Message>>> answers(20);
  store_.slow = true;
  for (auto& a : answers) call(Method::kSubmitJob, to_bytes(waiting()), a);
  world_.run_for(100ms);
  EXPECT_EQ(store_.num_commits, 1);  // the commit of the first request is under way
  for (const auto& a : answers) EXPECT_FALSE(a);
  store_.finish();
  world_.run_for(100ms);
  EXPECT_EQ(store_.num_commits, 2);  // one more commit has all other requests
  store_.finish();
  world_.run_for(100ms);
  for (const auto& a : answers) EXPECT_TRUE(a && *a);
  EXPECT_EQ(jobs_kept().size(), 20u);
}

TEST_F(HeadTest, AHeadWhoseStoreHasAnotherLeaderPublishesNoDecision) {
  store_.locked = store_.fenced = true;
  std::optional<Result<runtime::Message>> decided, looked;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(10s);
  call(Method::kStatus, {}, looked);
  world_.run_for(1s);
  EXPECT_FALSE(decided && *decided);
  ASSERT_TRUE(looked && !*looked);
  EXPECT_EQ(looked->error().reason(), "Disconnected");  // with this reason, a client repeats the request to the next head
  EXPECT_EQ(num_fenced_, 1);
  EXPECT_EQ(store_.num_commits, 1);
  client_.reset();  // fails pending calls while the variables of their results exist
}

TEST_F(HeadTest, AHeadThatCannotProveItsLeaseDecidesAndPublishesNothing) {
  const JobId before = submit();
  const int commits = store_.num_commits;
  leads_ = false;
  std::optional<Result<runtime::Message>> decided, looked;
  call(Method::kStopJob, to_bytes(actors::StopJob{before, false}), decided);
  call(Method::kStatus, {}, looked);
  world_.run_for(1s);
  ASSERT_TRUE(decided && looked);
  EXPECT_FALSE(*decided || *looked);
  EXPECT_EQ(num_fenced_, 1);
  leads_ = true;  // once fenced, a head does not lead again
  world_.run_for(1s);
  EXPECT_EQ(store_.num_commits, commits);
}

TEST_F(HeadTest, DecisionsStoredWhileTheLeaseEndedAreNotPublished) {
  store_.slow = true;
  std::optional<Result<runtime::Message>> decided;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(100ms);
  ASSERT_EQ(store_.num_commits, 1);
  leads_ = false;
  store_.finish();
  world_.run_for(1s);
  EXPECT_FALSE(decided);  // this head never answers; the next one gets the request again
  client_.reset();
}

TEST_F(HeadTest, AnEndingHeadBreaksConnectionsInsteadOfAnsweringUncommittedRequests) {
  store_.slow = true;
  std::optional<Result<runtime::Message>> decided;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(100ms);
  ASSERT_EQ(store_.num_commits, 1);
  head_.reset();
  world_.run_for(1s);
  ASSERT_TRUE(decided && !*decided);
  EXPECT_EQ(decided->error().reason(), "Disconnected");
}

// The notice of the actor's death precedes the answer, so calls made after kill() has returned fail, even if the process still runs.
TEST_F(HeadTest, AKillersDeathNoticePrecedesItsAnswer) {
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  client_->call(actors::number(Method::kCreateGang), {to_bytes(gang), {}, {}}, 5s, [](Result<runtime::Message> r) { EXPECT_TRUE(r); });
  world_.run_for(1s);
  EXPECT_TRUE(reported_.empty());  // the actor is not placed, since the cluster has no node
  bool answered = false;
  client_->call(actors::number(Method::kKillActor), {to_bytes(actors::ActorRef{gang.actors[0].id}), {}, {}}, 5s,
                [&](Result<runtime::Message> r) {
                  answered = true;
                  ASSERT_TRUE(r);
                  ASSERT_EQ(reported_.size(), 1u);
                  EXPECT_EQ(reported_[0].state, actors::ActorState::kDead);
                });
  ASSERT_TRUE(world_.run_until([&] { return answered; }, 5s));
}

// The first answer and later updates may be lost with a connection, so the repeated request gets the present state.
TEST_F(HeadTest, ARepeatedRequestForAnActorGetsItsState) {
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  std::optional<Result<runtime::Message>> created, killed, again;
  call(Method::kCreateGang, to_bytes(gang), created);
  call(Method::kKillActor, to_bytes(actors::ActorRef{gang.actors[0].id}), killed);
  world_.run_for(1s);
  ASSERT_TRUE(created && *created && killed && *killed);
  reported_.clear();
  call(Method::kCreateGang, to_bytes(gang), again);
  world_.run_for(1s);
  ASSERT_TRUE(again && *again);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_EQ(reported_[0].state, actors::ActorState::kDead);
}

TEST_F(HeadTest, AHeadServesWithoutARowThatItCannotRead) {
  const JobId lost = submit(), kept = submit();
  world_.run_for(1s);
  std::vector<Record> unreadable;
  unreadable.push_back({TableName::kJobs, lost.value, "lost", "PENDING", Bytes::copy_of("none")});
  head_.reset();
  store_.commit(unreadable, [](Result<void> r) { EXPECT_TRUE(r); });
  std::size_t reported = 0;
  auto again = options();
  again.on_set_aside = [&](const std::vector<SetAside>& rows) { reported += rows.size(); };
  head_ = std::make_unique<Head>(world_.clock(), world_.random(), *head_network_, store_, runtime::make_null_log(), std::move(again));
  ASSERT_TRUE(head_->start());
  world_.run_for(1s);
  EXPECT_EQ(reported, 1u);
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{lost, "FAILED"}, {kept, "PENDING"}}));
}

}  // namespace
}  // namespace shoal::scheduler
