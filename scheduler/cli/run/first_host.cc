#include "scheduler/cli/run/first_host.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/net/interfaces.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/run/forwarding/receiver.h"
#include "scheduler/cli/run/forwarding/sender.h"
#include "scheduler/cli/run/host_part.h"
#include "scheduler/cli/run/run_signals.h"
#include "scheduler/cli/run/run_watch.h"

namespace shoal::scheduler::cli {

using std::chrono::seconds;

namespace {

constexpr auto kFarewell = seconds(10);  // this host waits so long for the others, which read the script's exit code from its head

constexpr double kLastWordsS = 3;

// The variables that the script gets: without those of this host alone, since it may run on another one.
std::vector<std::string> script_environment(const RunHost& host, double ranks_grace_s) {
  std::set<std::string> left_out;
  for (const auto& v : launch_variables()) {
    if (v.fact != LaunchFact::kRun && v.fact != LaunchFact::kNodes) left_out.insert(v.name);
  }
  left_out.insert({"TORCHELASTIC_ERROR_FILE", "SHOAL_RUN_FOLDER", "SHOAL_GRACE", kRunWorkers, kRunCpus});
  std::vector<std::string> out;
  for (const auto& entry : host.common.environment.entries()) {
    if (!left_out.contains(entry.substr(0, entry.find('=')))) out.push_back(entry);
  }
  out.push_back("SHOAL_RUN_FOLDER=" + host.folder.path());
  out.push_back(fmt::format("SHOAL_GRACE={:g}", ranks_grace_s));
  const auto& a = host.allocation;
  if (!a.elastic) return out;
  const std::uint64_t ranks = host.num_ranks;
  out.push_back(fmt::format("{}={}:{}", kRunWorkers, a.min_nodes * ranks, a.max_nodes * ranks));
  if (host.options.launch.num_ranks) out.push_back(fmt::format("{}={}", kRunCpus, a.max_nodes * ranks));
  return out;
}

class FirstHost final : public HostPart {
 public:
  using HostPart::HostPart;

  int run() {
    auto words = start_words();
    const std::filesystem::path folder = std::filesystem::absolute(host_.folder.path());
    words.insert(words.end(), {"--head", "--port", std::to_string(port()), "--runs", folder.lexically_normal().parent_path()});
    const bool alone = allocation_.max_nodes == 1;
    if (!alone && options_.interface.empty()) {
      const auto address = own_address();
      if (!address) return fail_with(address.error(), kDoNotRetry, false);
      add_address(words, *address);
    }
    if (!alone && options_.data_tls) words.push_back("--data-tls");
    if (!alone && has_secret()) {
      if (const auto given = secret(); !given) return fail_with(given.error(), kDoNotRetry, false);
      words.push_back("--from-token");
    }
    if (const auto begun = begin(std::move(words), alone ? without_secret() : with_secret()); !begun)
      return fail_with(begun.error(), kSubmitOther, true);
    if (!alone && !has_secret()) {
      const auto token = session_->token();
      if (!token) return fail_with(token.error(), kSubmitOther, true);
      const auto written = host_.folder.write_meeting({field(said_, "address"), token->hex(), field(said_, "ca_fingerprint")});
      if (!written) return fail_with(written.error(), kSubmitOther, true);
    }
    if (const auto there = wait_for_hosts(); !there) {
      host_.folder.remove_meeting();
      if (end_signal != 0) return ended_by_signal();
      return fail_with(there.error(), kSubmitUnreachable, true);
    }
    return run_script();
  }

 private:
  // The address at which the other hosts reach this one.
  Result<std::string> own_address() const {
    for (const auto& address : addresses_of(allocation_.leader)) {
      if (!runtime::is_loopback(address) && runtime::find_interface(address)) return address;
    }
    for (std::size_t i = 1; i < allocation_.nodes.size(); ++i) {
      const auto address = runtime::own_address_towards(allocation_.nodes[i]);
      if (address && !runtime::is_loopback(*address)) return *address;
    }
    SHOAL_TRY(const auto interface, runtime::find_interface(""));
    return interface.address;
  }

