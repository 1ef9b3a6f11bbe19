#include "scheduler/cli/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>

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

Result<int> stop_session(const SessionFolder& folder, double grace_s, bool force) {
  (void)folder.set_ending();  // best effort: a full disk must not prevent stopping
  // When the head runs on another host, only this host's processes end.
  const auto members = folder.processes();
  const auto known = folder.info();
  const bool leads =
      (known && !known->head_local.empty()) || std::any_of(members.begin(), members.end(), [](const auto& p) { return p.role != "node"; });
  if (const auto credentials = force || !leads ? Result<actors::Credentials>(fail(cancelled("not in order"))) : folder.credentials()) {
    Context context(*credentials);
    if (const auto info = folder.info()) {
      if (const auto client = Client::connect(context, info->way(), runtime::Duration::zero())) {
        (void)(*client)->ask(Method::kShutdown, {}, std::chrono::seconds(1));
      }
    }
  }
  const auto wait_for_end = [&](double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!folder.processes().empty() && std::chrono::steady_clock::now() < end) usleep(2'000);
    return folder.processes().empty();
  };
  // Processes that the head did not end get a signal.
  for (const auto& p : folder.processes()) {
    if (!force) kill(p.pid, SIGTERM);
  }
  if (wait_for_end(force ? 0 : grace_s)) return 0;
  int killed = 0;
  for (const auto& p : folder.processes()) {
    kill(p.pid, SIGKILL);
    ++killed;
  }
  if (!wait_for_end(2)) return fail(internal("a process of " + folder.name() + " cannot be killed"));
  return killed;
}

}  // namespace shoal::scheduler::cli
