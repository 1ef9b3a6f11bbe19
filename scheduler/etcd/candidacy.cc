#include "scheduler/etcd/candidacy.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include <fmt/format.h>

#include "runtime/core/id.h"
#include "runtime/loop/side_thread.h"
#include "runtime/process/process.h"

namespace shoal::scheduler::etcd {

using nlohmann::json;

namespace {

constexpr const char* kSchema = "1";
constexpr std::int64_t kEndedSeconds = 10;
constexpr int kMaxAnnouncements = 5;
// Timeouts of requests: before this head is registered, and from then on, while its lease may run out.
constexpr runtime::Duration kPatient = std::chrono::seconds(5), kHasty = std::chrono::seconds(1);

// Identifies the host and pid namespace in which pids are valid.
std::string host_of_pids() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

bool lives(pid_t pid, std::uint64_t started) {
  if (runtime::start_time(pid) != started) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const auto name_end = stat.rfind(')');
  const char state = name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : 'X';
  return state != 'Z' && state != 'X';
}

// A head's lease in etcd, and the time until which the head can prove it on its own clock.
struct HeadLease {
  std::int64_t id = 0;            // 0: none
  runtime::TimePoint kept{};      // when the last successful renewal was sent
  bool was_kept = true;           // the last attempt at a renewal succeeded
  std::int64_t proven_until = 0;  // end of the proof, on the steady clock

  // Extends the proof after etcd granted or renewed the lease for `ttl_s`, on a request sent at `sent`. The proof ends a tenth before the
  // lease, as clocks run at different rates.
  void prove(runtime::TimePoint sent, std::int64_t ttl_s) {
    proven_until = (sent + std::chrono::milliseconds(ttl_s * 900)).time_since_epoch().count();
  }
};

class EtcdCandidacy final : public Candidacy {
 public:
  EtcdCandidacy(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, const Address& address, CandidacyOptions options,
                std::string id, std::unique_ptr<Client> client)
      : loop_(loop),
        clock_(clock),
        log_(std::move(log)),
        address_(address),
        options_(std::move(options)),
        id_(std::move(id)),
        client_(std::move(client)),
        host_(host_of_pids()) {}
  ~EtcdCandidacy() override {
    *alive_ = false;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    woken_.notify_one();
    thread_.reset();
    if (lease_.id != 0) (void)client_->revoke(lease_.id);
  }

  Result<void> begin() {
    SHOAL_OK(agree());
    SHOAL_OK(join());
    client_->set_timeout(kHasty);
    thread_ = std::make_unique<runtime::SideThread>([this] { run(); });
    return {};
  }

  bool leads() const override { return clock_.now().time_since_epoch().count() < leads_until_; }

  Result<void> end_cluster() override {
    for (int attempt = 1;; ++attempt) {
      auto announced = announce_end();
      if (announced || attempt == kMaxAnnouncements) return announced;
    }
  }
  std::int64_t since() const override { return since_; }

 private:
  Result<void> announce_end() const {
    SHOAL_TRY(auto client, Client::open(address_, kHasty));  // a client of its own, as client_ is the thread's
    SHOAL_TRY(const auto lease, client->grant(kEndedSeconds));
    SHOAL_OK(client->txn(json::array(), json::array({put(address_.key("ended"), id_, lease)})));
    return {};
  }

  // The first head stores what all heads share; later ones compare.
  Result<void> agree() {
    json about = {{"schema", kSchema}, {"token", options_.fingerprint}};
    if (options_.data_tls) about["data"] = "tls";
    const std::string key = address_.key("about"), mine = about.dump();
    SHOAL_TRY(const TxnReply reply,
              client_->txn(json::array({if_created_at(key, 0)}), json::array({put(key, mine)}), json::array({range(key)})));
    since_ = options_.since > 0 ? std::min(options_.since, reply.revision) : reply.revision;
    if (reply.succeeded || reply.ranges[0].empty() || reply.ranges[0][0].value == mine) return {};
    const json there = json::parse(reply.ranges[0][0].value, nullptr, false);
    if (!there.is_object() || there.value("schema", "") != kSchema) {
      return fail(invalid_argument("the cluster in " + address_.text() + " was written by another version of Shoal"));
    }
    if (const bool encrypted = there.value("data", "") == "tls"; there.value("token", "") == options_.fingerprint) {
      return fail(invalid_argument(fmt::format("the heads of {} were started {} --data-tls, and this one {} it", address_.text(),
                                               encrypted ? "with" : "without", encrypted ? "without" : "with"))
                      .with_reason("DataTls")
                      .with_hint("start this head with the options of the others"));
    }
    return fail(
        invalid_argument("the heads of " + address_.text() + " have another token, or certificates of another authority")
            .with_reason("TokenRefused")
            .with_hint(
                "pass their token with --token-file and, over several hosts, their authority with --authority; or name another cluster"));
  }

  Result<void> join() {
    const auto sent = clock_.now();
    SHOAL_TRY(const auto lease, client_->grant(options_.ttl_s));
    SHOAL_OK(client_->txn(json::array(), json::array({put(address_.key("heads/" + id_), options_.endpoint, lease)})));
    lease_.id = lease;
    proven(sent, options_.ttl_s);
    return {};
  }

  void run() {
    for (;;) {
      const auto pause = round();
      std::unique_lock lock(mutex_);
      if (woken_.wait_for(lock, pause, [this] { return over_; })) return;
    }
  }

  // Returns the time until the next round.
  runtime::Duration round() {
    const auto now = clock_.now();
    if (lease_.id == 0) {
      if (const auto joined = join(); !joined) log_->warn("etcd: {}", joined.error().message());
    } else if (now - lease_.kept >= options_.keep_every || !lease_.was_kept) {
      keep_lease();
    }
    if (lease_.id != 0) read_leader();
    return leading_ ? options_.keep_every / (lease_.was_kept ? 1 : 4) : options_.check_every;
  }

