// The bounds of rows (actors/protocol/cluster/row_bounds.h): checks of requests before they become rows, and the sizes of rows in messages.
//
// Texts that grow later, such as the reason why a job waits, are cut where they are written. Notices, to which the head sends no answer,
// are checked when they are read (RowText in actors/protocol/cluster/fields.h).
#pragma once

#include <cstddef>
#include <string>

#include "actors/protocol/cluster/rows.h"
#include "actors/protocol/wire/head_messages.h"

namespace shoal::scheduler {

// Return InvalidArgument/TooLarge if the row would exceed a bound.
Result<void> check_bounds(const actors::RegisterNode& node);
Result<void> check_bounds(const actors::JobSpec& job);
Result<void> check_bounds(const actors::GangSpec& gang);
Result<void> check_bounds(const actors::GroupSpec& group);
Result<void> check_bounds(const actors::HostActor& actor);
// Checks the attributes that an actor's row has already, together with those that are to be added.
Result<void> check_bounds(const std::map<std::string, std::string>& attributes, const actors::SetAttributes& more);

// Upper bounds of a row's bytes in a message, with its cause.
std::size_t row_bytes(const actors::ActorRow& row);
std::size_t row_bytes(const actors::NodeRow& row);
std::size_t row_bytes(const actors::WorkerRow& row);
std::size_t row_bytes(const actors::JobRow& row);
std::size_t row_bytes(const actors::GroupRow& row);

}  // namespace shoal::scheduler