  Result<void> wait_for_hosts() {
    const auto end = after(options_.join_timeout_s);
    auto next_status = after(2);
    while (end_signal == 0) {
      if (leave_signal != 0) {  // no rank runs yet that could save, so a request to leave ends the run
        end_signal = leave_signal;
        break;
      }
      const auto living = nodes();
      if (!living && !head_->is_back()) return fail(living.error());
      std::set<std::uint32_t> missing;
      for (std::uint32_t i = 0; living && i < allocation_.min_nodes; ++i) {
        if (!living->contains(i)) missing.insert(i);
      }
      if (living && (missing.empty() || (allocation_.elastic && living->size() >= allocation_.min_nodes))) {
        num_ranks_ = 0;
        for (const auto& [number, node] : *living)
          num_ranks_ += static_cast<std::uint32_t>(node.total.units(kRankResource) / actors::Resources::kUnit);
        return {};
      }
      if (cluster_->ended()) return fail(unavailable("the head has ended"));
      if (!has_secret()) SHOAL_OK(check_ended(missing));
      const bool late = clock_->now() >= end;
      if (late || clock_->now() >= next_status) {
        if (!late) resolve_next(missing);
        const auto lacking =
            fmt::format("{} of {} hosts are here; missing: {}", living ? living->size() : 0, allocation_.min_nodes, names_of(missing));
        if (late) {
          return fail(deadline_exceeded(fmt::format("after {:g} s, {}", options_.join_timeout_s, lacking))
                          .with_hint("their output says why; --join-timeout SECONDS waits longer"));
        }
        print(stderr, "shoal: {}\n", lacking);
        next_status = clock_->now() + kStatusInterval;
      }
      tick();
    }
    return fail(cancelled("a signal"));
  }

  // Reports hosts that have ended already. Fails for a host whose end no repetition can mend: the run would wait for it in vain.
  Result<void> check_ended(const std::set<std::uint32_t>& missing) {
    for (const auto number : missing) {
      if (reported_.contains(number)) continue;
      const auto end = host_.folder.read_exit(number);
      if (!end) continue;
      reported_.insert(number);
      const auto text = fmt::format("host {} has ended with exit code {}: {}", name_of(number), end->exit_code, end->cause);
      if (!end->retryable && !allocation_.elastic) return fail(invalid_argument(text).with_reason("HostEnded"));
      print(stderr, "shoal: {}\n", text);
    }
    return {};
  }

  std::string name_of(std::uint32_t host) const {
    return host < allocation_.nodes.size() ? fmt::format("{} ({})", host, allocation_.nodes[host]) : std::to_string(host);
  }

  // The hosts' numbers with their names. Marks names that did not resolve, since a host with a misspelt name never comes.
  std::string names_of(const std::set<std::uint32_t>& missing) const {
    std::vector<std::string> out;
    for (const auto i : missing) {
      if (out.size() == 8) {
        out.push_back("..");
        break;
      }
      out.push_back(name_of(i) + (unresolved_.contains(i) ? ": its name does not resolve on this host" : ""));
    }
    return fmt::format("{}", fmt::join(out, ", "));
  }

  // Resolves the name of the next missing host. One at a time, because a name server that does not answer costs seconds, in which this
  // process reads no signal. Names may also come later, as those of pods.
  void resolve_next(const std::set<std::uint32_t>& missing) {
    auto next = missing.upper_bound(resolved_last_);
    if (next == missing.end()) next = missing.begin();
    if (next == missing.end() || *next >= allocation_.nodes.size()) return;
    resolved_last_ = *next;
    if (addresses_of(allocation_.nodes[*next]).empty()) {
      unresolved_.insert(*next);
    } else {
      unresolved_.erase(*next);
    }
  }

  // Begins to take the records of processes on the other hosts. It is for hosts that met by a secret: those that met by a file share the
  // run's folder. After an error the run goes on without these records.
  Result<RecordPlace> receive_records() {
    SHOAL_TRY(const auto credentials, session_->credentials());
    SHOAL_TRY(auto mark, host_.folder.write_mark());
    SHOAL_TRY(receiver_, RunFilesReceiver::start(credentials, host_.folder.path()));
    return RecordPlace{receiver_->address(), std::move(mark), host_.folder.path()};
  }

  int run_script() {
    const auto address = session_->info();
    if (!address) return fail_with(address.error(), kSubmitOther, true);
    std::vector<std::string> words = {"submit",
                                      "--address",
                                      address->head.empty() ? address->head_local : address->head,
                                      "--name",
                                      kJobPrefix + std::filesystem::path(options_.words[0]).filename().string(),
                                      "--num-cpus",
                                      "0",
                                      "--wait"};
    if (options_.trainer) {
      words.insert(words.end(), {"--resource", fmt::format("{}=0.001", actors::NodeRow::kBesideHead)});
    } else {
      words.insert(words.end(), {"--num-workers", std::to_string(num_ranks_), "--resource", fmt::format("{}=1", kRankResource)});
    }
    if (allocation_.max_nodes > 1 && has_secret()) {
      if (const auto place = receive_records(); place) {
        words.insert(words.end(), {"--metadata", fmt::format("{}={}", RecordPlace::kMetadata, place->to_text())});
      } else {
        print(stderr, "shoal: warning: this host does not record the others: {}\n", place.error().message());
      }
    }
    if (common_.json) words.push_back("--json");
    if (options_.command) words.push_back("--");
    words.insert(words.end(), options_.words.begin(), options_.words.end());
    auto script = Child::start(common_, std::move(words), script_environment(host_, ranks_grace_s()), false);
    if (!script) return fail_with(script.error(), kSubmitOther, true);
    const auto [ended_by, row] = follow(*script);
    const int code = script->code();
    host_.folder.remove_meeting();
    say_farewell();
    end();
    const bool succeeded = row && *row && (*row)->state == actors::JobState::kSucceeded;
    const int signal = !row && code != 0 && ended_by == 0 ? leave_signal : ended_by;
    const int whole = signal == 0 ? code : succeeded ? 0 : 128 + signal;
    if (!row) {  // the head has ended already, so the job's row is not known
      const bool again = whole != 0 && whole != kDoNotRetry;
      record({whole, again ? "the head could not say why" : "", {}, again, host_.folder.newest_checkpoint()});
      return whole;
    }
    if (!*row) {  // submit has refused the job, and printed why
      const bool refused = code == kSubmitUsage || code == kSubmitVersion || code == kSubmitAuth || code == kSubmitDoesNotFit ||
                           code == kSubmitCannotRun || code == kSubmitNotFound;
      record({refused ? kDoNotRetry : code, "the script was not started", {}, !refused, ""});
      return refused ? kDoNotRetry : code;
    }
    record(record_of(**row, whole));
    return whole;
  }

