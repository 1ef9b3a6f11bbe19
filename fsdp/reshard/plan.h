// The transfers that move a sharded model from one mesh to another: which process sends which rows of which parameter to which process.
// A pure function of sizes, computed alike by every process.
//
// Each process of the new mesh keeps the rows that it owned before and receives the others from an old owner. Therefore no plan moves fewer
// bytes. Where the old mesh has replicas, a source on the receiver's host comes first, then the one that sends least. Where the new mesh
// has replicas, one process of a host fetches rows that its host lacks. It passes them on to the other replicas there (Transfer::relayed).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout/layout.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

// Tensors that are sharded alike: a parameter, and states of an optimizer with its layout.
struct MovedRows {
  std::string name;
  std::int64_t rows = 0;      // size of the sharded dim
  std::size_t row_bytes = 0;  // bytes of a row, added up over the tensors
};

// The positions of a grid and the processes at them. In the old mesh a process may have several positions: it brings the shards of dead
// ranks beside its own.
struct Placement {
  Grid grid;
  std::vector<int> processes;  // by rank of the grid; numbers below 2^20
};

struct Transfer {
  int source = 0, destination = 0;  // processes
  std::size_t parameter = 0;        // index in the plan's parameters
  Rows rows;
  bool relayed = false;  // the source receives the rows itself, in a transfer that is not relayed
  bool operator==(const Transfer&) const = default;
};

struct ReshardPlan {
  std::vector<MovedRows> parameters;
  // Between different processes, in the order in which each process sends and receives. Relayed ones come last. The others are
  // ordered by the distance from source to destination: all processes can then send and receive at once, each with one other.
  std::vector<Transfer> transfers;
  std::vector<Transfer> kept;  // rows that stay on their process

  std::size_t bytes(const Transfer& t) const { return static_cast<std::size_t>(t.rows.count()) * parameters[t.parameter].row_bytes; }
  std::size_t moved_bytes() const;
  std::size_t kept_bytes() const;
  // One line per pair of processes and one per transfer, for people.
  std::string table() const;
};

// `host_of_process`: by process, the number of its host; empty: all are on one host. Returns InvalidArgument for placements whose grid has
// another size, for a process that has two places in the new mesh, and for a process without a host.
Result<ReshardPlan> plan_reshard(std::vector<MovedRows> parameters, const Placement& from, const Placement& to,
                                 std::span<const int> host_of_process = {});

}  // namespace shoal::fsdp
