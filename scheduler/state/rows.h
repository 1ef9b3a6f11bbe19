// What the cluster state knows of a node, a worker, a job, a gang and a placement group. Records keep the first part of each; the second
// part is found out anew by a head that starts again.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/wire/messages.h"
#include "runtime/core/bytes.h"
#include "runtime/loop/clock.h"

namespace shoal::scheduler::rows {

struct Node {
  actors::NodeRow row;  // what is available follows from the workers and groups

  runtime::TimePoint last_beat;
  bool away = false;
  runtime::TimePoint drain_until;  // of one that drains, by the head's own clock
  bool told_to_leave = false;      // it is drained
  bool telling = false;            // it joined again, and has not yet told of all its workers
  std::size_t workers = 0;         // launched by us, not exited
};

struct Worker {
  actors::WorkerRow row;
  bool leaving = false;  // it said that it ends by itself
  actors::Resources held;
  GroupId group;  // out of whose bundle
  std::int32_t bundle = -1;
  ActorId actor;          // that was placed in it
  bool launched = false;  // by us: others only told of themselves, and are not ours to end

  std::int64_t lent = 0;  // CPUs (in units) that are not held while it is blocked
  bool heard_of = true;   // since its node joined again
  bool moving = false;    // told to end, because its node is drained
};

struct Job {
  actors::JobRow row;
  std::vector<actors::Launch> launches;  // by rank; of submitted jobs
  std::vector<actors::Resources> wants;
  std::vector<NodeId> placed;
  std::vector<WorkerId> processes;  // by rank
  WorkerId driver;                  // of a job that a driver opened
  bool attached = false;            // a process of it, launched or not, was told of by a node
  bool detached = false;            // it is an actor's, whose process counts as its driver
  bool stopping = false;
  std::set<NodeId> nodes;   // where a process of it was, and so may its objects be
  std::uint64_t order = 0;  // in which it was asked for; of a job that ended: in which it did

  std::size_t running = 0;
};

struct Gang {
  actors::GangSpec spec;
  std::uint64_t order = 0;

  std::vector<actors::Resources> wants;
  std::size_t living = 0;  // actors that are not dead
  runtime::TimePoint started;
  int early_deaths = 0;  // in a row
};

struct Group {
  actors::GroupRow row;
  std::vector<std::vector<actors::LabelMatch>> labels;  // of each bundle's node, or empty
  std::uint64_t order = 0;

  std::vector<actors::Resources> free;  // of each bundle: what no worker holds
};

// The first part of each, as bytes and back. A record that is none is DataLoss.
Bytes to_record(const Node& row);
Bytes to_record(const Worker& row);
Bytes to_record(const Job& row);
Bytes to_record(const Gang& row);
Bytes to_record(const Group& row);
Bytes to_record(const actors::ActorRow& row);
template <class Row>
Result<Row> from_record(const Bytes& record);

}  // namespace shoal::scheduler::rows
