// Conversions of every control message but those of inspection, and conditions on several values of a message.
#include "actors/protocol/wire/cancelling.h"
#include "actors/protocol/wire/convert.h"
#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/joining.h"
#include "actors/protocol/wire/log_files.h"
#include "actors/protocol/wire/node_messages.h"
#include "actors/protocol/wire/packages.h"
#include "actors/protocol/wire/run_files.h"
#include "actors/protocol/wire/task_log.h"

namespace shoal::actors {

void check_message(const Submission& v, wire::Submission::Reader) {
  KJ_REQUIRE(
      v.id.size() <= Submission::kMaxId && v.entrypoint.size() <= Submission::kMaxText && v.runtime_env.size() <= Submission::kMaxText,
      "a submission is too long");
}

static void check_message(const GangSpec& v, wire::CreateGang::Reader) {
  KJ_REQUIRE(v.handle.size() <= GangSpec::kMaxHandle, "a handle is too long");
  KJ_REQUIRE(v.name.size() <= GangSpec::kMaxName && v.name_space.size() <= GangSpec::kMaxName, "a name is too long");
  KJ_REQUIRE(v.actors.size() == 1 || (v.name.empty() && !v.detached && v.max_restarts == 0),
             "only a single actor has a name, is detached or restarts");
  KJ_REQUIRE(v.max_restarts >= -1 && v.max_task_retries >= -1, "a negative count");
}

static void check_message(const GroupSpec& v, wire::CreateGroup::Reader) {
  KJ_REQUIRE(v.name.size() <= GangSpec::kMaxName && v.name_space.size() <= GangSpec::kMaxName, "a name is too long");
}

static void check_message(const JobSpec&, wire::SubmitJob::Reader m) {
  KJ_REQUIRE(m.getNumWorkers() <= GangSpec::kMaxActors, "too many workers");
}

static void check_message(const SetNodeScheduling&, wire::SetNodeScheduling::Reader m) {
  KJ_REQUIRE(m.getDeadlineMs() <= SetNodeScheduling::kMaxDeadlineMs, "a deadline is too far away");
}

static void check_message(const HostActor&, wire::HostActor::Reader m) {
  KJ_REQUIRE(m.getWorldSize() >= 1 && m.getWorldSize() <= static_cast<int>(GangSpec::kMaxActors), "a gang's size out of range");
  KJ_REQUIRE(m.getRank() >= 0 && m.getRank() < m.getWorldSize(), "a rank outside its gang");
}

static void check_message(const StopWorker&, wire::StopWorker::Reader m) {
  KJ_REQUIRE(m.getSignal() > 0 && m.getSignal() < 32, "no such signal");
}

#include "actors/protocol/wire/messages.inc"

}  // namespace shoal::actors
