// Turns a submitted job (a shell command line and its runtime_env) into a JobSpec for the head. Names are Ray's.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "actors/protocol/cluster/specs.h"

namespace shoal::scheduler::web {

// Defaults of a job's environment, taken from the cluster's processes.
struct Surroundings {
  std::string python;       // interpreter; its folder goes first on PATH
  std::string path;         // $PATH
  std::string python_path;  // $PYTHONPATH
  std::string folder;       // working directory of jobs without a working_dir
};

struct JobRequest {
  actors::Submission submission;  // the submitted job, with the runtime_env of its entrypoint
  std::map<std::string, double> resources;
};

// Reads a request of the job API. Returns InvalidArgument if it is faulty, Unimplemented for features of Ray that Shoal lacks.
Result<JobRequest> parse_job_request(std::string_view json_text);
Result<actors::JobSpec> job_spec(const JobRequest& request, const Surroundings& around);

}  // namespace shoal::scheduler::web
