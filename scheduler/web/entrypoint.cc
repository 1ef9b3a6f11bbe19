#include "scheduler/web/entrypoint.h"

#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "actors/protocol/cluster/row_bounds.h"
#include "runtime/wire/nesting.h"

namespace shoal::scheduler::web {

using actors::Launch;
using actors::Submission;
using nlohmann::json;

namespace {

Result<std::map<std::string, std::string>> texts(const json& value, const char* what) {
  const Error wrong = invalid_argument(fmt::format("{} is an object of strings by strings", what));
  if (value.is_null()) return std::map<std::string, std::string>();
  if (!value.is_object()) return fail(wrong);
  std::map<std::string, std::string> out;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return fail(wrong);
    out[name] = text;
  }
  return out;
}

Result<double> amount(const json& value, const std::string& what) {
  if (value.is_null()) return 0;
  if (!value.is_number() || value.get<double>() < 0) return fail(invalid_argument(what + " is a number that is not negative"));
  return value.get<double>();
}

// The supported parts of a runtime_env. `by_python`: Python prepares it, by installing packages or copying files.
struct Environment {
  std::map<std::string, std::string> variables;
  std::string folder;
  bool by_python = false;
  std::string for_children;  // the part of the runtime_env for processes that the job starts, as JSON
};

Result<Environment> read_environment(const std::string& text) {
  Environment out;
  if (text.empty()) return out;
  const auto env = json::parse(text, nullptr, false);
  if (!env.is_object()) return fail(invalid_argument("runtime_env is a JSON object"));
  json inherited = env;
  for (const auto& [key, value] : env.items()) {
    if (value.is_null()) continue;
    if (key == "env_vars") {
      SHOAL_TRY(out.variables, texts(value, "env_vars of runtime_env"));
      for (const auto& [name, variable] : out.variables) {
        if (name.empty() || name.find_first_of(std::string_view("=\0", 2)) != std::string::npos ||
            variable.find('\0') != std::string::npos) {
          return fail(invalid_argument("env_vars of runtime_env has a name or a value that an environment cannot hold"));
        }
        out.by_python |= variable.find('$') != std::string::npos;  // the value refers to existing variables, which Python replaces
      }
    } else if (key == "working_dir") {
      if (!value.is_string()) return fail(invalid_argument("working_dir of runtime_env is a path"));
      const std::string path = value;
      if (path.find("://") != std::string::npos) {
        return fail(unimplemented("working_dir of runtime_env cannot be an address (" + path + ")")
                        .with_hint("give a folder of the cluster's host"));
      }
      std::error_code ignored;
      if (!std::filesystem::path(path).is_absolute()) return fail(invalid_argument("working_dir of runtime_env is not absolute: " + path));
      if (std::filesystem::is_directory(path, ignored)) {
        out.folder = path;
        inherited.erase(key);  // the folder is used in place, so the job sees later changes to its files
      } else if (path.ends_with(".zip") && std::filesystem::is_regular_file(path, ignored)) {
        out.by_python = true;
      } else {
        return fail(invalid_argument("working_dir of runtime_env: this host has no folder " + path));
      }
    } else if (key == "pip" || key == "py_modules" || key == "uv") {
      out.by_python = true;
    } else if (key == "excludes") {
      continue;
    } else if (std::set<std::string_view>{"conda", "config", "container", "image_uri", "nsight", "worker_process_setup_hook"}.contains(
                   key)) {
      return fail(unimplemented(key + " of runtime_env is not in this release"));
    } else {
      return fail(invalid_argument("runtime_env has no " + key));
    }
  }
  out.for_children = inherited.empty() ? "" : inherited.dump();
  return out;
}

}  // namespace

