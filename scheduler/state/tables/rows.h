// Rows of the cluster state: node, worker, job, gang, placement group. A record stores the first part of each struct; a restarted head
// derives the second part again.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/cluster/rows.h"
#include "actors/cluster/specs.h"
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
  GroupId group;  // placement group of the bundle it uses
  std::int32_t bundle = -1;
  ActorId actor;          // the actor placed in it
  bool launched = false;  // by the head; other processes attached by themselves

  std::int64_t lent = 0;  // CPU units not held while it is blocked
  bool reported = true;   // by its node since that joined again
  bool moving = false;    // being ended because its node drains
};

struct Job {
  actors::JobRow row;
  std::vector<actors::Launch> launches;  // by rank; submitted jobs only
  std::vector<actors::Resources> wants;
  std::vector<NodeId> placed;
  std::vector<WorkerId> processes;  // by rank
  WorkerId driver;                  // the driver, or a detached actor's process
  bool attached = false;            // a node has reported a process of it
  bool detached = false;            // a detached actor's, whose process counts as the driver
  bool stopping = false;
  std::set<NodeId> nodes;   // nodes that had a process of it, and may have its objects
  std::uint64_t order = 0;  // order of requests; of an ended job: of its end

  std::size_t running = 0;
};

struct Gang {
  actors::GangSpec spec;
  std::uint64_t order = 0;

  std::vector<actors::Resources> wants;
  std::size_t living = 0;  // actors that are not dead
  runtime::TimePoint started;
  int early_deaths = 0;  // consecutive
};

struct Group {
  actors::GroupRow row;
  std::vector<std::vector<actors::LabelMatch>> labels;  // per bundle, of its node; or empty
  std::uint64_t order = 0;

  std::vector<actors::Resources> free;  // per bundle: what no worker holds
};

// The stored part of each row as bytes, and back. DataLoss for bytes that are no record.
Bytes to_record(const Node& row);
Bytes to_record(const Worker& row);
Bytes to_record(const Job& row);
Bytes to_record(const Gang& row);
Bytes to_record(const Group& row);
Bytes to_record(const actors::ActorRow& row);
template <class Row>
Result<Row> from_record(const Bytes& record);

}  // namespace shoal::scheduler::rows
