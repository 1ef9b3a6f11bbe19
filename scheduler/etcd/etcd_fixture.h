// Tests against a real etcd, with stores and candidates on one loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/etcd/candidacy.h"
#include "scheduler/etcd/etcd_server.h"
#include "scheduler/etcd/store.h"

namespace shoal::scheduler::etcd {

using namespace std::chrono_literals;

inline Record row(TableName table, std::uint64_t id, const std::string& text) {
  return {table, id, "a name", "ALIVE", Bytes::copy_of(text)};
}
inline Record gone(TableName table, std::uint64_t id) { return {table, id, {}, {}, {}}; }

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

  static inline std::unique_ptr<EtcdServer> server_;
  runtime::Loop loop_;
  std::unique_ptr<runtime::Clock> clock_ = std::make_unique<NoWallClock>(loop_);
};

class CandidacyTest : public EtcdTest {
 protected:
  struct Head {
    std::optional<Leadership> leadership;
    std::string leader;
    std::vector<std::string> heads;
    bool ended = false;
    std::int64_t since = 0;
    std::unique_ptr<Candidacy> candidacy;
  };
  Result<void> stand(Head& head, const std::string& endpoint, const std::string& fingerprint = "f") {
    return stand(head, endpoint, fingerprint, address(), 3);
  }
  Result<void> stand(Head& head, const std::string& endpoint, const std::string& fingerprint, const Address& at, std::int64_t ttl_s) {
    CandidacyOptions o;
    o.ttl_s = ttl_s;
    o.since = head.since;
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

}  // namespace shoal::scheduler::etcd
