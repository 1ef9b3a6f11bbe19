// The parts of the cluster state: a table per kind of row, the queue of what waits, and the turn of the current event.
//
// A table keeps its own invariants. Functions on Parts change several tables. events.h handles events, and endings.h ends what depends on
// something that ended. queue.h chooses the next entry, and placing.h gives it room. Each of these files uses only those
// named after it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/loop/clock.h"
#include "runtime/loop/random.h"
#include "scheduler/state/actions.h"
#include "scheduler/state/fair_share_queue.h"
#include "scheduler/state/tables/actor_table.h"
#include "scheduler/state/tables/gang_table.h"
#include "scheduler/state/tables/group_table.h"
#include "scheduler/state/tables/hosted_gangs.h"
#include "scheduler/state/tables/job_table.h"
#include "scheduler/state/tables/node_table.h"
#include "scheduler/state/tables/worker_table.h"

namespace shoal::scheduler {

struct StateOptions {
  runtime::Duration node_timeout = std::chrono::seconds(5);  // longest time without a heartbeat
  // Longest expected time between ticks. After a longer one the head itself stood still, so the excess is not a node's silence.
  runtime::Duration longest_tick = std::chrono::seconds(1);
  runtime::Duration warn_after = std::chrono::seconds(1);  // time pending before a warning
  std::uint32_t stop_grace_ms = 3000;                      // from SIGTERM to SIGKILL
  std::size_t max_ended_rows = 1000;                       // per table; the oldest are dropped first
  std::size_t max_listed_rows = 500;                       // per reply to list(), which has to fit a message
  // From its second consecutive death within `early_death` of a start, an actor waits before it restarts: first_pause, then twice as long
  // each time.
  runtime::Duration early_death = std::chrono::seconds(10);
  runtime::Duration first_pause = std::chrono::milliseconds(100), longest_pause = std::chrono::seconds(5);
  // `patience`: how long an entry waits before room is kept for it. The room is then kept for a window: the first one lasts `first_window`,
  // later ones longer.
  runtime::Duration patience = std::chrono::seconds(30), first_window = std::chrono::seconds(10), longest_window = std::chrono::seconds(60);
  std::size_t max_listed_bytes = 200'000;  // per reply to list(), unless its only row is longer
  std::size_t max_listed_text = 500;       // bytes of each text of a cause in list(); actor() and job() return all of it
  // Texts of status() about entries that wait, and about rows that were set aside; and bytes of each.
  std::size_t max_status_lines = 100, max_status_text = 1000;
};

// The event that is being decided: its time, the source of new ids and orders, and the actions so far.
struct Turn {
  const StateOptions options;
  runtime::Random& random;
  runtime::TimePoint now{};
  std::int64_t unix_ms = 0;
  std::uint64_t next_order = 1;  // the order of the next request or end
  std::vector<Action> actions = {};

  void act(Action action) { actions.push_back(std::move(action)); }
};

// An entry of the queue: a gang, a group or a submitted job that waits for room. Jobs take turns: the job with the smallest share goes next
// (fair_share_queue.h), with its earliest entry. An entry that does not fit is passed over. A gang, a group or a submitted job is placed as
// a whole or not at all.
struct Pending {
  enum class Shown { kNothing, kReason, kWarning };  // the part of `why` that users have seen

  GangId gang;  // one of the three ids is set
  JobId job;
  GroupId group;
  runtime::TimePoint since;
  Shown shown = Shown::kNothing;
  runtime::TimePoint not_before{};
  GangId like{};               // for gangs: the first of consecutive gangs with equal requests; none: the gang waits in a placement group
  JobId gang_job{};            // for gangs: the gang's job
  std::uint64_t tried_at = 0;  // ResourceIndex::growth() of the last attempt; retried once it has grown
  int windows = 0;             // number of windows that this entry has had (Window)
  runtime::TimePoint rests_until{};

  // Returns true for a gang that waits for room in its placement group.
  bool waits_in_group() const { return gang && !like; }
  bool same_as(const Pending& other) const { return gang == other.gang && job == other.job && group == other.group; }
};

// The entry for which room is kept; it may have ended since.
struct Window {
  Pending whose;
  std::vector<actors::Resources> wants;
  std::string name;
  runtime::TimePoint until;
};

struct Queue {
  std::deque<Pending> entries;
  std::optional<Window> window;
  int num_searches = 0;  // searches of all nodes since the last tick, to explain entries
  bool put_off = false;  // place_after() is under way, so place_pending() does nothing
};

struct Parts {
  Turn turn;
  NodeTable nodes = {};
  WorkerTable workers = {};
  JobTable jobs = {};
  ActorTable actors = {};
  GangTable gangs = {};
  HostedGangs hosted = {};
  GroupTable groups = {};
  Shares shares = {};
  Queue queue = {};
};

}  // namespace shoal::scheduler
