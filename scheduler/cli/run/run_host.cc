#include "scheduler/cli/run/run_host.h"

#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/net/interfaces.h"
#include "runtime/process/process.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/session.h"

namespace shoal::scheduler::cli {

using actors::JobRow;
using actors::Method;
using actors::NodeRow;
using actors::SessionFolder;
using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr const char* kHostLabel = "shoal.io/run-host";  // a node's label: the number of its host
constexpr const char* kRankResource = "shoal_rank";      // a node has one per rank that may run there
constexpr const char* kJobPrefix = "run:";               // the beginning of the name of the run's job
constexpr const char* kNoSecret = "NoSecret";            // the given token or its file is wrong, which no repetition mends
constexpr std::uint16_t kSecretPort = 7460;              // the head's, where no file names it
constexpr auto kStartLimit = seconds(40);
constexpr auto kTick = milliseconds(100);
constexpr auto kFarewell = seconds(10);  // the first host waits so long for the others, which read the script's exit code from its head
constexpr auto kNews = seconds(15);
constexpr auto kEndLimit = seconds(20);
constexpr double kEndOfRanksS = 6;  // SIGTERM, three seconds, SIGKILL, and the end of the cluster

volatile std::sig_atomic_t leave_signal = 0, end_signal = 0, num_end_signals = 0;

// A command of this executable that ends with this process, whatever ends that.
class Child {
 public:
  static Result<Child> start(const Common& common, std::vector<std::string> words, std::vector<std::string> env, bool captured) {
    runtime::SpawnSpec spec;
    spec.argv = std::move(words);
    spec.argv.insert(spec.argv.begin(), common.self);
    spec.env = std::move(env);
    spec.env.insert(spec.env.begin(), "SHOAL_PYTHON=" + common.python);  // the interpreter beside the command by which this one was started
    spec.death_signal = SIGHUP;                                          // it ends what it has started
    // Schedulers send these to all processes of a job, and this command reacts for all of them.
    spec.ignored = {SIGTERM, SIGUSR1, SIGUSR2};
    Child out;
    if (captured) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
      out.out_ = Fd(ends[0]);
      spec.out = Fd(ends[1]);
    }
    SHOAL_TRY(out.pid_, runtime::spawn(std::move(spec)));
    return out;
  }
  // The line that it prints once it is ready.
  Result<nlohmann::json> report() {
    const auto line = runtime::read_line(out_, 64 << 10, kStartLimit);
    auto said = line ? nlohmann::json::parse(*line, nullptr, false) : nlohmann::json();
    if (said.is_object() && !said.contains("error")) return said;
    return fail(unavailable("this host's part of the cluster did not start").with_reason("NotStarted"));  // it has printed why
  }
  bool ended() {
    if (!status_) status_ = runtime::wait_exit(pid_, std::chrono::nanoseconds(0));
    return status_.has_value();
  }
  int code() const { return status_->shell_code(); }
  void signal(int number) {
    if (!ended()) kill(pid_, number);
  }
  bool ends_within(std::chrono::nanoseconds limit) {
    if (!status_) status_ = runtime::wait_exit(pid_, limit);
    return status_.has_value();
  }

 private:
  pid_t pid_ = 0;
  Fd out_;
  std::optional<runtime::ExitStatus> status_;
};

// The variables that the script gets: without those of this host alone, since it may run on another one.
std::vector<std::string> script_environment(const RunHost& host) {
  std::set<std::string> left_out;
  for (const auto& v : launch_variables()) {
    if (v.fact != LaunchFact::kRun && v.fact != LaunchFact::kNodes) left_out.insert(v.name);
  }
  left_out.insert({"TORCHELASTIC_ERROR_FILE", "SHOAL_RUN_FOLDER"});
  std::vector<std::string> out;
  for (const auto& entry : host.common.environment.entries()) {
    if (!left_out.contains(entry.substr(0, entry.find('=')))) out.push_back(entry);
  }
  out.push_back("SHOAL_RUN_FOLDER=" + host.folder.path());
  return out;
}

