#include "scheduler/etcd/store.h"

#include <gtest/gtest.h>

#include "scheduler/etcd/etcd_fixture.h"
#include "scheduler/etcd/etcd_proxy.h"

namespace shoal::scheduler::etcd {
namespace {

TEST_F(EtcdTest, RowsArePresentForTheNextLeader) {
  auto first = open("a");
  ASSERT_TRUE(commit_rows(*first, row(TableName::kJobs, 5, "a"), row(TableName::kNodes, ~0ull, "node"), row(TableName::kJobs, 6, "b")));
  ASSERT_TRUE(commit_rows(*first, row(TableName::kJobs, 5, std::string("c\0d", 3)), gone(TableName::kJobs, 6)));
  const auto second = open("b");
  EXPECT_EQ(all(*second), "nodes/18446744073709551615=node jobs/5=" + std::string("c\0d", 3) + " ");
  const auto records = second->load().value();
  EXPECT_EQ(records[1].name, "a name");
  EXPECT_EQ(records[1].state, "ALIVE");
}

TEST_F(EtcdTest, ACommitOfAnySizeIsOne) {
  auto store = open("a");
  std::vector<Record> many;
  for (std::uint64_t i = 0; i < 450; ++i) many.push_back(row(TableName::kActors, i, "actor"));
  many.push_back(row(TableName::kGangs, 1, std::string(3'000'000, 'x')));
  ASSERT_TRUE(commit(*store, std::move(many)));
  EXPECT_EQ(num_keys("journal"), 0u);
  EXPECT_EQ(open("b")->load().value().size(), 451u);
  store = open("c");
  EXPECT_EQ(store->load().value().at(0).bytes.size(), 3'000'000u);
  // A shorter row replaces it, then none: no part is left.
  ASSERT_TRUE(commit_rows(*store, row(TableName::kGangs, 1, "short")));
  EXPECT_EQ(store->load().value().at(0).bytes.view(), "short");
  std::vector<Record> none = {};
  for (std::uint64_t i = 0; i < 450; ++i) none.push_back(gone(TableName::kActors, i));
  none.push_back(gone(TableName::kGangs, 1));
  ASSERT_TRUE(commit(*store, std::move(none)));
  EXPECT_EQ(num_keys("rows/"), 0u);
}

TEST_F(EtcdTest, AFormerLeaderWritesNothing) {
  auto first = open("a");
  ASSERT_TRUE(commit_rows(*first, row(TableName::kJobs, 1, "first")));
  auto second = open("b");
  const auto refused = commit_rows(*first, row(TableName::kJobs, 1, "late"), row(TableName::kJobs, 2, "late"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "Fenced");
  EXPECT_EQ(first->load().error().reason(), "Fenced");
  EXPECT_EQ(all(*second), "jobs/1=first ");
}

TEST_F(EtcdTest, AnAnswerThatWasLostIsAskedFor) {
  Proxy proxy(server_->port());
  auto store = open(lead("a"), proxy.address(name()));
  proxy.next(Proxy::kLoseAnswer, 3);
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "a")));
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 2, "b")));
  EXPECT_EQ(all(*store), "jobs/1=a jobs/2=b ");
}

TEST_F(EtcdTest, AWriteThatArrivesLateChangesNothing) {
  Proxy proxy(server_->port());
  auto store = open(lead("a"), proxy.address(name()));
  proxy.next(Proxy::kKeepBack);
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "old")));  // repeated by the client
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "new")));
  EXPECT_NE(proxy.release().find("200 OK"), std::string::npos);
  EXPECT_EQ(all(*store), "jobs/1=new ");
}

TEST_F(EtcdTest, ACommitThatWasGivenUpMayHaveHappenedAndTheNextOneGoesOn) {
  Proxy proxy(server_->port());
  auto store = open(lead("a"), proxy.address(name()), 0s);
  ASSERT_EQ(all(*store), "");
  proxy.next(Proxy::kLoseAnswer, 2);  // libcurl itself repeats what it sent over a reused connection
  EXPECT_EQ(commit_rows(*store, row(TableName::kJobs, 1, "maybe")).error().code(), Code::kUnavailable);
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "again"), row(TableName::kJobs, 2, "more")));
  EXPECT_EQ(all(*store), "jobs/1=again jobs/2=more ");
}

