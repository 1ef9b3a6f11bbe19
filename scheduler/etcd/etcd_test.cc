// Tests against a real etcd; a proxy plays the network's faults.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "scheduler/etcd/candidacy.h"
#include "scheduler/etcd/etcd_server.h"
#include "scheduler/etcd/store.h"

namespace shoal::scheduler::etcd {
namespace {

using namespace std::chrono_literals;

Record row(TableName table, std::uint64_t id, const std::string& text) { return {table, id, "a name", "ALIVE", Bytes::copy_of(text)}; }
Record gone(TableName table, std::uint64_t id) { return {table, id, {}, {}, {}}; }

// Forwards connections. A request may lose its answer, be kept back and sent later, or be dropped.
class Proxy {
 public:
  enum Fault { kNone, kLoseAnswer, kKeepBack, kDrop };
  explicit Proxy(std::uint16_t to) : to_(to), port_(free_port()) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const auto at = loopback(port_);
    SHOAL_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && listen(listener_, 8) == 0, "no proxy");
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    over_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  // Applies `fault` to the next requests that write.
  void next(Fault fault, int count = 1, int after = 0) {
    left_ = count;
    pass_ = after;
    fault_ = fault;
  }
  int dropped_puts() const { return dropped_puts_; }
  // Drops everything after so many writes.
  void die_after(int writes) { next(kDrop, 1 << 30, writes); }
  // Sends what was kept back, and returns its answer.
  std::string release() {
    const int server = dial();
    send(server, kept_.data(), kept_.size(), MSG_NOSIGNAL);
    const std::string answer = read_message(server);
    close(server);
    return answer;
  }
  Address address(const std::string& cluster) const { return {{"127.0.0.1:" + std::to_string(port_)}, cluster}; }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
  }
  int dial() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto at = loopback(to_);
    SHOAL_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0, "the proxy finds no etcd");
    return fd;
  }
  // Reads headers and the body; "" at the end of the connection.
  static std::string read_message(int fd) {
    std::string out;
    char buffer[65536];
    for (;;) {
      const auto headers = out.find("\r\n\r\n");
      if (headers != std::string::npos) {
        const auto at = out.find("Content-Length: ");
        if (out.substr(0, headers).find("chunked") != std::string::npos) {
          if (out.ends_with("\r\n0\r\n\r\n")) return out;
          const auto n = recv(fd, buffer, sizeof buffer, 0);
          if (n <= 0) return "";
          out.append(buffer, static_cast<std::size_t>(n));
          continue;
        }
        const std::size_t body = at < headers ? std::strtoul(out.c_str() + at + 16, nullptr, 10) : 0;
        if (out.size() >= headers + 4 + body) return out;
      }
      const auto n = recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) return "";
      out.append(buffer, static_cast<std::size_t>(n));
    }
  }
  void run() {
    while (!over_) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      serve(client);
      close(client);
    }
  }
  void serve(int client) {
    const int server = dial();
    for (;;) {
      pollfd ready{client, POLLIN, 0};
      while (!over_ && poll(&ready, 1, 20) == 0) {
      }
      if (over_) break;
      const std::string request = read_message(client);
      if (request.empty()) break;
      const bool writes = request.find("/v3/kv/txn") != std::string::npos;
      const bool passes = writes && pass_ > 0 && pass_-- > 0;
      const Fault fault = writes && !passes && left_ > 0 ? fault_.load() : kNone;
      if (fault != kNone) --left_;
      if (fault == kDrop) {
        if (request.find("request_put") != std::string::npos) ++dropped_puts_;
        break;
      }
      if (fault == kKeepBack) {
        kept_ = request;
        break;
      }
      send(server, request.data(), request.size(), MSG_NOSIGNAL);
      const std::string answer = read_message(server);
      if (fault == kLoseAnswer) break;
      send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
    close(server);
  }

  const std::uint16_t to_, port_;
  int listener_ = -1;
  std::atomic<bool> over_ = false;
  std::atomic<Fault> fault_ = kNone;
  std::atomic<int> left_ = 0, pass_ = 0, dropped_puts_ = 0;
  std::string kept_;  // accessed only while no request is under way
  std::thread thread_;
};