// The number of the node's host.
std::optional<std::uint32_t> number_of(const NodeRow& node) {
  const auto label = node.labels.find(kHostLabel);
  if (label == node.labels.end()) return {};
  return static_cast<std::uint32_t>(std::strtoul(label->second.c_str(), nullptr, 10));
}

std::string field(const nlohmann::json& said, const char* key) {
  return said.contains(key) && said[key].is_string() ? said[key].get<std::string>() : "";
}

// The work of both kinds of hosts.
class Part {
 public:
  explicit Part(const RunHost& host) : host_(host), common_(host.common), options_(host.options), allocation_(host.allocation) {}

 protected:
  runtime::TimePoint after(double s) const { return clock_->now() + std::chrono::duration_cast<runtime::Duration>(duration<double>(s)); }

  std::string label() const { return fmt::format("{}={}", kHostLabel, number_); }

  std::vector<std::string> start_words() const {
    std::vector<std::string> words = {"start",
                                      "--block",
                                      "--json",
                                      "--label",
                                      label(),
                                      "--resource",
                                      fmt::format("{}={}", kRankResource, host_.num_ranks),
                                      "--order",
                                      std::to_string(number_)};
    if (options_.trainer && options_.launch.num_ranks) words.insert(words.end(), {"--num-cpus", std::to_string(host_.num_ranks)});
    if (!options_.interface.empty()) words.insert(words.end(), {"--interface", options_.interface});
    return words;
  }

  // The hosts have a secret of their own, and need no file to meet.
  bool has_secret() const { return !common_.target.token.empty() || !common_.target.token_file.empty(); }
  Result<std::string> secret() const {
    Target target = common_.target;
    target.fingerprint.clear();
    const auto credentials = credentials_of(target);
    if (!credentials) return fail(Error(credentials.error()).with_reason(kNoSecret));
    return credentials->token.hex();
  }
  std::uint16_t port() const { return options_.port != 0 || !has_secret() ? options_.port : kSecretPort; }
  std::vector<std::string> without_secret() const {
    auto env = common_.environment.entries();
    std::erase_if(env,
                  [](const std::string& entry) { return entry.starts_with("SHOAL_TOKEN") || entry.starts_with("SHOAL_CA_FINGERPRINT="); });
    return env;
  }
  std::vector<std::string> with_secret() const {
    auto env = without_secret();
    if (!common_.target.token_file.empty()) env.push_back("SHOAL_TOKEN_FILE=" + common_.target.token_file);
    if (!common_.target.token.empty()) env.push_back("SHOAL_TOKEN=" + common_.target.token);
    return env;
  }

  // Adds the option with this host's address for the others. gloo takes the address of the host's name, unless an interface is named.
  void add_address(std::vector<std::string>& words, const std::string& address) const {
    if (options_.interface.empty()) words.insert(words.end(), {host_.name_resolves ? "--host" : "--interface", address});
  }

  // Starts this host's part, and connects to the head.
  Result<void> begin(std::vector<std::string> words, std::vector<std::string> env) {
    SHOAL_TRY(auto child, Child::start(common_, std::move(words), std::move(env), true));
    cluster_ = std::move(child);
    SHOAL_TRY(said_, cluster_->report());
    const auto path = field(said_, "session");
    if (path.empty()) {
      return fail(invalid_argument("this host's part has no session folder in SHOAL_HOME=" + common_.environment.get("SHOAL_HOME"))
                      .with_hint("set SHOAL_HOME to an absolute path that no other host of the run uses, or leave it out"));
    }
    SHOAL_TRY(const auto folder, SessionFolder::open(path));
    session_ = folder;
    SHOAL_TRY(const auto credentials, folder.credentials());
    SHOAL_TRY(const auto info, folder.info());
    context_ = std::make_unique<Context>(credentials);
    SHOAL_TRY(head_, Client::connect(*context_, info.way(), Client::kNextHead));
    return {};
  }