TEST_F(EtcdTest, AMarkedJournalIsAppliedAndAnUnmarkedOneIsDropped) {
  std::vector<Record> many;
  for (std::uint64_t i = 0; i < 150; ++i) many.push_back(row(TableName::kActors, i, "actor"));
  // The head dies after each number of writes: two chunks, the mark, two chunks put in place, the end.
  for (int writes = 0; writes <= 6; ++writes) {
    Proxy proxy(server_->port());
    auto store = open(lead("a"), proxy.address(name()), 0s);
    ASSERT_EQ(all(*store), "");
    proxy.die_after(writes);
    std::vector<Record> copy;
    for (const auto& r : many) copy.push_back({r.table, r.id, r.name, r.state, r.bytes.clone()});
    EXPECT_EQ(commit(*store, std::move(copy)).has_value(), writes >= 3) << writes;
    auto next = open("b");
    EXPECT_EQ(next->load().value().size(), writes >= 3 ? 150u : 0u) << writes;
    EXPECT_EQ(num_keys("journal"), 0u);
    std::vector<Record> none;
    for (const auto& r : many) none.push_back(gone(r.table, r.id));
    ASSERT_TRUE(commit(*next, std::move(none)));
  }
}

// The head gave this commit up without knowing whether the mark that ends its journal was written (store.h).
TEST_F(EtcdTest, ACommitAfterOneThatWasGivenUpInItsJournalStandsAlone) {
  for (int writes = 0; writes <= 3; ++writes) {
    Proxy proxy(server_->port());
    auto store = open(lead("a"), proxy.address(name()), 0s);
    (void)all(*store);
    std::vector<Record> many;
    for (std::uint64_t i = 0; i < 150; ++i) many.push_back(row(TableName::kActors, i, "first"));
    proxy.next(Proxy::kLoseAnswer, 2, writes);
    EXPECT_EQ(commit(*store, std::move(many)).has_value(), writes == 3) << writes;
    many.clear();
    for (std::uint64_t i = 0; i < 150; ++i) many.push_back(i % 2 ? row(TableName::kActors, i, "second") : gone(TableName::kActors, i));
    const auto kept = commit(*store, std::move(many));
    ASSERT_TRUE(kept) << kept.error().to_string();
    const auto records = open("b")->load().value();
    EXPECT_EQ(records.size(), 75u) << writes;
    for (const auto& r : records) EXPECT_EQ(r.bytes.view(), "second");
  }
}

TEST_F(EtcdTest, EtcdThatDoesNotAnswerIsUnavailableAndThenAnswersAgain) {
  auto store = open(lead("a"), address(), 0s, 500ms);
  ASSERT_TRUE(commit_rows(*open(lead("a"), address()), row(TableName::kJobs, 1, "a")));
  server_->stop();
  EXPECT_EQ(commit_rows(*store, row(TableName::kJobs, 2, "b")).error().code(), Code::kUnavailable);
  server_->go_on();
  const auto patient = open(lead("b"), address());
  ASSERT_TRUE(commit_rows(*patient, row(TableName::kJobs, 2, "c")));
  EXPECT_EQ(all(*patient), "jobs/1=a jobs/2=c ");
}

TEST_F(EtcdTest, NothingIsLostWhenEtcdDies) {
  auto store = open("a");
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "a")));
  server_->crash();
  server_->start();
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 2, "b")));
  EXPECT_EQ(all(*store), "jobs/1=a jobs/2=b ");
}

TEST_F(EtcdTest, OldRevisionsAreCompactedAndCurrentOnesStay) {
  auto store = open(lead("a"), address(), 60s, 60s, 10ms);
  std::vector<Record> many;
  for (std::uint64_t i = 0; i < 150; ++i) many.push_back(row(TableName::kActors, i, "actor"));  // large enough for a journal
  ASSERT_TRUE(commit(*store, std::move(many)));
  const auto before = revision();
  EXPECT_FALSE(is_forgotten(before));
  ASSERT_TRUE(commit_rows(*store, row(TableName::kActors, 1, "other"), row(TableName::kJobs, 1, "a")));
  until([&] { return is_forgotten(before); });
  EXPECT_EQ(store->load().value().size(), 151u);
  // Compaction goes on after an outage of etcd.
  server_->crash();
  server_->start();
  const auto later = revision();
  ASSERT_TRUE(commit_rows(*store, row(TableName::kJobs, 1, "b")));
  until([&] { return is_forgotten(later); });
  auto next = open("b");
  const auto records = next->load().value();
  ASSERT_EQ(records.size(), 151u);
  EXPECT_EQ(records[0].bytes.view(), "b");
  EXPECT_EQ(records[2].bytes.view(), "other");
  EXPECT_EQ(commit_rows(*store, row(TableName::kJobs, 1, "late")).error().reason(), "Fenced");
  ASSERT_TRUE(commit_rows(*next, row(TableName::kJobs, 1, "c")));
}

TEST_F(EtcdTest, ARevisionThatIsForgottenMayBeForgottenAgain) {
  const auto client = Client::open(address(), 60s).value();
  (void)lead("a");
  const auto now = revision();
  EXPECT_TRUE(client->compact(now));
  EXPECT_TRUE(client->compact(now));
  EXPECT_EQ(revision(), now);
}

}  // namespace
}  // namespace shoal::scheduler::etcd
