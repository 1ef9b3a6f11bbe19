#include "scheduler/cli/run/host_part.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "scheduler/cli/output.h"
#include "scheduler/cli/run/run_signals.h"
#include "scheduler/cli/session.h"

namespace shoal::scheduler::cli {

using actors::JobRow;
using actors::Method;
using actors::NodeRow;
using actors::SessionFolder;
using std::chrono::seconds;

namespace {
constexpr const char* kHostLabel = "shoal.io/run-host";  // a node's label: the number of its host
constexpr const char* kNoSecret = "NoSecret";            // the given token or its file is wrong, which no repetition mends
constexpr std::uint16_t kSecretPort = 7460;              // the head's port if the hosts meet by a secret, since no file names it
constexpr auto kEndLimit = seconds(20);
constexpr double kEndOfRanksS = 6;  // seconds for SIGTERM, a grace of three seconds, SIGKILL, and the end of the cluster
}  // namespace

std::string field(const nlohmann::json& said, const char* key) {
  return said.contains(key) && said[key].is_string() ? said[key].get<std::string>() : "";
}

std::optional<std::uint32_t> number_of(const NodeRow& node) {
  const auto label = node.labels.find(kHostLabel);
  if (label == node.labels.end()) return {};
  return static_cast<std::uint32_t>(std::strtoul(label->second.c_str(), nullptr, 10));
}

runtime::TimePoint HostPart::after(double seconds) const {
  return clock_->now() + std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(seconds));
}

std::vector<std::string> HostPart::start_words() const {
  std::vector<std::string> words = {"start",
                                    "--block",
                                    "--json",
                                    "--label",
                                    fmt::format("{}={}", kHostLabel, number_),
                                    "--resource",
                                    fmt::format("{}={}", kRankResource, host_.num_ranks),
                                    "--order",
                                    std::to_string(number_)};
  if (options_.trainer && options_.launch.num_ranks) words.insert(words.end(), {"--num-cpus", std::to_string(host_.num_ranks)});
  if (!options_.interface.empty()) words.insert(words.end(), {"--interface", options_.interface});
  return words;
}

Result<std::string> HostPart::secret() const {
  Target target = common_.target;
  target.fingerprint.clear();
  const auto credentials = credentials_of(target);
  if (!credentials) return fail(Error(credentials.error()).with_reason(kNoSecret));
  return credentials->token.hex();
}

std::uint16_t HostPart::port() const { return options_.port != 0 || !has_secret() ? options_.port : kSecretPort; }

std::vector<std::string> HostPart::without_secret() const {
  auto env = common_.environment.entries();
  std::erase_if(env,
                [](const std::string& entry) { return entry.starts_with("SHOAL_TOKEN") || entry.starts_with("SHOAL_CA_FINGERPRINT="); });
  return env;
}

std::vector<std::string> HostPart::with_secret() const {
  auto env = without_secret();
  if (!common_.target.token_file.empty()) env.push_back("SHOAL_TOKEN_FILE=" + common_.target.token_file);
  if (!common_.target.token.empty()) env.push_back("SHOAL_TOKEN=" + common_.target.token);
  return env;
}

void HostPart::add_address(std::vector<std::string>& words, const std::string& address) const {
  if (options_.interface.empty()) words.insert(words.end(), {host_.name_resolves ? "--host" : "--interface", address});
}

Result<void> HostPart::begin(std::vector<std::string> words, std::vector<std::string> env) {
  if (const auto home = common_.environment.get("SHOAL_HOME"); !home.empty() && home.front() != '/') {
    return fail(invalid_argument("SHOAL_HOME=" + home + " is no absolute path")
                    .with_hint("set it to an absolute path that no other host of the run uses, or leave it out"));
  }
  std::erase_if(env, [](const std::string& entry) {  // removes variables of an outer run, which this host's workers would inherit
    return entry.starts_with(std::string(kRunWorkers) + "=") || entry.starts_with(std::string(kRunCpus) + "=");
  });
  SHOAL_TRY(auto child, Child::start(common_, std::move(words), std::move(env), true));
  cluster_ = std::move(child);
  SHOAL_TRY(said_, cluster_->report());
  SHOAL_TRY(const auto folder, SessionFolder::open(field(said_, "session")));
  session_ = folder;
  SHOAL_TRY(const auto credentials, folder.credentials());
  SHOAL_TRY(const auto info, folder.info());
  context_ = std::make_unique<Context>(credentials);
  SHOAL_TRY(head_, Client::connect(*context_, info.way(), Client::kNextHead));
  return {};
}

