// What this process's users measure (shoal.util.metrics).
#pragma once

#include "actors/session/metrics_recorder.h"

namespace shoal::python {

// This process's one: whoever measures need not be in a cluster yet, and may be in another later.
actors::MetricsRecorder& recorder();

}  // namespace shoal::python
