#include "scheduler/cli/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>

namespace shoal::scheduler::cli {

using actors::Method;
using actors::SessionFolder;

Result<SessionFolder> new_session(const std::string& root, std::optional<runtime::Token> token) {
  const auto random = runtime::make_real_random();
  timespec now{};
  std::timespec_get(&now, TIME_UTC);
  return SessionFolder::create(root, token.value_or(runtime::Token::random(*random)),
                               static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000, random->next());
}

Result<actors::StartedRole> start_role(const Common& common, const SessionFolder& folder, std::vector<std::string> words) {
  actors::RoleStart start;
  start.program = common.self;
  // A role's stderr is kept in a file, because it has what is not in the log, such as a crash.
  const std::string stderr_path = folder.logs() + "/" + words[0] + ".stderr";
  start.err = Fd(open(stderr_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  words.insert(words.end(), {"--session", folder.path()});
  start.words = std::move(words);
  start.env = common.environment.entries();
  start.timeout = std::chrono::seconds(10);
  auto started = actors::start_role(std::move(start));
  if (!started && started.error().hint().empty()) return fail(Error(started.error()).with_hint("see " + folder.logs()));
  return started;
}

namespace {

// Time for the end of a head's lease, an election and the reading of the stored rows, on a loaded machine.
constexpr double kElectionSeconds = 10;

bool wait_for(const std::function<bool()>& ended, double seconds, unsigned pause_us = 2'000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!ended()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    usleep(pause_us);
  }
  return true;
}

bool has_head(const SessionFolder& folder) {
  const auto members = folder.processes();
  return std::any_of(members.begin(), members.end(), [](const auto& p) { return p.role != "node"; });
}

// Asks the leading head to end the cluster, again if none answers: another of several heads may be about to lead. Returns true once a head
// has answered, and false when none can any more, or when the time is over.
bool request_end(const SessionFolder& folder, const actors::Credentials& credentials) {
  Context context(credentials);
  bool answered = false;
  (void)wait_for(
      [&] {
        const auto info = folder.info();  // read each time, as the leader may change
        if (!info) return true;
        if (const auto client = Client::connect(context, info->way(), runtime::Duration::zero()))
          answered = (*client)->request(Method::kShutdown, {}, std::chrono::seconds(2)).has_value();
        return answered || (info->store.empty() ? !has_head(folder) : folder.processes().empty());
      },
      kElectionSeconds, 50'000);
  return answered;
}

}  // namespace

Result<Stopped> stop_session(const SessionFolder& folder, double grace_s, bool force) {
  (void)folder.set_ending();  // best effort: a full disk must not prevent stopping
  Stopped out;
  // When the head runs on another host, only this host's processes end.
  const auto known = folder.info();
  if (!force && ((known && !known->head_local.empty()) || has_head(folder))) {
    const auto credentials = folder.credentials();
    out.in_order = credentials && request_end(folder, *credentials);
    // The head ends last: it waits for nodes that are about to join it again.
    if (out.in_order) (void)wait_for([&] { return !has_head(folder); }, grace_s);
  }
  const auto is_over = [&] { return folder.processes().empty(); };
  // Processes that the head did not end get a signal. They may ignore SIGTERM.
  for (const auto& p : folder.processes()) {
    if (!force) kill(p.pid, SIGINT);
  }
  if (wait_for(is_over, force ? 0 : grace_s)) return out;
  for (const auto& p : folder.processes()) {
    kill(p.pid, SIGKILL);
    ++out.killed;
  }
  if (!wait_for(is_over, 2)) return fail(internal("a process of " + folder.name() + " cannot be killed"));
  return out;
}

}  // namespace shoal::scheduler::cli