  void keep_lease() {
    const auto sent = clock_.now();
    const auto left = client_->keep_alive(lease_.id);
    lease_.was_kept = left.has_value();
    if (!left) return log_->warn("etcd: {}", left.error().message());
    lease_.kept = sent;
    if (*left) return proven(sent, **left);
    log_->warn("the lease of this head is over");
    lease_.id = 0;
    if (leading_) {
      leads_until_ = 0;
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
  }

  void proven(runtime::TimePoint sent, std::int64_t ttl_s) {
    lease_.prove(sent, ttl_s);
    if (leading_) leads_until_ = lease_.proven_until;
  }

  void read_leader() {
    const auto seen = client_->txn(
        json::array(), json::array({range(leader_key(address_)), range_below(address_.key("heads/")), range(address_.key("ended"))}));
    if (!seen) return log_->warn("etcd: {}", seen.error().message());
    const auto& leaders = seen->ranges[0];
    std::vector<KeyValue> heads = seen->ranges[1];
    const auto& ended = seen->ranges[2];
    if (!leading_ && !ended.empty() && ended[0].mod_revision > since_) return post([this] { options_.ended(); });
    const auto is_mine = [&](const KeyValue& kv) { return kv.key == address_.key("heads/" + id_); };
    if (!leading_ && std::none_of(heads.begin(), heads.end(), is_mine)) {  // this head's lease is over, or a late put replaced its key
      lease_.id = 0;
      return;
    }
    const json leader = leaders.empty() ? json() : json::parse(leaders[0].value, nullptr, false);
    const auto field = [&](const char* name) {
      return leader.is_object() && leader.contains(name) && leader[name].is_string() ? leader[name].get<std::string>() : "";
    };
    std::sort(heads.begin(), heads.end(), [](const KeyValue& a, const KeyValue& b) { return a.create_revision < b.create_revision; });
    std::vector<std::string> endpoints;
    for (const auto& kv : heads) endpoints.push_back(kv.value);
    report_leader(field("endpoint"), std::move(endpoints));
    if (leading_) return;
    if (leaders.empty()) return stand();
    // This head has won already, by a request whose answer was lost.
    if (field("id") == id_ && field("lease") == std::to_string(lease_.id)) return won(leaders[0].create_revision);
    // A leader on this host whose process is dead writes no more, so its lease can be revoked at once.
    const auto number = [&](const char* name) { return std::strtoll(field(name).c_str(), nullptr, 10); };
    if (field("host") != host_ || lives(static_cast<pid_t>(number("pid")), static_cast<std::uint64_t>(number("started")))) return;
    log_->info("the head that led is dead pid={}", number("pid"));
    if (client_->revoke(number("lease"))) stand();
  }

  void stand() {
    const json me = {{"id", id_},
                     {"endpoint", options_.endpoint},
                     {"host", host_},
                     {"pid", std::to_string(getpid())},
                     {"started", std::to_string(runtime::start_time(getpid()))},
                     {"lease", std::to_string(lease_.id)}};
    const std::string leader = leader_key(address_);
    const auto reply =
        client_->txn(json::array({if_created_at(leader, 0)}),
                     json::array({put(leader, me.dump(), lease_.id), put(sequence_key(address_), first_sequence(id_)), range(leader)}));
    if (reply && reply->succeeded && !reply->ranges[2].empty()) won(reply->ranges[2][0].create_revision);
  }

  void won(std::int64_t revision) {
    leading_ = true;
    leads_until_ = lease_.proven_until;
    report_leader(options_.endpoint, heads_);
    post([this, revision] { options_.elected({id_, revision}); });
  }

  void report_leader(const std::string& leader, std::vector<std::string> heads) {
    if (leader == leader_ && heads == heads_) return;
    leader_ = leader;
    heads_ = std::move(heads);
    post([this, leader, heads = heads_] { options_.heads(leader, heads); });
  }

  void post(std::function<void()> fn) {
    loop_.post([alive = alive_, fn = std::move(fn)] {
      if (*alive) fn();
    });
  }

  runtime::Loop& loop_;
  runtime::Clock& clock_;
  const runtime::Log log_;
  const Address address_;
  const CandidacyOptions options_;
  const std::string id_;
  // Used by the thread only, once it runs:
  const std::unique_ptr<Client> client_;
  const std::string host_;
  std::int64_t since_ = 0;  // etcd's revision: an `ended` before it concerns other heads; fixed before the thread runs
  HeadLease lease_;
  bool leading_ = false;
  std::string leader_;
  std::vector<std::string> heads_;

  std::atomic<std::int64_t> leads_until_{0};  // end of the proof, on the steady clock; 0 until this head is elected
  std::mutex mutex_;
  std::condition_variable woken_;
  bool over_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // loop thread only
  std::unique_ptr<runtime::SideThread> thread_;
};

}  // namespace

Result<std::unique_ptr<Candidacy>> Candidacy::make(runtime::Loop& loop, runtime::Clock& clock, runtime::Random& random, runtime::Log log,
                                                   const Address& address, CandidacyOptions options) {
  SHOAL_TRY(auto client, Client::open(address, kPatient));
  auto out =
      std::make_unique<EtcdCandidacy>(loop, clock, std::move(log), address, std::move(options), hex(random.next()), std::move(client));
  SHOAL_OK(out->begin());
  return std::unique_ptr<Candidacy>(std::move(out));
}

}  // namespace shoal::scheduler::etcd