  // Ends what this host has started.
  void end() {
    head_.reset();
    if (!cluster_) return;
    cluster_->signal(SIGHUP);
    // Before its report only the command itself knows the roles that it has started, so it gets the time to end them.
    std::chrono::nanoseconds limit = session_ ? kEndLimit : 2 * kEndLimit;
    if (leave_by_) limit = std::clamp<std::chrono::nanoseconds>(*leave_by_ - clock_->now(), seconds(2), limit);
    if (!cluster_->ends_within(limit)) cluster_->signal(SIGKILL);
    if (session_ && owns_session() && !session_->processes().empty()) (void)stop_session(*session_, 1);
  }

  // False: this host had a part in the cluster before, which goes on.
  bool owns_session() const { return !said_.contains("new_session") || said_["new_session"] == true; }

  // The ranks' part of the grace: the rest is for those that do not end by themselves, and for the cluster.
  double ranks_grace_s() const { return std::max(options_.grace_s / 2, options_.grace_s - kEndOfRanksS); }

  void tick() {
    context_->run_until([] { return end_signal != 0; }, kTick);
  }

  // The living nodes, each by the number of its host. Two that join at once may have the same number.
  using Nodes = std::multimap<std::uint32_t, NodeRow>;
  Result<Nodes> nodes() {
    SHOAL_TRY(const auto reply, head_->list(actors::ListRequest::What::kNodes));
    Nodes out;
    for (const auto& node : reply.nodes) {
      const auto number = number_of(node);
      if (node.state == actors::NodeState::kAlive && number) out.emplace(*number, node);
    }
    return out;
  }

  Result<std::optional<JobRow>> job() {
    SHOAL_TRY(auto reply, head_->list(actors::ListRequest::What::kJobs));
    for (auto& row : reply.jobs) {
      if (row.name.starts_with(kJobPrefix)) return std::optional(std::move(row));
    }
    return std::optional<JobRow>();
  }

  Result<void> drain(const NodeRow& node) {
    const actors::SetNodeScheduling wish{node.id, actors::NodeScheduling::kDraining, static_cast<std::uint64_t>(ranks_grace_s() * 1000)};
    SHOAL_TRY(const auto answer, head_->request(Method::kSetNodeScheduling, to_bytes(wish)));
    (void)answer;
    return {};
  }

  void record(ExitRecord record) {
    record.unix_s = clock_->unix_millis() / 1000;
    if (const auto written = host_.folder.write_exit(record, number_); !written)
      print(stderr, "shoal: warning: no exit record: {}\n", written.error().message());
    const auto file = common_.environment.get("TORCHELASTIC_ERROR_FILE");
    if (record.exit_code == 0 || file.empty()) return;
    if (const auto written = write_torchelastic_error(record, file); !written)
      print(stderr, "shoal: warning: {}\n", written.error().message());
  }

  // The run fails on this host for a reason of its own.
  int fail_with(const Error& error, int code, bool retryable) {
    if (error.code() == Code::kInvalidArgument || error.reason() == kNoSecret) {
      code = kDoNotRetry;
      retryable = false;
    }
    if (error.reason() != "NotStarted") print_error(error, common_.json);
    end();
    record({code, error.message(), {}, retryable, host_.folder.newest_checkpoint()});
    return code;
  }

  ExitRecord record_of(const JobRow& row, int code) const {
    ExitRecord out{code, "", {}, code != 0 && code != kDoNotRetry, host_.folder.newest_checkpoint()};
    if (code == 0) return out;
    out.cause = row.cause ? row.cause->message() : fmt::format("the script ended with exit code {}", code);
    for (const auto& frame : row.cause ? row.cause->context() : std::vector<std::string>()) {
      if (frame.starts_with("rank ")) out.rank = std::atoi(frame.c_str() + 5);
    }
    return out;
  }

