// The parts of the cluster state: a table per kind of row, the queue of what waits, and the turn of the current event.
//
// A table keeps its own invariants. Functions on Parts change several tables. events.h handles events, and endings.h ends what depends on
// something that ended. queue.h chooses the next entry, and placing.h gives it room. Each of these files uses only those
// named after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
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
  std::uint64_t like = 0;  // the same for consecutive gangs or jobs with equal requests; 0: the entry is a placement group or waits in one
  JobId gang_job{};        // for gangs: the gang's job
  std::uint64_t tried_at = 0;  // ResourceIndex::growth() of the last attempt; retried once it has grown
  int windows = 0;             // number of windows that this entry has had (Window)
  runtime::TimePoint rests_until{};

  // Returns true for a gang that waits for room in its placement group.
  bool waits_in_group() const { return gang && like == 0; }
  bool same_as(const Pending& other) const { return gang == other.gang && job == other.job && group == other.group; }
};

// The entry for which room is kept; it may have ended since.
struct Window {
  Pending whose;
  std::vector<actors::Resources> wants;
  std::string name;
  runtime::TimePoint until;
};

// The entries in the order of arrival. The queue knows which of them the next tick or round of turns has to visit, so that entries which
// only wait cost nothing.
class Queue {
 public:
  const std::deque<Pending>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  // An entry, for a change of what its turns, its windows and its reasons leave.
  Pending& at(std::size_t index) { return entries_[index]; }
  void add(Pending entry) {
    if (entry.not_before != runtime::TimePoint()) rests_.insert(entry.not_before);
    if (entry.waits_in_group()) ++num_in_groups_;
    entries_.push_back(std::move(entry));
  }
  // Drops the entries for which `drops` returns true. It is called once for each entry, in their order.
  template <class Drops>
  void drop(const Drops& drops) {
    std::size_t index = 0, num_warned = num_warned_, num_tried = num_tried_;
    const auto num_dropped = std::erase_if(entries_, [&](const Pending& entry) {
      const bool out = drops(entry);
      if (out && index < num_warned_) --num_warned;
      if (out && index < num_tried_) --num_tried;
      if (out && entry.waits_in_group()) --num_in_groups_;
      ++index;
      return out;
    });
    num_warned_ = num_warned;
    num_tried_ = num_tried;
    if (num_dropped > 0) search_again();
  }

  // ---- turns
  // Returns true once the rest of an entry (not_before) has ended.
  bool any_rested(runtime::TimePoint now) const { return !rests_.empty() && *rests_.begin() <= now; }
  // The first entry that may have a turn. Those before it had one at this growth of the nodes' room (ResourceIndex::growth), or are held
  // up.
  std::size_t begin_round(runtime::TimePoint now, std::uint64_t growth) {
    if (any_rested(now) || num_in_groups_ > 0 || growth != tried_growth_) num_tried_ = 0;
    rests_.erase(rests_.begin(), rests_.upper_bound(now));
    tried_growth_ = growth;
    return std::exchange(num_tried_, entries_.size());
  }

  // ---- reasons why entries wait
  // The number of entries at the front about which users have been warned. explain_pending() begins after them.
  std::size_t num_warned() const { return num_warned_; }
  void set_num_warned(std::size_t num) { num_warned_ = num; }

  // ---- windows
  const std::optional<Window>& window() const { return window_; }
  void open_window(Window window) { window_ = std::move(window); }
  void close_window() {
    window_.reset();
    num_tried_ = 0;  // entries that it has held up
    search_again();
  }
  // This group's entry wants other bundles than before, so it has a turn although no node's room has grown.
  void try_again(GroupId group) {
    const auto at = std::ranges::find(entries_, group, &Pending::group);
    if (at == entries_.end()) return;
    at->tried_at = 0;
    num_tried_ = std::min(num_tried_, static_cast<std::size_t>(at - entries_.begin()));
    search_again();
  }
  // A value of Pending::like that no entry has yet.
  std::uint64_t new_like() { return ++last_like_; }
  // A search of all entries for one that needs a window found none. Until `next` it would find none again, unless an entry goes or the
  // nodes' capacity changes.
  void searched(runtime::TimePoint next, std::uint64_t capacity_changes) { searched_ = {next, capacity_changes}; }
  void search_again() { searched_.reset(); }
  bool needs_search(runtime::TimePoint now, std::uint64_t capacity_changes) const {
    return !searched_ || now >= searched_->next || searched_->capacity_changes != capacity_changes;
  }

  // Returns false if what this class knows about the entries contradicts them. For tests and the simulation.
  bool adds_up() const {
    return num_tried_ <= size() && num_warned_ <= size() &&
           num_in_groups_ == static_cast<std::size_t>(std::ranges::count_if(entries_, &Pending::waits_in_group)) &&
           std::all_of(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(num_warned_),
                       [](const Pending& p) { return p.shown == Pending::Shown::kWarning; });
  }

  int num_searches = 0;          // searches of all nodes since the last tick, to explain entries
  bool put_off = false;          // place_after() is under way, so place_pending() does nothing
  std::uint64_t num_visits = 0;  // visits of entries by ticks and rounds of turns

 private:
  struct Searched {
    runtime::TimePoint next;
    std::uint64_t capacity_changes;
  };

  std::deque<Pending> entries_;
  std::size_t num_in_groups_ = 0;
  std::uint64_t last_like_ = 0;
  std::multiset<runtime::TimePoint> rests_;  // ends of rests; some of their entries may have gone
  std::size_t num_tried_ = 0;                // first entries that need no turn while the room has not grown since tried_growth_
  std::uint64_t tried_growth_ = 0;
  std::size_t num_warned_ = 0;
  std::optional<Window> window_;
  std::optional<Searched> searched_;
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
