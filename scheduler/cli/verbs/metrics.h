// metrics: the cluster's metrics in Prometheus' text format, and the scrape configuration for Prometheus.
#pragma once

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

int metrics(const Common& common);
int scrape_config(const Common& common);

void add_metrics(CommandLine& line);

}  // namespace shoal::scheduler::cli
