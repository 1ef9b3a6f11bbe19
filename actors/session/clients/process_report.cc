#include "actors/session/clients/process_report.h"

#include <memory>

#include "actors/value/shared_memory.h"

namespace shoal::actors {

namespace {

// Rows for this process's large values. Each value gets an identifier at its first report, and keeps it.
std::vector<ObjectReport> report_memories(const std::vector<std::shared_ptr<SharedMemory>>& memories, JobId job, runtime::Random& random) {
  std::vector<ObjectReport> out;
  for (const auto& memory : memories) {
    ObjectReport reported;
    reported.job = job;
    const auto published = memory->published();
    if (published) reported.job = published->job;
    std::uint64_t name = published ? published->id.value : 0;
    if (name == 0 && memory->referred) {
      std::uint64_t fresh = random.id<ObjectId>().value;
      name = memory->name.compare_exchange_strong(name, fresh) ? fresh : name;
    }
    reported.id = ObjectId{name};
    reported.bytes = memory->bytes();
    reported.spilled = memory->spilled();
    if (const auto fd = memory->descriptor()) reported.memory = which_memory(*fd);
    reported.holders = {{WorkerId(), memory->referred ? 1 : 0}};
    out.push_back(std::move(reported));
  }
  return out;
}

// Removes rows beyond `limit`, and returns their number.
template <class Row>
std::uint64_t cut(std::vector<Row>& rows, std::size_t limit) {
  const std::size_t more = rows.size() > limit ? rows.size() - limit : 0;
  rows.resize(rows.size() - more);
  return more;
}

}  // namespace

ProcessReporter::ProcessReporter(SessionLoop& loop, NodeClient& node, CallClient& calls, ObjectClient& objects, const CallBook& book,
                                 runtime::Random& random, const Identity& self, Measured measured)
    : loop_(loop),
      node_(node),
      calls_(calls),
      objects_(objects),
      book_(book),
      random_(random),
      self_(self),
      measured_(std::move(measured)) {
  node.link().on_request(Method::kInspect, [this](const runtime::Message& message) -> Result<runtime::Message> {
    SHOAL_TRY(const auto request, from_bytes<Inspect>(message.body));
    return runtime::Message{{}, to_bytes(report(request)), {}};
  });
}

ProcessReport ProcessReporter::report(const Inspect& request) {
  ProcessReport out;
  if (request.what == Inspect::What::kObjects) {
    out.objects = report_memories(objects_.memory().all(), self_.job, random_);
    out.left_out = cut(out.objects, Inspect::kMaxRows);
  } else if (request.what == Inspect::What::kTasks) {
    constexpr std::size_t limit = Inspect::kMaxRows;
    out.left_out = book_.report_running(out.tasks, limit);
    out.left_out += calls_.report(out.tasks, limit);
    out.forgotten = book_.report_over(out.tasks, limit);
  } else if (request.what == Inspect::What::kMetrics) {
    out.metrics = last_ ? *last_ : metrics(false);
  }
  return out;
}

std::vector<MetricFamily> ProcessReporter::metrics(bool last) const {
  std::vector<MetricFamily> out;
  if (measured_) out = measured_(last);
  book_.measure(calls_.counts(), out);
  return out;
}

void ProcessReporter::send_last_metrics(runtime::Duration within) {
  const auto answered = std::make_shared<bool>(true);
  loop_.own([&] {
    if (!node_.link().connected()) return;
    const ReportedMetrics last{metrics(self_.owns_job)};
    if (self_.owns_job) last_ = last.metrics;
    if (last.metrics.empty()) return;
    *answered = false;
    node_.link().call(Method::kLastMetrics, {{}, to_bytes(last), {}}, within,
                      [answered](const Result<runtime::Message>&) { *answered = true; });
  });
  (void)loop_.wait([&] { return *answered; });
}

}  // namespace shoal::actors