// The wall clock may be set while a head leads, so this code must not read it. etcd measures leases, the steady clock their proof.
class NoWallClock final : public runtime::Clock {
 public:
  explicit NoWallClock(runtime::Loop& loop) : real_(runtime::make_real_clock(loop)) {}
  runtime::TimePoint now() const override { return real_->now(); }
  std::int64_t unix_millis() const override {
    SHOAL_CHECK(false, "the wall clock is asked for");
    return 0;
  }
  runtime::Timer after(runtime::Duration delay, std::function<void()> fn) override { return real_->after(delay, std::move(fn)); }

 private:
  const std::unique_ptr<runtime::Clock> real_;
};

class EtcdTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<EtcdServer>(); }
  static void TearDownTestSuite() { server_.reset(); }

  std::string name() const { return testing::UnitTest::GetInstance()->current_test_info()->name(); }
  Address address() const { return server_->address(name()); }

  // Wins the leader's key as a candidacy does, without a lease.
  Leadership lead(const std::string& id) {
    auto client = Client::open(address(), 60s).value();
    const std::string leader = leader_key(address());
    (void)client->txn(nlohmann::json::array(), nlohmann::json::array({erase(leader)}));
    const auto won =
        client->txn(nlohmann::json::array(),
                    nlohmann::json::array({put(leader, "{}"), put(sequence_key(address()), first_sequence(id)), range(leader)}));
    return {id, won.value().ranges[2].at(0).create_revision};
  }
  std::unique_ptr<Store> open(const Leadership& leadership, const Address& at, runtime::Duration give_up = 60s,
                              runtime::Duration timeout = 60s, runtime::Duration compact_every = 1h) {
    return open_store(loop_, *clock_, runtime::make_null_log(), at, leadership,
                      {.give_up = give_up, .request_timeout = timeout, .compact_every = compact_every})
        .value();
  }
  std::unique_ptr<Store> open(const std::string& id) { return open(lead(id), address()); }

  Result<void> commit(Store& store, std::vector<Record> records) {
    std::optional<Result<void>> out;
    store.commit(records, [&](Result<void> r) { out = std::move(r); });
    while (!out) loop_.run_one(1s);
    return *out;
  }
  template <class... Rows>
  Result<void> commit_rows(Store& store, Rows... rows) {
    std::vector<Record> records;
    (records.push_back(std::move(rows)), ...);
    return commit(store, std::move(records));
  }
  std::string all(Store& store) {
    const auto records = store.load();
    if (!records) return records.error().to_string();
    std::string out;
    for (const auto& r : *records)
      out += std::string(to_string(r.table)) + "/" + std::to_string(r.id) + "=" + std::string(r.bytes.view()) + " ";
    return out;
  }
  std::size_t num_keys(const std::string& below) {
    return Client::open(address(), 60s).value()->range(address().key(below), end_of(address().key(below)), 100000).value().size();
  }
  // Sends a request that Client does not offer.
  nlohmann::json ask(const std::string& path, const nlohmann::json& body) {
    const auto reply = HttpPost::make(address().tls).value()->post(server_->url() + "/v3/" + path, body.dump(), 60s);
    return nlohmann::json::parse(reply.value().body);
  }
  std::int64_t revision() { return Client::open(address(), 60s).value()->txn(nlohmann::json::array(), nlohmann::json::array())->revision; }
  bool is_forgotten(std::int64_t revision) {
    const auto reply = ask("kv/range", {{"key", "YQ=="}, {"revision", std::to_string(revision)}});
    return reply.value("error", "").find("has been compacted") != std::string::npos;
  }
  // Runs the loop until `done`; the test's time limit ends a hang.
  void until(const std::function<bool()>& done) {
    while (!done()) loop_.run_one(10ms);
  }

  static std::unique_ptr<EtcdServer> server_;
  runtime::Loop loop_;
  std::unique_ptr<runtime::Clock> clock_ = std::make_unique<NoWallClock>(loop_);
};
std::unique_ptr<EtcdServer> EtcdTest::server_;

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