  struct ScriptEnd {
    int ended_by = 0;                           // the signal that ended it; 0: it has ended by itself
    Result<std::optional<actors::JobRow>> row;  // its job, as the head knows it
  };

  // Waits until the script has ended.
  ScriptEnd follow(Child& script) {
    std::optional<runtime::TimePoint> deadline;
    bool all_drain = false;
    int stopped = 0, ended_by = 0;
    RunWatch watch(host_.folder.path());
    std::optional<runtime::TimePoint> alone_by;  // the cluster has ended: the script's command has until then to end by itself
    while (!script.ended()) {
      if (leave_signal != 0 && !deadline) {
        deadline = after(ranks_grace_s());
        leave_by_ = after(options_.grace_s);
        print(stderr, "shoal: {}: the script has {:g} s to save and end, because this host has the head\n",
              runtime::signal_name(leave_signal), ranks_grace_s());
      }
      if (head_->closed() && !cluster_->ended()) (void)head_->reconnect(runtime::Duration::zero());
      if (deadline && !all_drain) all_drain = drain_all(*deadline);
      const bool late = deadline && clock_->now() >= *deadline;
      if (stopped < num_end_signals + (late ? 1 : 0)) {
        script.signal(SIGHUP);  // the first one stops the job, the next one kills it
        ++stopped;
        ended_by = num_end_signals > 0 ? end_signal : leave_signal;
      }
      // This host's drained node ends when no host has a rank any more, and the cluster with it. The script's command may yet read the
      // exit code.
      if (cluster_->ended() && !alone_by) alone_by = after(kLastWordsS);
      if (alone_by && clock_->now() >= *alone_by) {
        script.signal(SIGHUP);
        alone_by = runtime::TimePoint::max();
      }
      context_->run_until([] { return false; }, kTick);
    }
    if (ended_by == 0) watch.script_ended();
    if (head_->closed() && !cluster_->ended()) (void)head_->is_back();
    return {ended_by, job()};
  }

  // Returns true once each node drains. False if the head, which may be starting again, has not answered for one: call it again. A node
  // that drains already keeps its deadline.
  bool drain_all(runtime::TimePoint deadline) {
    const auto living = nodes();
    bool all = living.has_value();
    for (const auto& [number, node] : living ? *living : Nodes()) {
      if (node.scheduling() == actors::NodeScheduling::kDraining) continue;
      all = drain(node, std::chrono::duration<double>(deadline - clock_->now()).count()) && all;
    }
    return all;
  }

  // Waits until the other hosts have read the end of the job, sent their last rows, and left.
  void say_farewell() {
    auto end = clock_->now() + kFarewell;
    if (leave_by_) end = std::min(end, *leave_by_);
    const auto before = num_end_signals;
    while (clock_->now() < end && num_end_signals == before) {
      const auto living = nodes();
      if ((!living || living->size() <= 1) && !(receiver_ && receiver_->receives())) return;
      context_->run_until([] { return false; }, kTick);
    }
  }

  int ended_by_signal() {
    end();
    record({128 + end_signal, runtime::signal_name(end_signal), {}, true, ""});
    return 128 + end_signal;
  }

  std::unique_ptr<RunFilesReceiver> receiver_;
  std::uint32_t num_ranks_ = 0;         // the sum over all hosts
  std::set<std::uint32_t> reported_;    // hosts whose end was reported already
  std::set<std::uint32_t> unresolved_;  // hosts whose names did not resolve at the last attempt
  std::uint32_t resolved_last_ = 0;
};

}  // namespace

int run_first_host(const RunHost& host) { return FirstHost(host).run(); }

}  // namespace shoal::scheduler::cli
