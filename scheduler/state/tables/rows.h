// Rows of the cluster state: node, worker, job, gang, placement group. The store has the first part of each struct, up to the blank line. A
// restarted head computes the second part anew.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/cluster/specs.h"
#include "runtime/core/bytes.h"
#include "runtime/loop/clock.h"

namespace shoal::scheduler::rows {

// A living node's connection. A node that joined again reports its workers first, and then sends a heartbeat.
enum class Link { kConnected, kAway, kReporting };

struct Node {
  actors::NodeRow row;  // `available` is derived from workers and groups

  runtime::TimePoint last_beat;
  Link link = Link::kConnected;
  runtime::TimePoint drain_until;  // on the head's steady clock
  bool leave_sent = false;         // EndNodeOn was issued
  std::size_t workers = 0;         // launched and not exited
};

struct Worker {
  actors::WorkerRow row;
  bool leaving = false;  // an intended end was announced
  actors::Resources held;
  GroupId group;  // placement group of the bundle that the worker uses
  std::int32_t bundle = -1;
  ActorId actor;          // the actor placed in it
  bool launched = false;  // started by the head; other processes connected to their node by themselves

  std::int64_t lent = 0;  // CPU units that the worker has lent while it is blocked
  bool reported = true;   // false until the worker's node, which joined again, has reported the worker
  bool moving = false;    // the process is being ended, so that its actor moves away from a draining node
};

struct Job {
  actors::JobRow row;
  actors::Launch launch;                 // the same for each process, without its rank's variables (rank_launch); submitted jobs only
  std::vector<actors::Resources> wants;  // by rank, all equal; submitted jobs only
  std::string address;                   // host of rank 0
  std::uint16_t port = 0;                // port at which the ranks meet; 0: none was sought or found yet
  std::vector<NodeId> placed;
  std::vector<WorkerId> processes;  // by rank
  WorkerId driver;                  // the driver, or a detached actor's process
  bool attached = false;            // a node has reported a process of this job
  bool detached = false;            // the job of a detached actor, whose process counts as the driver
  bool stopping = false;
  std::set<NodeId> nodes;   // nodes that had a process of this job, and may have its objects
  std::uint64_t order = 0;  // position in the order of requests; for an ended job, in the order of ends

  std::size_t running = 0;
};

struct Gang {
  actors::GangSpec spec;
  std::uint64_t order = 0;

  std::vector<actors::Resources> wants;
  std::size_t living = 0;  // actors that are not dead
  runtime::TimePoint started;
  int early_deaths = 0;  // number of early deaths in a row
};

struct Group {
  actors::GroupRow row;
  std::vector<std::vector<actors::LabelMatch>> labels;  // label rules per bundle, for the choice of its node; or empty
  std::string together;                                 // label of which the nodes of all bundles have one value; or empty
  std::uint64_t order = 0;

  std::vector<actors::Resources> free;  // per bundle: the resources that no worker holds
};

// The stored part of each row as bytes, and back. from_record() returns DataLoss for bytes that are no record.
Bytes to_record(const Node& row);
Bytes to_record(const Worker& row);
Bytes to_record(const Job& row);
Bytes to_record(const Gang& row);
Bytes to_record(const Group& row);
Bytes to_record(const actors::ActorRow& row);
template <class Row>
Result<Row> from_record(const Bytes& record);

}  // namespace shoal::scheduler::rows
