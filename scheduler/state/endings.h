// Ends of processes, actors, groups and jobs, each with all that ends because of it.
//
// An exit ends or restarts the actors in the process, and ends what they made, and the job that the process led. A job's end ends its
// gangs, actors and groups; a group's end the actors in it; a detached actor's end its job.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

// Records the end of a process that has not exited yet, and places what waits.
void worker_exited(Parts& s, WorkerId worker, std::int32_t shell_code, const std::optional<Error>& cause);
// Ends a living actor, its process, and its whole gang if that still waits.
void end_actor(Parts& s, ActorId actor, const Error& cause);
// The caller drops the group's own entry from the queue. Ignores a removed group.
void remove_group(Parts& s, GroupId group, const Error& cause);
// Ends the job and places what waits. Ignores a job that has ended.
void end_job(Parts& s, JobId job, actors::JobState state);
// Asks the job's processes to end.
void stop_processes(Parts& s, JobId job, int signal);

}  // namespace shoal::scheduler
