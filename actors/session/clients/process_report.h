// This process's answers to inspection (actors/protocol/wire/inspection.h), made on request, and the last metrics, which it sends to its
// node before it ends.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "actors/session/clients/call_client.h"
#include "actors/session/clients/object_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/node_client.h"
#include "actors/session/references/call_book.h"
#include "runtime/loop/random.h"

namespace shoal::actors {

class ProcessReporter {
 public:
  // Returns the metrics of this process's user code. `last`: the process leaves its job, so its counters restart at zero, and the
  // process's next job does not report them again. Any thread, never with Python's GIL held.
  using Measured = std::function<std::vector<MetricFamily>(bool last)>;
  ProcessReporter(SessionLoop& loop, NodeClient& node, CallClient& calls, ObjectClient& objects, const CallBook& book,
                  runtime::Random& random, const Identity& self, Measured measured);
  ProcessReporter(const ProcessReporter&) = delete;
  ProcessReporter& operator=(const ProcessReporter&) = delete;

  // For a process about to end: sends its metrics to the node and waits for the answer, at most `within`. Any thread.
  void send_last_metrics(runtime::Duration within);

 private:
  // report() and metrics(): loop thread only.
  ProcessReport report(const Inspect& request);
  std::vector<MetricFamily> metrics(bool last) const;

  SessionLoop& loop_;
  NodeClient& node_;
  CallClient& calls_;
  ObjectClient& objects_;
  const CallBook& book_;
  runtime::Random& random_;
  const Identity& self_;
  const Measured measured_;
  // The metrics of send_last_metrics() in a process that owns its job, whose counts have restarted at zero since.
  std::optional<std::vector<MetricFamily>> last_;
};

}  // namespace shoal::actors
