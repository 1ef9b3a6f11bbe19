// The objects of Kubernetes for a run in pods, as YAML.
#pragma once

#include <string>

#include "scheduler/cli/launch/request.h"

namespace shoal::scheduler::cli {

// A JobSet. `request`: from complete(). With a queue, all objects have its label, and further hosts of an elastic run are a Job of their
// own, which Kueue admits and takes back apart from the first ones.
std::string job_set(const LaunchRequest& request);

// The text, which is UTF-8, as a YAML string that no reader takes for anything else.
std::string yaml_text(const std::string& text);

// Returns the text with each $ doubled, for a container's command or variables: Kubernetes replaces $(NAME) there and reads $$ as $.
std::string pod_word(const std::string& text);

}  // namespace shoal::scheduler::cli