void HostPart::end() {
  head_.reset();
  if (!cluster_) return;
  cluster_->signal(SIGHUP);
  // Before its report only the command itself knows the roles that it has started, so it gets the time to end them.
  std::chrono::nanoseconds limit = session_ ? kEndLimit : 2 * kEndLimit;
  if (leave_by_) limit = std::clamp<std::chrono::nanoseconds>(*leave_by_ - clock_->now(), seconds(2), limit);
  if (!cluster_->ends_within(limit)) cluster_->signal(SIGKILL);
  if (session_ && owns_session() && !session_->processes().empty()) (void)stop_session(*session_, 1);
}

void HostPart::abandon() {
  end();
  cluster_.reset();
  session_.reset();
  context_.reset();
  said_ = {};
  run_.clear();
}

double HostPart::ranks_grace_s() const { return std::max(options_.grace_s / 2, options_.grace_s - kEndOfRanksS); }

void HostPart::tick() {
  context_->run_until([] { return end_signal != 0; }, kTick);
}

Result<HostPart::Nodes> HostPart::nodes() {
  SHOAL_TRY(const auto reply, head_->list(actors::ListRequest::What::kNodes));
  Nodes out;
  for (const auto& node : reply.nodes) {
    const auto number = number_of(node);
    if (node.state == actors::NodeState::kAlive && number) out.emplace(*number, node);
  }
  return out;
}

Result<std::optional<JobRow>> HostPart::job_of(Client& head) {
  SHOAL_TRY(auto reply, head.list(actors::ListRequest::What::kJobs));
  for (auto& row : reply.jobs) {
    if (row.name.starts_with(kJobPrefix)) return std::optional(std::move(row));
  }
  return std::optional<JobRow>();
}

Result<void> HostPart::drain(const NodeRow& node, double seconds) {
  const actors::SetNodeScheduling wish{node.id, actors::NodeScheduling::kDraining,
                                       static_cast<std::uint64_t>(std::max(seconds, 0.0) * 1000)};
  SHOAL_TRY(const auto answer, head_->request(Method::kSetNodeScheduling, to_bytes(wish)));
  (void)answer;
  return {};
}

void HostPart::record(ExitRecord record) {
  record.unix_s = clock_->unix_millis() / 1000;
  record.run = run_;
  if (is_member_) {
    if (const auto written = host_.folder.write_exit(record, number_); !written)
      print(stderr, "shoal: warning: no exit record: {}\n", written.error().message());
  }
  const auto file = common_.environment.get("TORCHELASTIC_ERROR_FILE");
  if (record.exit_code == 0 || file.empty()) return;
  if (const auto written = write_torchelastic_error(record, file); !written)
    print(stderr, "shoal: warning: {}\n", written.error().message());
}

int HostPart::fail_with(const Error& error, int code, bool retryable) {
  if (error.code() == Code::kInvalidArgument || error.reason() == kNoSecret) {
    code = kDoNotRetry;
    retryable = false;
  }
  print_error(error, common_.json);
  end();
  record({code, error.message(), {}, retryable, host_.folder.newest_checkpoint()});
  return code;
}

ExitRecord HostPart::record_of(const JobRow& row, int code) const {
  ExitRecord out{code, "", {}, code != 0 && code != kDoNotRetry, host_.folder.newest_checkpoint()};
  if (code == 0) return out;
  out.cause = row.cause ? row.cause->message() : fmt::format("the script ended with exit code {}", code);
  for (const auto& frame : row.cause ? row.cause->context() : std::vector<std::string>()) {
    if (frame.starts_with("rank ")) out.rank = std::atoi(frame.c_str() + 5);
  }
  return out;
}

}  // namespace shoal::scheduler::cli
