// A job as people submit it (a shell command line, and what is to be around it) as the JobSpec that the head takes. Names are Ray's.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "actors/cluster/cluster.h"

namespace shoal::scheduler::web {

// Of the cluster's processes: what a job finds unless it says otherwise.
struct Surroundings {
  std::string python;       // its folder goes first on PATH
  std::string path;         // $PATH
  std::string python_path;  // $PYTHONPATH
  std::string folder;       // where a job without a working_dir runs
};

struct JobRequest {
  actors::Submission submission;  // its runtime_env decides what is around the entrypoint
  std::map<std::string, double> resources;
};

// InvalidArgument for what is wrong with the request, Unimplemented for what Ray has and this has not.
Result<JobRequest> parse_job_request(std::string_view json_text);
Result<actors::JobSpec> job_spec(const JobRequest& request, const Surroundings& around);

}  // namespace shoal::scheduler::web
