#include "scheduler/cli/run/further_host.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/net/interfaces.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/run/forwarding/sender.h"
#include "scheduler/cli/run/host_part.h"
#include "scheduler/cli/run/run_signals.h"

namespace shoal::scheduler::cli {

using actors::JobRow;
using actors::Method;
using actors::NodeRow;
using std::chrono::milliseconds;

namespace {

constexpr double kFirstHostsRecordS = 5;
constexpr int kMostAttempts = 3;
constexpr const char* kOtherRun = "OtherRun";                  // the head that answers is another run's
constexpr const char* kEnds = "Ending";                        // its run has ended, or it already has a living host with this number
constexpr auto kIntervalBesideARun = std::chrono::seconds(2);  // seldom, so that a run that trains is not disturbed
constexpr auto kLastRows = std::chrono::seconds(5);

std::string own_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// The script's exit code, from the row of its job.
int code_of(const JobRow& row) { return row.state == actors::JobState::kStopped && row.exit_code == 0 ? 128 + SIGTERM : row.exit_code; }

class FurtherHost final : public HostPart {
 public:
  using HostPart::HostPart;

  int run() {
    const auto deadline = after(options_.join_timeout_s);
    for (int attempt = 1;; ++attempt) {
      const auto meeting = find_head(deadline);
      if (!meeting && end_signal != 0) return 128 + end_signal;
      if (const auto end = meeting ? std::nullopt : first_hosts_end()) return end_as(*end);
      if (!meeting) return fail_with(meeting.error(), kSubmitUnreachable, true);
      const auto begun = join(*meeting);
      if (begun) return follow();
      // The head of an earlier run may end while this host joins. Then this host tries again: this run's head comes after that one.
      const auto code = begun.error().code();
      const bool again =
          (code == Code::kUnavailable || code == Code::kDeadlineExceeded) && attempt < kMostAttempts && clock_->now() < deadline;
      if (!again || end_signal != 0 || leave_signal != 0) return fail_with(begun.error(), kSubmitOther, true);
      print(stderr, "shoal: this host tries again to join: {}\n", begun.error().message());
      abandon();
    }
  }

 private:
  Result<void> join(const Meeting& meeting) {
    if (allocation_.joins) {
      host_.folder.forget_earlier_run(number_);
      print(stderr, "shoal: this host joins the run as host {}\n", number_);
    }
    auto words = start_words();
    words.insert(words.end(), {"--address", meeting.address, "--head-absence-limit", "60"});
    const auto at = runtime::parse_endpoint(meeting.address);
    const auto own = at ? runtime::own_address_towards(at->host) : Result<std::string>(fail(at.error()));
    if (own) add_address(words, *own);
    auto env = without_secret();
    env.push_back("SHOAL_TOKEN=" + meeting.token);
    env.push_back("SHOAL_CA_FINGERPRINT=" + meeting.fingerprint);
    run_ = meeting.run;
    host_.folder.count_again(run_);
    return begin(std::move(words), std::move(env));
  }