class CandidacyTest : public EtcdTest {
 protected:
  struct Head {
    std::optional<Leadership> leadership;
    std::string leader;
    std::vector<std::string> heads;
    bool ended = false;
    std::unique_ptr<Candidacy> candidacy;
  };
  Result<void> stand(Head& head, const std::string& endpoint, const std::string& fingerprint = "f") {
    return stand(head, endpoint, fingerprint, address(), 3);
  }
  Result<void> stand(Head& head, const std::string& endpoint, const std::string& fingerprint, const Address& at, std::int64_t ttl_s) {
    CandidacyOptions o;
    o.ttl_s = ttl_s;
    o.endpoint = endpoint;
    o.fingerprint = fingerprint;
    o.elected = [&](Leadership l) { head.leadership = std::move(l); };
    o.heads = [&](std::string leader, std::vector<std::string> heads) {
      head.leader = std::move(leader);
      head.heads = std::move(heads);
    };
    o.ended = [&] { head.ended = true; };
    SHOAL_TRY(head.candidacy, Candidacy::make(loop_, *clock_, *random_, runtime::make_null_log(), at, std::move(o)));
    return {};
  }
  const std::unique_ptr<runtime::Random> random_ = runtime::make_real_random();
};

TEST_F(CandidacyTest, OneLeadsAndTheOtherFollowsWhenItLeaves) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2"));
  until([&] { return b.leader == "h:1" && a.heads.size() == 2 && b.heads.size() == 2; });
  EXPECT_EQ(a.heads, (std::vector<std::string>{"h:1", "h:2"}));
  EXPECT_TRUE(a.candidacy->leads());
  EXPECT_FALSE(b.candidacy->leads());
  auto old = open(*a.leadership, address());
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a")));
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  EXPECT_TRUE(b.candidacy->leads());
  EXPECT_EQ(commit_rows(*old, row(TableName::kJobs, 1, "b")).error().reason(), "Fenced");
  EXPECT_EQ(all(*open(*b.leadership, address())), "jobs/1=a ");
}

TEST_F(CandidacyTest, AFollowerContinuesAfterACompaction) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  auto old = open(*a.leadership, address(), 60s, 60s, 10ms);
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a")));
  const auto before = revision();
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "b")));
  until([&] { return is_forgotten(before); });
  until([&] { return a.heads.size() == 2 && b.heads.size() == 2; });
  EXPECT_TRUE(a.candidacy->leads());
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  auto next = open(*b.leadership, address());
  EXPECT_EQ(all(*next), "jobs/1=b ");
  EXPECT_TRUE(commit_rows(*next, row(TableName::kJobs, 1, "c")));
}

// A leads throughout the test. B loses its lease while etcd takes no puts from it, so its registration fails at least once.
class RegistrationTest : public CandidacyTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(stand(a_, "h:1", "f", address(), 600));
    until([&] { return a_.leadership.has_value(); });
    ASSERT_TRUE(stand(b_, "h:2", "f", proxy_.address(name()), 600));
    until([&] { return a_.heads.size() == 2 && b_.heads.size() == 2 && b_.leader == "h:1"; });
    proxy_.die_after(0);
    const auto leader = Client::open(address(), 60s).value()->range(leader_key(address()), leader_key(address()) + '\0', 1).value().at(0);
    const auto keeps = nlohmann::json::parse(leader.value)["lease"].get<std::string>();
    const auto there = ask("lease/leases", nlohmann::json::object());
    for (const auto& lease : there.at("leases")) {
      if (lease["ID"] != keeps) (void)ask("lease/revoke", lease);
    }
    until([&] { return proxy_.dropped_puts() > 0; });
    ASSERT_EQ(num_keys("heads/"), 1u);
  }
  Proxy proxy_{server_->port()};
  Head a_, b_;
};

TEST_F(RegistrationTest, AHeadThatCouldNotRegisterAgainDoesSoAsSoonAsItCan) {
  proxy_.next(Proxy::kNone);
  until([&] { return num_keys("heads/") == 2 && a_.heads.size() == 2 && b_.heads.size() == 2; });
  a_.candidacy.reset();
  until([&] { return b_.leadership.has_value(); });
}

TEST_F(RegistrationTest, AnEndAnnouncedMeanwhileEndsIt) {
  (void)Client::open(address(), 60s).value()->txn(nlohmann::json::array(), nlohmann::json::array({put(address().key("ended"), "a")}));
  proxy_.next(Proxy::kNone);
  until([&] { return b_.ended; });
  EXPECT_FALSE(b_.leadership.has_value());
}

TEST_F(CandidacyTest, ACandidateWithoutItsKeyRegistersAgain) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  const auto client = Client::open(address(), 60s).value();
  const auto put_at = [&]() -> std::int64_t {
    const auto heads = client->range(address().key("heads/"), end_of(address().key("heads/")), 10).value();
    for (const auto& kv : heads) {
      if (kv.value == "h:2") return kv.create_revision;
    }
    return 0;
  };
  const auto first = put_at();
  ASSERT_NE(first, 0);
  (void)client->txn(nlohmann::json::array(), nlohmann::json::array({erase_below(address().key("heads/"))}));
  until([&] { return put_at() > first; });
}

