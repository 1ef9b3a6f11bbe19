#include "actors/protocol/wire/inspection.h"

#include <sys/stat.h>

#include "actors/protocol/cluster/metric_name.h"
#include "actors/protocol/wire/convert.h"
#include "actors/protocol/wire/inspection.capnp.h"

namespace shoal::actors {

using runtime::text;

const char* to_string(TaskState state) {
  switch (state) {
    case TaskState::kPendingArguments:
      return "PENDING_ARGS_AVAIL";
    case TaskState::kPendingPlace:
      return "PENDING_NODE_ASSIGNMENT";
    case TaskState::kSubmitted:
      return "SUBMITTED_TO_WORKER";
    case TaskState::kPendingTurn:
      return "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY";
    case TaskState::kRunning:
      return "RUNNING";
    case TaskState::kFinished:
      return "FINISHED";
    case TaskState::kFailed:
      return "FAILED";
  }
  return "?";
}

std::uint64_t which_memory(const Fd& memory) {
  struct stat known {};
  if (fstat(memory.get(), &known) != 0) return 0;
  return static_cast<std::uint64_t>(known.st_ino) ^ (static_cast<std::uint64_t>(known.st_dev) << 40);
}

// Refuses an invalid name, since it would make the whole text unreadable for Prometheus.
static void read_into(capnp::Text::Reader name, std::string& to, MetricName) {
  KJ_REQUIRE(is_metric_name(text(name)), "no name of a metric");
  to = text(name);
}

static void read_into(capnp::List<capnp::Text>::Reader from, LabelTexts<MetricSample::Labels>& to) {
  check_size(from, kMaxList, "labels");
  for (unsigned i = 0; i + 1 < from.size(); i += 2) {
    auto& [name, value] = to.labels.emplace_back();
    read_into(from[i], name, MetricName());
    value = text(from[i + 1]);
  }
}

static unsigned length(const LabelTexts<const MetricSample::Labels>& texts) { return 2 * length(texts.labels); }

static void fill(capnp::List<capnp::Text>::Builder to, const LabelTexts<const MetricSample::Labels>& from) {
  unsigned i = 0;
  for (const auto& [name, value] : from.labels) {
    to.set(i++, plain(name));
    to.set(i++, plain(value));
  }
}

#include "actors/protocol/wire/inspection.inc"

}  // namespace shoal::actors
