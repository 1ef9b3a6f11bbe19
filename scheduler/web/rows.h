// Rows of the cluster as JSON, for the command line and the HTTP interface.
#pragma once

#include <nlohmann/json.hpp>

#include "actors/protocol/wire/head_messages.h"

namespace shoal::scheduler {

nlohmann::json to_json(const Error& error);
nlohmann::json to_json(const actors::Resources& resources);
nlohmann::json to_json(const actors::ActorRow& row);
nlohmann::json to_json(const actors::NodeRow& row);
nlohmann::json to_json(const actors::WorkerRow& row);
nlohmann::json to_json(const actors::JobRow& row);
nlohmann::json to_json(const actors::GroupRow& row);
nlohmann::json rows_json(const actors::ListReply& reply);
// Returns true if this is the job's submission id or its id. Jobs of drivers have no submission id, so "" names no job.
bool is_job(const actors::JobRow& row, const std::string& id);
// A job in the format of Ray's job API.
nlohmann::json job_details(const actors::JobRow& row);

}  // namespace shoal::scheduler