  // Waits until the first host's head answers.
  Result<Meeting> find_head(runtime::TimePoint deadline) {
    auto next_status = after(2);
    std::string why;
    while (end_signal == 0 && leave_signal == 0) {
      std::chrono::nanoseconds interval = milliseconds(100);
      const auto meeting = has_secret() ? meeting_by_secret() : host_.folder.read_meeting();
      if (!meeting) return fail(meeting.error());
      if (!*meeting && has_secret()) {
        why = "the name of the first host, " + allocation_.leader + ", does not resolve";
      } else if (!*meeting) {
        why = "the first host has written nothing to " + host_.folder.path() +
              ", which both must share (or give both one secret, SHOAL_TOKEN_FILE)";
      } else if (const auto there = reach(**meeting); there) {
        return **meeting;
      } else if (there.error().reason() == kOtherRun || there.error().reason() == kEnds) {
        why = there.error().message();
        // Leaves out the record of that run's end, since this host has no part in that run.
        if (there.error().reason() == kOtherRun && !(*meeting)->run.empty()) host_.folder.leave_out((*meeting)->run);
        interval = kIntervalBesideARun;
      } else if (there.error().reason() == "CertificateRefused" && has_secret()) {
        why = "the process at " + (*meeting)->address +
              " has another secret than this host, or a certificate of another time: SHOAL_TOKEN_FILE must be the same on each host (" +
              there.error().message() + ")";
        interval = kIntervalBesideARun;  // an earlier run's head may end
      } else {
        why = "the head at " + (*meeting)->address + " does not answer: " + there.error().message();
      }
      if (first_hosts_end()) return fail(unavailable("the first host has ended"));
      if (clock_->now() >= deadline) {
        return fail(deadline_exceeded(fmt::format("after {:g} s, {}", options_.join_timeout_s, why))
                        .with_hint("the hosts need a folder that they share (--run-folder DIR), or one secret (SHOAL_TOKEN_FILE, the same "
                                   "on each). If the first host has not started, its output says why"));
      }
      if (clock_->now() >= next_status) {
        print(stderr, "shoal: waiting: {}\n", why);
        next_status = clock_->now() + kStatusInterval;
      }
      for (const auto until = clock_->now() + interval; clock_->now() < until && end_signal == 0 && leave_signal == 0;) usleep(50'000);
    }
    if (end_signal == 0) end_signal = leave_signal;
    return fail(cancelled("a signal"));
  }

  // The meeting that follows from the secret and the first host's name; nullopt while that does not resolve, as for a pod that is not
  // there.
  Result<std::optional<Meeting>> meeting_by_secret() const {
    if (allocation_.leader.empty()) {
      return fail(invalid_argument("nothing names the first host, and with a secret (SHOAL_TOKEN_FILE) no file does")
                      .with_reason("Incomplete")
                      .with_hint("pass --master-addr HOST"));
    }
    SHOAL_TRY(const auto token, secret());
    SHOAL_TRY(const auto authority, runtime::derive_authority(token));
    SHOAL_TRY(const auto fingerprint, runtime::Fingerprint::from_certificate(authority.certificate));
    const auto addresses = addresses_of(allocation_.leader);
    if (addresses.empty()) return std::optional<Meeting>();
    return std::optional(Meeting{runtime::Endpoint::tcp(addresses.front(), port()).to_string(), token, fingerprint.to_string()});
  }

  Result<void> reach(const Meeting& meeting) {
    Target target = common_.target;
    target.token = meeting.token;
    target.fingerprint = meeting.fingerprint;
    SHOAL_TRY(const auto credentials, credentials_of(target));
    Context context(credentials);
    SHOAL_TRY(const auto client, Client::connect(context, meeting.address, runtime::Duration::zero()));
    SHOAL_TRY(const auto reply, client->list(actors::ListRequest::What::kNodes));
    SHOAL_TRY(const auto script, job_of(*client));
    // A run with a fixed number of hosts begins once all are in it, and no run begins twice. So the run that answers waits for no
    // host, and is another one.
    if (script && !allocation_.joins && (!allocation_.elastic || script->ended_unix_ms != 0))
      return fail(unavailable("another run of this name or secret is under way").with_reason(kOtherRun));
    if (script && script->ended_unix_ms != 0) return fail(unavailable("the run is under way to its end").with_reason(kEnds));
    if (!allocation_.joins && has_living(reply.nodes, number_)) {
      return fail(unavailable(fmt::format("a run is under way that has a host {} already: an earlier one, or this command twice", number_))
                      .with_reason(kEnds));
    }
    if (!allocation_.elastic) return {};
    const auto num =
        std::count_if(reply.nodes.begin(), reply.nodes.end(), [](const NodeRow& n) { return n.state == actors::NodeState::kAlive; });
    if (num >= allocation_.max_nodes) return fail(unavailable(fmt::format("the run has its {} hosts", num)));
    if (allocation_.joins) {
      number_ = number_to_join(reply.nodes);
      is_member_ = true;
    }
    return {};
  }

  static bool has_living(const std::vector<NodeRow>& nodes, std::uint32_t number) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const NodeRow& n) { return n.state == actors::NodeState::kAlive && number_of(n) == number; });
  }

  // A number that no host has had: hosts of the beginning have those below the maximum, and may come back.
  std::uint32_t number_to_join(const std::vector<NodeRow>& nodes) const {
    std::uint32_t next = allocation_.max_nodes;
    for (const auto& node : nodes) next = std::max(next, number_of(node).value_or(0) + 1);
    return next + allocation_.node_rank;
  }