  const RunHost& host_;
  const Common& common_;
  const RunOptions& options_;
  const Allocation& allocation_;
  std::uint32_t number_ = allocation_.node_rank;  // this host's in the run
  runtime::Loop loop_;
  const std::unique_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::optional<Child> cluster_;  // shoal start --block
  nlohmann::json said_;
  std::optional<runtime::TimePoint> leave_by_;  // a signal asked this host to leave
  std::optional<SessionFolder> session_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Client> head_;
};

// The script's exit code, from the row of its job.
int code_of(const JobRow& row) { return row.state == actors::JobState::kStopped && row.exit_code == 0 ? 128 + SIGTERM : row.exit_code; }

class FirstHost final : public Part {
 public:
  using Part::Part;

  int run() {
    auto words = start_words();
    words.insert(words.end(), {"--head", "--port", std::to_string(port())});
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
  // The address at which the others reach this host.
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
    auto next_news = after(2);
    while (end_signal == 0) {
      if (leave_signal != 0) end_signal = leave_signal;  // nothing runs yet
      const auto here = nodes();
      if (!here && !head_->is_back()) return fail(here.error());
      std::set<std::uint32_t> missing;
      for (std::uint32_t i = 0; here && i < allocation_.min_nodes; ++i) {
        if (!here->contains(i)) missing.insert(i);
      }
      if (here && (missing.empty() || (allocation_.elastic && here->size() >= allocation_.min_nodes))) {
        num_ranks_ = 0;
        for (const auto& [number, node] : *here)
          num_ranks_ += static_cast<std::uint32_t>(node.total.units(kRankResource) / actors::Resources::kUnit);
        return {};
      }
      if (cluster_->ended()) return fail(unavailable("the head has ended"));
      const auto lacking =
          fmt::format("{} of {} hosts are here; missing: {}", here ? here->size() : 0, allocation_.min_nodes, names_of(missing));
      if (clock_->now() >= end) {
        return fail(deadline_exceeded(fmt::format("after {:g} s, {}", options_.join_timeout_s, lacking))
                        .with_hint("their output says why; --join-timeout SECONDS waits longer"));
      }
      if (clock_->now() >= next_news) {
        print(stderr, "shoal: {}\n", lacking);
        next_news = clock_->now() + kNews;
      }
      tick();
    }
    return fail(cancelled("a signal"));
  }

