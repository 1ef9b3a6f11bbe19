#include "scheduler/node/logs/worker_logs.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "actors/protocol/wire/method.h"
#include "scheduler/node/logs/task_marks.h"

namespace shoal::scheduler {

using actors::Method;
using actors::number;
using actors::to_bytes;
using runtime::Peer;

namespace {
constexpr std::ptrdiff_t kMaxFollowed = 1000;  // jobs that one connection follows
}  // namespace

void WorkerLogs::write(const Worker* worker, WorkerId id, Launcher::Stream stream, std::string_view lines) {
  if (worker == nullptr) return book_.write(id, stream, lines);
  const auto followers = followers_.find(worker->spec.job);
  divide(
      lines, [&](const TaskMark& mark) { book_.mark(id, stream, mark); },
      [&](std::string_view text) {
        book_.write(id, stream, text);
        if (followers == followers_.end()) return;
        const std::string_view function = book_.function(id, stream);
        for (const auto& [key, client] : followers->second) send(*client, worker->spec, function, worker->pid, stream, text);
      });
}

void WorkerLogs::ended(const Worker& worker, const actors::WorkerUpdate& exit) {
  book_.close(worker.spec.worker);
  if (!worker.launched()) return;
  ended_.push_back({worker.spec, exit});
  if (ended_.size() > max_ended_) ended_.pop_front();
}

Result<void> WorkerLogs::follow(Peer& client, JobId job, const std::map<WorkerId, Worker>& workers) {
  if (follows(client.number(), job)) return {};
  const auto followed = std::ranges::count_if(followers_, [&](const auto& entry) { return entry.second.contains(client.number()); });
  if (followed >= kMaxFollowed) return fail(resource_exhausted(fmt::format("one connection follows at most {} jobs", kMaxFollowed)));
  for (const auto& e : ended_) {
    if (e.spec.job != job) continue;
    send_so_far(client, e.spec, e.exit.pid);
    client.notify(number(Method::kWorkerExited), {to_bytes(e.exit), {}, {}});
  }
  for (const auto& [id, w] : workers) {
    if (w.spec.job == job && w.launched()) send_so_far(client, w.spec, w.pid);
  }
  followers_[job].emplace(client.number(), &client);
  return {};
}

bool WorkerLogs::follows(std::uint64_t client, JobId job) const {
  const auto followers = followers_.find(job);
  return followers != followers_.end() && followers->second.contains(client);
}

void WorkerLogs::left(std::uint64_t client) {
  for (auto it = followers_.begin(); it != followers_.end();) {
    it->second.erase(client);
    it = it->second.empty() ? followers_.erase(it) : std::next(it);
  }
}

void WorkerLogs::send_so_far(Peer& client, const actors::StartWorker& spec, pid_t pid) const {
  for (const auto stream : {Launcher::Stream::kOut, Launcher::Stream::kErr}) {
    book_.pieces(spec.worker, stream, kSoFarBytes,
                 [&](std::string_view function, std::string_view text) { send(client, spec, function, pid, stream, text); });
  }
}

void WorkerLogs::send(Peer& client, const actors::StartWorker& spec, std::string_view function, pid_t pid, Launcher::Stream stream,
                      std::string_view lines) {
  const std::string label(function.empty() ? spec.label : function);
  const actors::LogLines source{spec.worker, spec.rank, label, static_cast<std::uint16_t>(stream), pid};
  client.notify(number(Method::kLogLines), {to_bytes(source), Bytes::copy_of(lines), {}}, runtime::Flush::kLater);
}

}  // namespace shoal::scheduler