  int follow() {
    std::optional<JobRow> row;
    head_->set_on_notice([&](Method method, runtime::Message message) {
      if (method != Method::kJobUpdate) return;
      if (auto update = actors::from_bytes<JobRow>(message.body)) row = *std::move(update);
    });
    bool watches = false, drains = false;
    auto next_request = clock_->now();
    while (end_signal == 0) {
      if (row) send_records(*row);
      if (row && row->ended_unix_ms != 0) return finish(*row);
      if (head_->closed()) {
        watches = false;
        runtime::Duration patience = Client::kNextHead;
        if (leave_by_) patience = std::clamp<runtime::Duration>(*leave_by_ - clock_->now(), runtime::Duration::zero(), patience);
        if (session_->ending() || !head_->reconnect(patience)) break;
      }
      if (!watches && clock_->now() >= next_request) {
        next_request = clock_->now() + milliseconds(500);
        if (const auto found = job(); found && *found) {
          auto now = head_->request_for<JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{(*found)->id}));
          if (now) row = *std::move(now);
          watches = now.has_value();
        }
      }
      if (leave_signal != 0 && !leave_by_) begin_to_leave();
      if (leave_by_ && !drains) drains = drain_own();
      if (cluster_->ended()) {
        if (allocation_.elastic && (leave_by_ || was_drained())) {
          print(stderr, "shoal: this host has left the run\n");
          end();
          run_.clear();  // the run goes on, and this host may come back to it
          record({0, "", {}, false, host_.folder.newest_checkpoint()});
          send_last_records();
          return 0;
        }
        // Another host may have drained this one. Without it a run with a fixed number of ranks ends, too, and its result is this host's.
        if (allocation_.elastic || !row) break;
      }
      if (leave_by_ && clock_->now() >= *leave_by_) break;
      tick();
    }
    if (leave_by_ && end_signal == 0 && (!row || clock_->now() >= *leave_by_)) {
      end();
      record({128 + leave_signal, runtime::signal_name(leave_signal), {}, true, host_.folder.newest_checkpoint()});
      send_last_records();
      return 128 + leave_signal;
    }
    if (end_signal != 0) {
      end();
      return 128 + end_signal;
    }
    auto until = after(kFirstHostsRecordS);  // the first host writes its record last of all
    if (leave_by_) until = std::min(until, *leave_by_);
    while (!has_secret() && !first_hosts_end() && clock_->now() < until && end_signal == 0) usleep(100'000);
    if (const auto end = first_hosts_end()) return end_as(*end);
    return fail_with(
        unavailable("the first host has ended the run, and no exit code of the script came from there").with_reason("FirstHostLost"),
        kSubmitUnreachable, true);
  }

  // The first host's record of this run's end; nullopt: it has written none, or the hosts share no folder.
  std::optional<ExitRecord> first_hosts_end() const { return has_secret() ? std::nullopt : host_.folder.read_exit(0); }

  int end_as(const ExitRecord& first) {
    end();
    print(stderr, "shoal: the first host has ended with exit code {}{}\n", first.exit_code, first.cause.empty() ? "" : ": " + first.cause);
    return first.exit_code;
  }

  void begin_to_leave() {
    leave_by_ = after(options_.grace_s);
    ranks_leave_by_ = after(ranks_grace_s());
    print(stderr, "shoal: {}: this host leaves the run; its ranks have {:g} s to save and end\n", runtime::signal_name(leave_signal),
          ranks_grace_s());
  }

  // Returns true once this host's node drains. False if the head, which may be starting again, has not answered: call it again.
  bool drain_own() {
    const auto own = own_node();
    if (!own) return false;
    if (!*own || (*own)->state != actors::NodeState::kAlive) return true;
    return drain(**own, std::chrono::duration<double>(ranks_leave_by_ - clock_->now()).count()).has_value();
  }

  // True if this host's node had begun to drain before its end: by `shoal drain`, or by the first host.
  bool was_drained() {
    const auto own = own_node();
    return own && *own && (*own)->scheduling() == actors::NodeScheduling::kDraining;
  }

  Result<std::optional<NodeRow>> own_node() {
    SHOAL_TRY(auto reply, head_->list(actors::ListRequest::What::kNodes));
    for (auto& node : reply.nodes) {
      if (to_string(node.id) == field(said_, "node")) return std::optional(std::move(node));
    }
    return std::optional<NodeRow>();
  }

  // Sends what this host's processes record to the first host, if that takes it.
  void send_records(const JobRow& row) {
    const auto found = row.submission.metadata.find(RecordPlace::kMetadata);
    if (std::exchange(tried_to_send_, true) || found == row.submission.metadata.end()) return;
    const auto place = RecordPlace::parse(found->second);
    const auto credentials = session_->credentials();
    if (!place || !credentials) return;
    try {
      sender_ = std::make_unique<RunFilesSender>(*credentials, *place, own_name(), began_us_);
    } catch (const std::system_error& error) {  // the limit of processes is reached
      print(stderr, "shoal: warning: the first host does not record this one: no thread: {}\n", error.what());
    }
  }

  // Sends the last rows. To be called once this host's processes have ended.
  void send_last_records() {
    std::chrono::nanoseconds limit = kLastRows;
    if (leave_by_) limit = std::clamp<std::chrono::nanoseconds>(*leave_by_ - clock_->now(), std::chrono::seconds(1), limit);
    if (sender_) sender_->finish(limit);
  }

  int finish(const JobRow& row) {
    const int code = code_of(row);
    end();
    send_last_records();
    if (code != 0) print(stderr, "shoal: the script ended with exit code {}; the first host has its output\n", code);
    return code;
  }

  const std::int64_t began_us_ = clock_->unix_millis() * 1000;
  runtime::TimePoint ranks_leave_by_;  // when this host's ranks have to have ended, after a signal that asks it to leave
  std::unique_ptr<RunFilesSender> sender_;
  bool tried_to_send_ = false;
};

}  // namespace

int run_further_host(const RunHost& host) { return FurtherHost(host).run(); }

}  // namespace shoal::scheduler::cli
