// The metrics of this process's users (shoal.util.metrics).
#pragma once

#include "actors/session/metrics_recorder.h"

namespace shoal::python {

// The recorder of this process. There is one only: it also records before the process joins a cluster, and outlives a session.
actors::MetricsRecorder& recorder();

}  // namespace shoal::python
