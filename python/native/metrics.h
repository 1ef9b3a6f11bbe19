// The metrics of this process's users (shoal.util.metrics).
#pragma once

#include "actors/session/metrics_recorder.h"

namespace shoal::python {

// The process's only recorder: it also records outside a cluster, and outlives a session.
actors::MetricsRecorder& recorder();

}  // namespace shoal::python