TEST_F(CandidacyTest, AHeadWithoutAProvenLeaseDoesNotLead) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value() && a.candidacy->leads(); });
  server_->stop();
  until([&] { return !a.candidacy->leads(); });
  server_->go_on();
  ASSERT_TRUE(stand(b, "h:2"));
  until([&] { return a.candidacy->leads() || b.leadership.has_value(); });  // the lease survived, or the next head leads
  EXPECT_NE(a.candidacy->leads(), b.leadership.has_value());
}

TEST_F(CandidacyTest, AnotherTokenIsRefusedAndTheEndReachesAllHeads) {
  Head a, b, c;
  ASSERT_TRUE(stand(a, "h:1"));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2"));
  const auto refused = stand(c, "h:3", "other");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "TokenRefused");
  a.candidacy->end_cluster();
  until([&] { return b.ended; });
  EXPECT_FALSE(a.ended);
  a.candidacy.reset();
  b.candidacy.reset();
  ASSERT_TRUE(stand(c, "h:3"));  // the end does not concern a later head
  until([&] { return c.leadership.has_value(); });
  EXPECT_FALSE(c.ended);
}

TEST_F(EtcdTest, AddressesAreReadAndMistakesNamed) {
  const auto address = Address::parse("etcd://h1:2379,h2:2380/train.7", {.tls = {}, .in_clear_text = true});
  ASSERT_TRUE(address);
  EXPECT_FALSE(address->in_tls());
  EXPECT_EQ(address->servers, (std::vector<std::string>{"h1:2379", "h2:2380"}));
  EXPECT_EQ(address->text(), "etcd://h1:2379,h2:2380/train.7");
  for (const std::string wrong :
       {"etcd://h:1", "etcd://h:1/", "etcd:///x", "etcd://h/x", "etcd://h:1,/x", "etcd://h:1/a/b", "redis://h:1/x", "etcdss://h:1/x"}) {
    const auto refused = Address::parse(wrong, {.tls = {}, .in_clear_text = true});
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message().find(wrong), std::string::npos);
  }
}

TEST_F(EtcdTest, BeyondLoopbackThereIsTlsOrAnExplicitWord) {
  for (const std::string here : {"127.0.0.1:1", "127.3.2.1:1", "localhost:1", "[::1]:1", "localhost:1,127.0.0.1:2"}) {
    EXPECT_TRUE(Address::parse("etcd://" + here + "/x")) << here;
  }
  for (const std::string there :
       {"10.0.0.1:1", "db:1", "127.0.0.1:1,db:2", "127.example.com:1", "localhost.example.com:1", "[::2]:1", "0.0.0.0:1"}) {
    const auto refused = Address::parse("etcd://" + there + "/x");
    ASSERT_FALSE(refused) << there;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.error().reason(), "TlsRequired");
    EXPECT_NE(refused.error().hint().find("--store-in-clear-text"), std::string::npos);
    EXPECT_NE(refused.error().hint().find("etcds://"), std::string::npos);
    EXPECT_TRUE(Address::parse("etcd://" + there + "/x", {.tls = {}, .in_clear_text = true})) << there;
  }
  const auto tls = Address::parse("etcds://h1:2379,127.0.0.1:1/x", {.tls = {"ca", "cert", "key"}});
  ASSERT_TRUE(tls);
  EXPECT_TRUE(tls->in_tls());
  EXPECT_EQ(tls->text(), "etcds://h1:2379,127.0.0.1:1/x");
  EXPECT_EQ(tls->tls.key, "key");
  for (const TlsFiles& some : {TlsFiles{}, TlsFiles{"ca", "", ""}, TlsFiles{"", "cert", "key"}, TlsFiles{"ca", "cert", ""}}) {
    const auto refused = Address::parse("etcds://127.0.0.1:1/x", {.tls = some, .in_clear_text = true});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().hint().find("--store-cert-file"), std::string::npos);
  }
  EXPECT_FALSE(Address::parse("etcd://127.0.0.1:1/x", {.tls = {"ca", "cert", "key"}}));  // certificates would protect nothing
}

