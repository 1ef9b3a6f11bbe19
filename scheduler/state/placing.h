// Decides where a request goes, takes the room from its nodes or bundles, and starts its processes.
#pragma once

#include <optional>
#include <vector>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

// Places one entry of the queue, as a whole. Returns false if it does not fit.
bool place_one(Parts& s, const Pending& entry);
// Frees the resources that a job was given and that no process of it has taken yet.
void give_back_places(Parts& s, JobId job);
void start_job(Parts& s, JobId job);
// The message to a node that starts a member of a gang, or a rank of a job. The caller sets its worker id.
actors::StartWorker start_of(const Parts& s, const rows::Gang& gang, std::size_t member);
actors::StartWorker start_of(const rows::Job& job, const RankPlace& place);

// The free resources of the bundle or node from which the worker's resources are taken.
actors::Resources& source(Parts& s, const rows::Worker& worker);

// The bundles of a group that have no node, as wants, and the free resources of the nodes that may get them. A bundle's label rules become
// an extra resource that only matching nodes have. One of `rooms` has to hold all wants: the nodes with one value of the group's label
// `together`, or all nodes. `rooms` is empty if no node has that label.
struct Placeable {
  std::vector<actors::Resources> wants;
  std::vector<Allowed> rooms;
};
// As place() of placement.h, in the first room that holds all wants.
std::optional<std::vector<NodeId>> place(const Placeable& request, actors::Strategy strategy, const Load& load = {});
Placeable placeable(const NodeTable& nodes, const rows::Group& group, const NodeResources& room);

// Fails if the gang names a node or a placement group that could never hold it.
Result<void> check_where(const Parts& s, const rows::Gang& gang);

}  // namespace shoal::scheduler
