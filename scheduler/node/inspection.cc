#include "scheduler/node/inspection.h"

#include "actors/protocol/wire/method.h"

#include <algorithm>
#include <filesystem>
#include <map>

namespace shoal::scheduler {

using actors::ObjectReport;
using actors::ObjectState;

namespace {

bool in_file(const Fd& memory) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(memory.get()), error);
  return !error && !path.string().starts_with("/memfd:");
}

}  // namespace

std::vector<ObjectReport> report_objects(const storage::MemoryTable& memory, const storage::ReferenceTable& references) {
  std::map<std::pair<JobId, ObjectId>, ObjectReport> objects;
  memory.each_object([&](JobId job, ObjectId id, const Result<Fd>& fd, std::uint64_t bytes) {
    ObjectReport& o = objects[{job, id}];
    o.bytes = bytes;
    o.state = fd ? ObjectState::kThere : ObjectState::kFailed;
    o.spilled = fd && in_file(*fd);
    o.memory = fd ? actors::which_memory(*fd) : 0;
  });
  references.each([&](storage::ReferenceTable::Object object, const std::map<WorkerId, std::int64_t>& processes, std::int64_t contained) {
    const auto [at, added] = objects.try_emplace({object.job, object.id});
    if (added) at->second.state = ObjectState::kAbsent;
    at->second.contained = static_cast<std::uint32_t>(std::max<std::int64_t>(contained, 0));
    for (const auto& [worker, count] : processes) {
      if (count > 0) at->second.holders.push_back({worker, count});
    }
  });
  std::vector<ObjectReport> out;
  for (auto& [key, object] : objects) {
    object.job = key.first;
    object.id = key.second;
    out.push_back(std::move(object));
  }
  return out;
}

void join_objects(actors::NodeReport& node) {
  std::map<std::uint64_t, std::size_t> by_memory;
  std::map<std::pair<JobId, ObjectId>, std::size_t> by_name;
  for (std::size_t i = 0; i < node.objects.size(); ++i) {
    const auto& o = node.objects[i];
    if (o.memory != 0) by_memory[o.memory] = i;
    by_name[{o.job, o.id}] = i;
  }
  // Rows of processes that hold a reference to an object come first, since other processes have only its memory.
  for (const bool makers : {true, false}) {
    for (auto& process : node.processes) {
      for (auto& o : process.objects) {
        const auto count = o.holders.empty() ? 0 : o.holders.front().count;
        if ((count > 0) != makers) continue;
        auto at = node.objects.size();
        if (const auto it = by_memory.find(o.memory); o.memory != 0 && it != by_memory.end()) at = it->second;
        if (const auto it = by_name.find({o.job, o.id}); o.id && it != by_name.end()) at = it->second;
        if (at == node.objects.size()) {
          by_memory[o.memory] = at;
          if (o.id) by_name[{o.job, o.id}] = at;
          node.objects.push_back({o.job, o.id, o.bytes, ObjectState::kThere, o.spilled, 0, o.memory, {{process.worker, count}}});
          continue;
        }
        auto& known = node.objects[at];
        const auto is_it = [&](const auto& h) { return h.worker == process.worker; };
        if (std::none_of(known.holders.begin(), known.holders.end(), is_it)) known.holders.push_back({process.worker, count});
      }
      if (!makers) process.objects.clear();
    }
  }
}

void Inspection::request_report(runtime::Peer& peer, actors::ProcessReport who) {
  ++waiting_;
  ++num_processes_;
  peer.call(actors::number(actors::Method::kInspect), {to_bytes(request_), {}, {}},
            request_.what == actors::Inspect::What::kMetrics ? kMetricsPatience : kPatience,
            [self = shared_from_this(), who = std::move(who)](Result<runtime::Message> answer) mutable {
              self->received(std::move(who), std::move(answer));
            });
}

void Inspection::received(actors::ProcessReport who, Result<runtime::Message> answer) {
  auto said = answer ? actors::from_bytes<actors::ProcessReport>(answer->payload) : Result<actors::ProcessReport>(fail(answer.error()));
  if (said) {
    who.tasks = std::move(said->tasks);
    who.objects = std::move(said->objects);
    who.left_out = said->left_out;
    who.forgotten = said->forgotten;
    if (rows_ + who.tasks.size() + who.objects.size() > kMaxRows) leave(who, kMaxRows / num_processes_);
    rows_ += who.tasks.size() + who.objects.size();
    who.metrics = std::move(said->metrics);
    if (each_) each_(who);
  } else {
    who.silent = said.error();
  }
  // A process whose connection broke while it was asked has ended, or is about to end: it gets no row.
  const bool gone = !said && said.error().reason() == "Disconnected";
  if (!gone) reported_.processes.push_back(std::move(who));
  finish();
}

void Inspection::sent_to_all() { finish(); }

std::function<void()> Inspection::expect() {
  ++waiting_;
  return [self = shared_from_this()] { self->finish(); };
}

void Inspection::leave(actors::ProcessReport& process, std::size_t rows) {
  const auto over = [](const actors::TaskReport& t) { return t.state >= actors::TaskState::kFinished; };
  while (process.tasks.size() > rows) {  // ended calls are at the end
    ++(over(process.tasks.back()) ? process.forgotten : process.left_out);
    process.tasks.pop_back();
  }
  while (process.objects.size() > rows) {
    ++process.left_out;
    process.objects.pop_back();
  }
}

void Inspection::finish() {
  if (--waiting_ > 0) return;
  join_objects(reported_);
  if (all_) all_(reported_);
  responder_->reply({{}, to_bytes(reported_), {}});
}

}  // namespace shoal::scheduler
