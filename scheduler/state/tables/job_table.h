// Jobs: drivers, submitted programs, and detached actors.
//
// A job waits (kPending), runs and ends once, by finish(). A submitted job that has nodes but no processes yet waits for a port, at which
// its ranks will meet.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

class JobTable : public Table<JobId, rows::Job> {
 public:
  // The job's row; null if the job is unknown or has ended.
  const rows::Job* living(JobId id) const;
  bool has_submission(const std::string& id) const;

  // ---- transitions
  void add_driver(JobId id, const actors::RegisterDriver& driver, std::int64_t unix_ms);
  void add_detached(JobId id, const std::string& name, std::int64_t unix_ms);
  void add_submitted(JobId id, const actors::JobSpec& spec, const std::vector<actors::Resources>& wants, std::uint64_t order);
  // A node reported a process of the job that has no row: the head did not start it, or has lost its row.
  void attach(JobId id, NodeId node, const actors::WorkerUpdate& process);
  void reach(JobId id, NodeId node);  // a process of the job starts on this node
  void set_driver(JobId id, WorkerId process) { edit(id).driver = process; }
  void set_places(JobId id, const std::vector<NodeId>& nodes) { scratch(id).placed = nodes; }
  void set_meeting(JobId id, const std::string& address, std::uint16_t port);
  void start(JobId id, const std::vector<WorkerId>& processes, std::int64_t unix_ms);
  void stop(JobId id) { edit(id).stopping = true; }
  // Counts a process that exited. Returns true for the first failure, which gives the job's exit code and cause.
  bool process_exited(JobId id, const rows::Worker& process, std::int32_t shell_code, const std::optional<Error>& cause);
  // The exit code and cause with which the job is about to end.
  void set_outcome(JobId id, std::int32_t exit_code, const std::optional<Error>& cause);
  void finish(JobId id, actors::JobState state, std::int64_t unix_ms, std::uint64_t order);
  void explain(JobId id, const std::string& why);
  void remove(JobId id) { erase(id); }

  // ---- ended jobs, in the order of their ends; a deleted job stays among them, for nodes that join again and still have its memory
  const std::deque<JobId>& ended_jobs() const { return ended_; }
  void list_ended(JobId id) { ended_.push_back(id); }
  void forget_old(std::size_t max);

  // ---- after a restore
  // `running`: processes that have not exited. Drivers have until `deadline` to attach to a node again.
  void restored(const std::map<JobId, std::size_t>& running, runtime::TimePoint deadline);
  void put_off_deadlines(runtime::Duration by);
  // A driver whose deadline is over, or none.
  std::optional<JobId> take_unattached(runtime::TimePoint now);

 private:
  std::deque<JobId> ended_;
  std::map<JobId, runtime::TimePoint> unattached_;
};

// The position of a job's process among the others.
struct RankPlace {
  std::int32_t rank = 0, world_size = 0, local_rank = 0, local_world_size = 0, node_rank = 0, num_nodes = 0;
};
// The places of all processes of a job that is placed.
std::vector<RankPlace> rank_places(const rows::Job& job);
// The launch of one process of a submitted job: with torchrun's environment variables, if the job has ranks.
actors::Launch rank_launch(const rows::Job& job, const RankPlace& place);
// For a row that an earlier version stored, whose launch is that of rank 0: moves the meeting place of the ranks from its environment to
// the row, and removes rank 0's variables. No effect on other rows.
void take_meeting_from_launch(rows::Job& job);

}  // namespace shoal::scheduler