  std::string names_of(const std::set<std::uint32_t>& missing) const {
    std::vector<std::string> out;
    for (const auto i : missing) {
      if (out.size() == 8) {
        out.push_back("..");
        break;
      }
      out.push_back(i < allocation_.nodes.size() ? fmt::format("{} ({})", i, allocation_.nodes[i]) : std::to_string(i));
    }
    return fmt::format("{}", fmt::join(out, ", "));
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
      words.insert(words.end(), {"--resource", "node:__internal_head__=0.001"});
    } else {
      words.insert(words.end(), {"--num-workers", std::to_string(num_ranks_), "--resource", fmt::format("{}=1", kRankResource)});
    }
    if (common_.json) words.push_back("--json");
    if (options_.command) words.push_back("--");
    words.insert(words.end(), options_.words.begin(), options_.words.end());
    auto script = Child::start(common_, std::move(words), script_environment(host_), false);
    if (!script) return fail_with(script.error(), kSubmitOther, true);
    const int ended_by = follow(*script);
    const int code = script->code();
    const auto row = job();
    host_.folder.remove_meeting();
    say_farewell();
    end();
    const int whole = ended_by != 0 ? 128 + ended_by : code;
    if (!row) {  // the head is leaving, too
      const bool again = whole != 0 && whole != kDoNotRetry;
      record({whole, again ? "the head could not say why" : "", {}, again, host_.folder.newest_checkpoint()});
      return whole;
    }
    if (!*row) {  // submit has refused it, and printed why
      const bool refused = code == kSubmitUsage || code == kSubmitVersion || code == kSubmitAuth || code == kSubmitDoesNotFit ||
                           code == kSubmitCannotRun || code == kSubmitNotFound;
      record({refused ? kDoNotRetry : code, "the script was not started", {}, !refused, ""});
      return refused ? kDoNotRetry : code;
    }
    record(record_of(**row, whole));
    return whole;
  }

  // Waits until the script has ended. Returns the signal that ended it; 0: it has ended by itself.
  int follow(Child& script) {
    std::optional<runtime::TimePoint> deadline;
    int stopped = 0, ended_by = 0;
    bool alone = false;
    while (!script.ended()) {
      if (leave_signal != 0 && !deadline) {
        deadline = after(ranks_grace_s());
        leave_by_ = after(options_.grace_s);
        print(stderr, "shoal: {}: the script has {:g} s to save and end, because this host has the head\n",
              runtime::signal_name(leave_signal), ranks_grace_s());
        const auto here = nodes();
        for (const auto& [number, node] : here ? *here : Nodes()) (void)drain(node);
      }
      const bool late = deadline && clock_->now() >= *deadline;
      if (stopped < num_end_signals + (late ? 1 : 0)) {
        script.signal(SIGHUP);  // the first one stops the job, the next one kills it
        ++stopped;
        ended_by = num_end_signals > 0 ? end_signal : leave_signal;
      }
      if (cluster_->ended() && !std::exchange(alone, true)) script.signal(SIGHUP);
      context_->run_until([] { return false; }, kTick);
    }
    return ended_by;
  }

  // Waits until the others have read the end of the job, and left.
  void say_farewell() {
    auto end = clock_->now() + kFarewell;
    if (leave_by_) end = std::min(end, *leave_by_);
    const auto before = num_end_signals;
    while (clock_->now() < end && num_end_signals == before) {
      const auto here = nodes();
      if (!here || here->size() <= 1) return;
      context_->run_until([] { return false; }, kTick);
    }
  }

  int ended_by_signal() {
    end();
    record({128 + end_signal, runtime::signal_name(end_signal), {}, true, ""});
    return 128 + end_signal;
  }

  std::uint32_t num_ranks_ = 0;  // the sum over all hosts
};

class FurtherHost final : public Part {
 public:
  using Part::Part;

  int run() {
    const auto meeting = find_head();
    if (!meeting && end_signal != 0) return 128 + end_signal;
    if (!meeting) return fail_with(meeting.error(), kSubmitUnreachable, true);
    if (allocation_.joins) {
      host_.folder.forget_earlier_run(number_);
      print(stderr, "shoal: this host joins the run as host {}\n", number_);
    }
    auto words = start_words();
    words.insert(words.end(), {"--address", meeting->address, "--head-absence-limit", "60"});
    const auto at = runtime::parse_endpoint(meeting->address);
    const auto own = at ? runtime::own_address_towards(at->host) : Result<std::string>(fail(at.error()));
    if (own) add_address(words, *own);
    auto env = without_secret();
    env.push_back("SHOAL_TOKEN=" + meeting->token);
    env.push_back("SHOAL_CA_FINGERPRINT=" + meeting->fingerprint);
    if (const auto begun = begin(std::move(words), std::move(env)); !begun) return fail_with(begun.error(), kSubmitOther, true);
    return follow();
  }

