#include "actors/session/folder/role.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include <nlohmann/json.hpp>

#include "runtime/process/process.h"
#include "runtime/process/standard_streams.h"

namespace shoal::actors {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxReport = 64 << 10;

std::string text_of(const json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

Result<StartedRole> parse_report(const std::string& role, const std::string& line) {
  const json said = json::parse(line, nullptr, false);
  if (!said.is_object()) return fail(internal("the " + role + " printed an unexpected line: " + line));
  if (const auto e = said.find("error"); e != said.end() && e->is_object()) {
    Code code = Code::kInternal;
    for (std::uint16_t c = 0; c < kNumCodes; ++c) {
      if (text_of(*e, "code") == code_name(static_cast<Code>(c))) code = static_cast<Code>(c);
    }
    return fail(Error(code, text_of(*e, "message")).with_reason(text_of(*e, "reason")).with_hint(text_of(*e, "hint")));
  }
  StartedRole out;
  out.session = text_of(said, "session");
  out.head = text_of(said, "head");
  out.head_local = text_of(said, "head_local");
  out.node = text_of(said, "node");
  out.id = text_of(said, "id");
  return out;
}

}  // namespace

Result<StartedRole> start_role(RoleStart start) {
  runtime::open_standard_streams();
  const std::string role = start.words.empty() ? "" : start.words[0];
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
  const Fd reading(ends[0]);
  runtime::SpawnSpec spec;
  spec.argv = {start.program, "role"};
  spec.argv.insert(spec.argv.end(), start.words.begin(), start.words.end());
  spec.argv.insert(spec.argv.end(), {"--ready-fd", "3"});
  spec.env = std::move(start.env);
  spec.cwd = std::move(start.cwd);
  spec.out = start.out ? std::move(start.out) : Fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.err = start.err ? std::move(start.err) : Fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.inherited.push_back(Fd(ends[1]));
  if (runtime::is_ignored(SIGTERM)) spec.ignored = {SIGTERM};
  spec.dies_with_parent = false;  // the role ends in order when it detects that its owner has ended
  SHOAL_TRY(const pid_t pid, runtime::spawn(std::move(spec)));
  const auto line = runtime::read_line(reading, kMaxReport, start.timeout);
  auto said = line ? parse_report(role, *line) : Result<StartedRole>(fail(line.error()));
  if (said) {
    said->pid = pid;
    return said;
  }
  // A role that refused or crashed is about to end by itself, so it gets a second before it is killed.
  const auto ended = runtime::wait_exit(pid, std::chrono::seconds(line || line.error().code() != Code::kDeadlineExceeded ? 1 : 0));
  if (!ended) {
    ::kill(pid, SIGKILL);
    (void)runtime::wait_exit(pid, std::chrono::seconds(5));
  }
  if (line) return said;
  if (line.error().code() == Code::kDeadlineExceeded) return fail(deadline_exceeded("the " + role + " was not ready in time"));
  return fail(unavailable("the " + role + " ended before it was ready" + (ended ? ": it " + ended->to_string() : "")));
}

}  // namespace shoal::actors
