// Ends of processes, actors, groups and jobs, each with all that ends because of it.
//
// The exit of a process ends or restarts its actors, and ends what they made. It ends the job whose driver or detached actor the process
// was. A job's end ends its gangs, actors and groups; a group's end the actors in it; a detached actor's end its job.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

// Records that a process exited, with all consequences, and places waiting entries. The worker's row must not be kExited yet.
void worker_exited(Parts& s, WorkerId worker, std::int32_t shell_code, const std::optional<Error>& cause);
// Ends a living actor and its process. If its gang still waits for room, the whole gang ends.
void end_actor(Parts& s, ActorId actor, const Error& cause);
// Removes a placement group, unless it is removed already. The caller drops the group's own entry from the queue.
void remove_group(Parts& s, GroupId group, const Error& cause);
// Ends the job, unless it has ended already, and places waiting entries.
void end_job(Parts& s, JobId job, actors::JobState state);
// Asks the job's processes to end.
void stop_processes(Parts& s, JobId job, int signal);

}  // namespace shoal::scheduler
