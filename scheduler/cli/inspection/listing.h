// Rows of one kind, from the head or from all nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scheduler/cli/cluster.h"
#include "scheduler/cli/inspection/inspection_rows.h"

namespace shoal::scheduler::cli {

struct Listed {
  ClusterConnection cluster;
  std::string what;  // plural name
  actors::ListReply reply;
  std::optional<InspectionReply> reported;  // the nodes' reports, instead of the head's reply
  nlohmann::json rows;                      // before filters and limit
};

// Kinds: actors, nodes, workers, jobs, groups, tasks, objects, runtime-envs. Singular and plural name one kind; Ray's names are accepted as
// well. Returns InvalidArgument/Usage for another word.
Result<Listed> rows_of(const Common& common, std::string kind);

// The row with this id, or the only one whose id starts with it. Actors also match by name, jobs by submission id.
Result<nlohmann::json> find_row(const nlohmann::json& rows, const std::string& what, const std::string& id);

// A field of a row; "-" for null.
std::string text_of(const nlohmann::json& row, const char* key);

// The description of the argument that names a kind.
inline constexpr const char* kKindsOfRows = "actors, nodes, workers, jobs, groups, tasks, objects or runtime-envs";
// These kinds, for completion.
inline std::vector<std::string> kinds_of_rows() {
  return {"actors", "nodes", "workers", "jobs", "groups", "tasks", "objects", "runtime-envs"};
}

}  // namespace shoal::scheduler::cli
