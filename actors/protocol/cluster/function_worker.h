// A process that runs remote functions is an actor of a reserved class, but is displayed as a worker.
#pragma once

#include <string>
#include <string_view>

#include "actors/protocol/cluster/rows.h"

namespace shoal::actors {

inline constexpr const char* kFunctionWorker = "remote functions";
// Stands in the class name between the reserved class and the function for which the worker was first started; the worker runs others too.
inline constexpr std::string_view kFunctionOf = ": ";

inline bool is_function_class(std::string_view class_name) { return class_name.starts_with(kFunctionWorker); }
inline bool is_function_worker(const ActorRow& row) { return is_function_class(row.class_name); }

// How users see an actor or a worker of functions: "actor Counter", "function train_step".
inline std::string people_call(const std::string& class_name) {
  if (!is_function_class(class_name)) return "actor " + class_name;
  const auto at = class_name.find(kFunctionOf);
  return at == std::string::npos ? class_name : "function " + class_name.substr(at + kFunctionOf.size());
}

}  // namespace shoal::actors