 private:
  // Waits until the first host's head answers.
  Result<Meeting> find_head() {
    const auto deadline = after(options_.join_timeout_s);
    auto next_news = after(2);
    std::string why;
    while (end_signal == 0 && leave_signal == 0) {
      const auto meeting = has_secret() ? meeting_by_secret() : host_.folder.read_meeting();
      if (!meeting) return fail(meeting.error());
      if (!*meeting && has_secret()) {
        why = "the name of the first host, " + allocation_.leader + ", does not resolve";
      } else if (!*meeting) {
        why = "the first host has written nothing to " + host_.folder.path();
      } else if (const auto there = reach(**meeting); there) {
        return **meeting;
      } else {
        why = "the head at " + (*meeting)->address + " does not answer: " + there.error().message();
      }
      if (clock_->now() >= deadline) {
        return fail(deadline_exceeded(fmt::format("after {:g} s, {}", options_.join_timeout_s, why))
                        .with_hint("the output of the first host says why it did not start. The hosts need a folder that they share "
                                   "(--run-folder DIR), or a secret (SHOAL_TOKEN_FILE)"));
      }
      if (clock_->now() >= next_news) {
        print(stderr, "shoal: waiting: {}\n", why);
        next_news = clock_->now() + kNews;
      }
      usleep(100'000);
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
    if (!allocation_.elastic) return {};
    SHOAL_TRY(const auto reply, client->list(actors::ListRequest::What::kNodes));
    const auto num =
        std::count_if(reply.nodes.begin(), reply.nodes.end(), [](const NodeRow& n) { return n.state == actors::NodeState::kAlive; });
    if (num >= allocation_.max_nodes) return fail(unavailable(fmt::format("the run has its {} hosts", num)));
    if (allocation_.joins) number_ = number_to_join(reply.nodes);
    return {};
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
    bool watches = false, leaves = false;
    auto next_look = clock_->now();
    while (end_signal == 0) {
      if (row && row->ended_unix_ms != 0) return finish(*row);
      if (head_->closed()) {
        watches = false;
        if (session_->ending() || !head_->is_back()) break;
      }
      if (!watches && clock_->now() >= next_look) {
        next_look = clock_->now() + milliseconds(500);
        if (const auto found = job(); found && *found) {
          auto now = head_->request_for<JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{(*found)->id}));
          if (now) row = *std::move(now);
          watches = now.has_value();
        }
      }
      if (leave_signal != 0 && !std::exchange(leaves, true)) leave();
      // Without this host a run with a fixed number of ranks ends, too, and its result is this host's.
      if (cluster_->ended() && !(leaves && !allocation_.elastic)) {
        if (leaves) {
          print(stderr, "shoal: this host has left the run\n");
          end();
          record({0, "", {}, false, host_.folder.newest_checkpoint()});
          return 0;
        }
        break;
      }
      tick();
    }
    if (end_signal != 0) {
      end();
      return 128 + end_signal;
    }
    return fail_with(
        unavailable("the first host has ended the run, and no exit code of the script came from there").with_reason("FirstHostLost"),
        kSubmitUnreachable, true);
  }

  void leave() {
    leave_by_ = after(options_.grace_s);
    print(stderr, "shoal: {}: this host leaves the run; its ranks have {:g} s to save and end\n", runtime::signal_name(leave_signal),
          ranks_grace_s());
    const auto here = nodes();
    if (!here) return;
    for (const auto& [number, node] : *here) {
      if (to_string(node.id) == field(said_, "node")) (void)drain(node);
    }
  }

  int finish(const JobRow& row) {
    const int code = code_of(row);
    end();
    if (code != 0) print(stderr, "shoal: the script ended with exit code {}; the first host has its output\n", code);
    return code;
  }
};

}  // namespace

std::vector<std::string> addresses_of(const std::string& name) {
  std::vector<std::string> out;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (name.empty() || getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST] = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) out.emplace_back(text);
  }
  freeaddrinfo(found);
  return out;
}

void watch_run_signals() {
  for (const int number : {SIGTERM, SIGUSR1, SIGUSR2}) std::signal(number, [](int n) { leave_signal = n; });
  for (const int number : {SIGINT, SIGHUP}) {
    if (runtime::is_ignored(number)) continue;  // by nohup, or in the background of a script
    std::signal(number, [](int n) {
      end_signal = n;
      num_end_signals = num_end_signals + 1;
    });
  }
}

int run_host(const RunHost& host) {
  if (!host.allocation.joins) host.folder.forget_earlier_run(host.allocation.node_rank);
  return host.allocation.leads() ? FirstHost(host).run() : FurtherHost(host).run();
}

}  // namespace shoal::scheduler::cli