TEST_F(EtcdTest, AMissingEtcdIsNamed) {
  Address nobody{{"127.0.0.1:" + std::to_string(free_port())}, "x"};
  EXPECT_EQ(Client::open(nobody, 60s).value()->grant(3).error().code(), Code::kUnavailable);
}

// etcd with TLS, as beyond loopback.
class TlsTest : public CandidacyTest {
 protected:
  static void SetUpTestSuite() {
    certificates_ = std::make_unique<Certificates>();
    server_ = std::make_unique<EtcdServer>(certificates_.get());
  }
  static void TearDownTestSuite() {
    server_.reset();
    certificates_.reset();
  }
  Error refused(const Address& address) {
    const auto granted = Client::open(address, 60s).value()->grant(3);
    return granted ? internal("it was taken") : granted.error();
  }
  static std::unique_ptr<Certificates> certificates_;
};
std::unique_ptr<Certificates> TlsTest::certificates_;

TEST_F(TlsTest, HeadsLeadAndFollowOverTls) {
  Head a, b;
  ASSERT_TRUE(stand(a, "h:1", "f", address(), 600));
  until([&] { return a.leadership.has_value(); });
  ASSERT_TRUE(stand(b, "h:2", "f", address(), 600));
  auto old = open(*a.leadership, address(), 60s, 60s, 10ms);
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "a"), row(TableName::kGangs, 1, std::string(3'000'000, 'x'))));
  const auto before = revision();
  ASSERT_TRUE(commit_rows(*old, row(TableName::kJobs, 1, "b")));
  until([&] { return is_forgotten(before); });
  a.candidacy.reset();
  until([&] { return b.leadership.has_value(); });
  const auto records = open(*b.leadership, address())->load().value();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].bytes.view(), "b");
  EXPECT_EQ(records[1].bytes.size(), 3'000'000u);
}

TEST_F(TlsTest, AnEtcdThatAnotherAuthoritySignedIsNotBelieved) {
  auto there = address();
  there.tls.authority = certificates_->path("other.pem");
  const auto error = refused(there);
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_EQ(error.reason(), "CertificateRefused");
  EXPECT_NE(error.hint().find("--store-ca-file"), std::string::npos);
}

TEST_F(TlsTest, ACertificateForAnotherHostIsNotBelieved) {
  auto there = address();
  there.servers = {"localhost:" + std::to_string(server_->port())};
  EXPECT_EQ(refused(there).reason(), "CertificateRefused");
}

// etcd's alert may be lost, as in TLS 1.3 a request is sent before it arrives.
TEST_F(TlsTest, EtcdRefusesClientsWithoutATrustedCertificate) {
  auto there = address();
  there.tls = certificates_->files("ca", "stranger");
  const auto stranger = refused(there);
  EXPECT_EQ(stranger.code(), Code::kUnavailable);
  EXPECT_NE(stranger.hint().find("--store-cert-file"), std::string::npos);
  const auto nobody =
      HttpPost::make({certificates_->path("ca.pem"), "", ""}).value()->post(server_->url() + "/v3/lease/grant", R"({"TTL":"3"})", 60s);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), Code::kUnavailable);
  EXPECT_NE(nobody.error().hint().find("--store-cert-file"), std::string::npos);
}

TEST_F(TlsTest, ClearTextToATlsServerIsAnError) {
  auto there = address();
  there.tls = {};
  EXPECT_NE(refused(there).hint().find("etcds://"), std::string::npos);
  const EtcdServer clear;
  there.servers = clear.address("x").servers;
  there.tls = address().tls;
  const auto error = refused(there);
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_NE(error.hint().find("speaks no TLS"), std::string::npos);
}

TEST_F(TlsTest, MissingFilesAreNamed) {
  auto there = address();
  there.tls.key = certificates_->path("nowhere.key");
  const auto missing = Client::open(there, 60s);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().message().find(there.tls.key), std::string::npos);
  for (const std::string wrong : {"config", "stranger.key"}) {  // no key; another certificate's key
    there.tls.key = certificates_->path(wrong);
    EXPECT_EQ(refused(there).reason(), "CertificateRefused") << wrong;
  }
  there = address();
  there.tls.authority = certificates_->path("config");
  EXPECT_EQ(refused(there).reason(), "CertificateRefused");
}

}  // namespace
}  // namespace shoal::scheduler::etcd
