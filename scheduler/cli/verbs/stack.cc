// stack: the Python stacks of this host's workers.
//
// A worker offers a memory file named by its id (python/shoal/_core/stacks.py). On a signal its fault handler writes the stacks there,
// whether or not the interpreter is blocked.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <fmt/format.h>

#include "runtime/core/fd.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::WorkerRow;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int kFromFirst = 5;
constexpr auto kLimit = std::chrono::seconds(5);  // time for a process to answer; a stopped process does not
constexpr auto kPollInterval = std::chrono::milliseconds(10);

std::optional<fs::path> offered_by(const WorkerRow& worker) {
  const std::string wanted = "/memfd:shoal:stacks:" + to_string(worker.id);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", worker.pid), error)) {
    if (fs::read_symlink(entry.path(), error).string().starts_with(wanted)) return entry.path();
  }
  return std::nullopt;
}

std::size_t size_of(const Fd& file) {
  struct stat known {};
  return fstat(file.get(), &known) == 0 ? static_cast<std::size_t>(known.st_size) : 0;
}

// The state of this command's signal in the worker: still pending, or blocked in these threads. A thread blocks it while it runs the
// handler.
struct Signalled {
  bool pending = false;
  std::set<std::string> blocked;
};

Signalled signalled(pid_t pid) {
  const std::uint64_t bit = std::uint64_t{1} << (SIGRTMIN + kFromFirst - 1);
  Signalled out;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      const auto has = [&](const char* key) {
        return line.starts_with(key) && (std::strtoull(line.c_str() + std::strlen(key), nullptr, 16) & bit) != 0;
      };
      if (has("ShdPnd:")) out.pending = true;
      if (has("SigBlk:")) out.blocked.insert(task.path().filename().string());
    }
  }
  return out;
}

// The stacks of all threads of the worker.
Result<std::string> stacks_of(Context& context, const WorkerRow& worker) {
  const auto path = offered_by(worker);
  if (!path) return fail(not_found("it offers no stacks: it is no Python process, or it is on another host"));
  const Fd file(open(path->c_str(), O_RDWR | O_CLOEXEC));
  if (!file || ftruncate(file.get(), 0) != 0) return fail(from_errno(errno, "its stacks"));
  const auto before = signalled(worker.pid).blocked;
  const auto handled = [&] {
    const auto now = signalled(worker.pid);
    return !now.pending && std::includes(before.begin(), before.end(), now.blocked.begin(), now.blocked.end());
  };
  if (kill(worker.pid, SIGRTMIN + kFromFirst) != 0) return fail(from_errno(errno, "kill"));
  const auto end = context.clock->now() + kLimit;
  // The kernel clears "pending" a moment before it sets "blocked". So the handler counts as started only once the file has content.
  while ((size_of(file) == 0 || !handled()) && context.clock->now() < end) context.run_until([] { return false; }, kPollInterval);
  const std::size_t size = size_of(file);
  if (size == 0) return fail(deadline_exceeded("it did not answer: it is stopped, or it waits in the kernel"));
  std::string text(size, '\0');
  const auto got = pread(file.get(), text.data(), size, 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// Prints the stacks of the worker, actor, job or process `id`; of all workers for "".
int stack(const Common& common, const std::string& id) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto workers = cluster->head->list(actors::ListRequest::What::kWorkers);
  if (!workers) return failed(common, workers.error());
  const auto actors = cluster->head->list(actors::ListRequest::What::kActors);
  if (!actors) return failed(common, actors.error());
  const auto meant = [&](const WorkerRow& w) {
    if (to_string(w.id).starts_with(id) || to_string(w.job).starts_with(id) || std::to_string(w.pid) == id) return true;
    return std::any_of(actors->actors.begin(), actors->actors.end(),
                       [&](const auto& a) { return a.worker == w.id && to_string(a.id).starts_with(id); });
  };
  json rows = json::array();
  for (const auto& w : workers->workers) {
    if (w.state == actors::WorkerState::kExited || w.role == "driver" || w.pid <= 0 || !meant(w)) continue;
    const auto said = stacks_of(*cluster->context, w);
    rows.push_back({{"worker", to_string(w.id)}, {"pid", w.pid}, {"role", w.role}});
    rows.back()[said ? "stacks" : "error"] = said ? *said : said.error().message();
    if (common.json) continue;
    const std::string text = said ? *said : "  " + said.error().message() + "\n";
    print(stdout, "{}, pid {}, worker {}\n{}\n", w.role, w.pid, to_string(w.id), Lines{text});
  }
  if (rows.empty() && !id.empty()) return failed(common, not_found("no living worker, actor, job or process " + id));
  if (common.json) print_json({{"schema", "shoal.stack/1"}, {"workers", rows}});
  return kOk;
}

}  // namespace

void add_stack(CommandLine& line) {
  auto& id = line.own<std::string>();
  auto* verb = line.add_verb("stack", "Show the stacks of the Python threads of this host's workers, also of workers that hang");
  verb->add_option("id", id, "Show only this actor, worker, job or process: its id or the unique beginning of the id")->check(not_empty());
  line.on_run(verb, [&id](const Common& common) { return stack(common, id); });
}

}  // namespace shoal::scheduler::cli
