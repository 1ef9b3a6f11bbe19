// The queue of what waits for room: turns among jobs, and windows, which keep room for an entry that has waited for long.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

// Places all entries that fit, in the order of turns.
void place_pending(Parts& s);
// Runs `end`, which ends many processes, and then places entries once: place_pending() has no effect meanwhile. A round of turns takes time
// with the length of the queue, so one after each of thousands of ends would hold up the head.
template <class End>
void place_after(Parts& s, const End& end) {
  const bool outer = std::exchange(s.queue.put_off, true);
  end();
  s.queue.put_off = outer;
  place_pending(s);
}
// Opens and closes windows.
void check_windows(Parts& s);

// The entry of a gang or a submitted job for the end of the queue.
Pending waiting(Parts& s, const rows::Gang& gang);
Pending waiting(Parts& s, const rows::Job& job);
void drop_gang(Queue& queue, GangId gang);
void drop_group(Queue& queue, GroupId group);
// Drops all entries of a job.
void drop_job(Parts& s, JobId job);

std::string name_of(const Parts& s, const Pending& entry);
// Returns true while room is kept for another entry (Window), and this one asks for resources that the other one wants.
bool held_up(const Parts& s, const Pending& entry);
// Returns true if an entry waits that goes before this job's workers of remote functions, and would fit in their place. Such an entry
// belongs to the same job, or to one with a smaller share.
bool wanted_back(const Parts& s, JobId job);

}  // namespace shoal::scheduler