Result<JobRequest> parse_job_request(std::string_view text) {
  if (nesting(text) > kMaxNesting) return fail(invalid_argument("a job is nested too deeply"));
  const auto body = json::parse(text, nullptr, false);
  if (!body.is_object()) return fail(invalid_argument("a job is a JSON object"));
  JobRequest out;
  Submission& s = out.submission;
  const auto get_text = [&](const json& value, const std::string& key, std::string& into) -> Result<void> {
    if (value.is_null()) return {};
    if (!value.is_string()) return fail(invalid_argument(key + " is a string"));
    into = value;
    return {};
  };
  for (const auto& [key, value] : body.items()) {
    if (key == "entrypoint") {
      SHOAL_OK(get_text(value, key, s.entrypoint));
    } else if (key == "submission_id" || key == "job_id") {  // job_id is the older name
      SHOAL_OK(get_text(value, key, s.id));
    } else if (key == "metadata") {
      SHOAL_TRY(s.metadata, texts(value, "metadata"));
    } else if (key == "runtime_env") {
      s.runtime_env = value.is_null() ? "" : value.dump(-1, ' ', false, json::error_handler_t::replace);
    } else if (key == "entrypoint_num_cpus" || key == "entrypoint_num_gpus" || key == "entrypoint_memory") {
      SHOAL_TRY(const double wanted, amount(value, key));
      if (wanted > 0) out.resources[key == "entrypoint_num_cpus" ? "CPU" : key == "entrypoint_num_gpus" ? "GPU" : "memory"] = wanted;
    } else if (key == "entrypoint_resources") {
      if (value.is_null()) continue;
      if (!value.is_object()) return fail(invalid_argument("entrypoint_resources is an object of numbers by name"));
      for (const auto& [name, wanted] : value.items()) {
        SHOAL_TRY(out.resources[name], amount(wanted, "entrypoint_resources." + name));
      }
    } else if (key == "entrypoint_label_selector") {
      if (!value.empty()) return fail(unimplemented("a job's process cannot be placed by labels yet; its actors can"));
    } else {
      return fail(invalid_argument("a job has no field " + key));
    }
  }
  return out;
}

Result<actors::JobSpec> job_spec(const JobRequest& request, const Surroundings& around) {
  const Submission& s = request.submission;
  if (s.entrypoint.empty())
    return fail(invalid_argument("the job has no entrypoint").with_hint("pass a shell command line, as \"python train.py\""));
  if (s.id.size() > Submission::kMaxId || s.entrypoint.size() > Submission::kMaxText || s.runtime_env.size() > Submission::kMaxText ||
      actors::pairs_bytes(s.metadata) > actors::RowBounds::kMaxPairsBytes) {
    return fail(invalid_argument(
        fmt::format("a job's id has {} bytes at most; its entrypoint and runtime_env {} each; its metadata {}, with {} more for each name",
                    Submission::kMaxId, Submission::kMaxText, actors::RowBounds::kMaxPairsBytes, actors::RowBounds::kPairBytes)));
  }
  if (s.id.find_first_of("/?#\n\r") != std::string::npos || s.entrypoint.find('\0') != std::string::npos) {
    return fail(invalid_argument("a job's id or entrypoint has a forbidden character"));
  }
  SHOAL_TRY(const Environment env, read_environment(s.runtime_env));
  actors::JobSpec spec;
  SHOAL_TRY(spec.resources, actors::Resources::from_amounts(request.resources));
  const auto& has_name = s.metadata.find("job_name");
  spec.name = has_name != s.metadata.end() ? has_name->second : s.entrypoint.substr(0, 60);
  spec.submission = s;
  Launch& launch = spec.launch;
  launch.kind = Launch::Kind::kProgram;
  launch.cwd = env.folder.empty() ? around.folder : env.folder;
  launch.env = {{"PYTHONUNBUFFERED", "1"}};
  // The folder of the cluster's interpreter goes first on PATH.
  if (const auto folder = std::filesystem::path(around.python).parent_path(); !folder.empty()) {
    launch.env.emplace_back("PATH", folder.string() + (around.path.empty() ? "" : ":" + around.path));
  }
  for (const auto& [name, value] : env.variables) {
    if (value.find('$') == std::string::npos) launch.env.emplace_back(name, value);
  }
  if (!env.folder.empty()) {
    const auto given = env.variables.find("PYTHONPATH");
    const std::string& rest = given != env.variables.end() ? given->second : around.python_path;
    std::erase_if(launch.env, [](const auto& e) { return e.first == "PYTHONPATH"; });
    launch.env.emplace_back("PYTHONPATH", env.folder + (rest.empty() ? "" : ":" + rest));
  }
  if (!env.for_children.empty()) launch.env.emplace_back("SHOAL_RUNTIME_ENV", env.for_children);
  // Both streams go into one, in the order of writing.
  const std::string line = "exec 2>&1\n" + s.entrypoint;
  launch.argv = env.by_python ? std::vector<std::string>{around.python, "-m", "shoal._entrypoint", line}
                              : std::vector<std::string>{"/bin/sh", "-c", line};
  return spec;
}

}  // namespace shoal::scheduler::web
