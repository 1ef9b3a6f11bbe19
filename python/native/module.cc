// The extension module: conversions only, no logic. Each part has its own binding file.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "actors/protocol/cluster/function_worker.h"
#include "python/native/bindings.h"
#include "runtime/core/printable.h"
#include "runtime/core/version.h"
#include "runtime/process/standard_streams.h"

namespace shoal::python {

namespace {

// Waits until this process is `parent`'s child (a worker is forked twice and adopted by its node), then arranges to die with it.
void die_with(pid_t parent) {
  for (int i = 0; i < 10'000 && getppid() != parent; ++i) usleep(100);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a session or model may live until the interpreter ends
  m.attr("__version__") = kVersion;
  m.attr("FUNCTION_WORKER") = actors::kFunctionWorker;  // class name of the workers of remote functions
  m.def(
      "code_name",
      [](std::uint16_t code) {
        if (code >= kNumCodes) throw nb::value_error("there are nine codes, 0 to 8");
        return std::string(code_name(static_cast<Code>(code)));
      },
      nb::arg("code"), "Name of an error code.");
  m.def(
      "printable", [](std::string_view text, bool lines) { return lines ? printable_lines(text) : printable(text); }, nb::arg("text"),
      nb::arg("lines"), "The text with control characters escaped; with `lines`, its newlines and tabs stay.");
  m.def("die_with", &die_with, nb::arg("parent"), "Be killed when `parent`, whose child this process is or soon will be, ends.");
  m.def("open_standard_streams", &runtime::open_standard_streams, "Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed.");
  bind_errors(m);
  bind_refs(m);
  bind_session(m);
  bind_metrics(m);
  bind_telemetry(m);
  bind_channel(m);
  bind_network(m);
  bind_collective(m);
  bind_device(m);
  bind_step_graph(m);
  bind_step_runner(m);
  bind_model(m);
  bind_step(m);
  bind_protect(m);
  bind_shard_actor(m);
  bind_optim(m);
  bind_reshard(m);
  bind_checkpoint(m);
}

}  // namespace shoal::python
