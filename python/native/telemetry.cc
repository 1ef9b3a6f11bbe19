// Bindings of the process's part of its run's folder (docs/runs.md).
#include "runtime/telemetry/telemetry.h"

#include "python/native/bindings.h"

namespace shoal::python {

using runtime::Activity;
using runtime::Telemetry;

void bind_telemetry(nb::module_& m) {
  nb::enum_<Activity>(m, "Activity", "The occupation of a rank's training thread.")
      .value("ELSEWHERE", Activity::kElsewhere)
      .value("LOADER", Activity::kLoader)
      .value("FORWARD", Activity::kForward)
      .value("BACKWARD", Activity::kBackward)
      .value("OPTIMIZER", Activity::kOptimizer)
      .value("SAVE", Activity::kSave)
      .value("GATHER", Activity::kGather)
      .value("REDUCE", Activity::kReduce)
      .value("WINDOW", Activity::kWindow)
      .value("SYNC", Activity::kSync)
      .value("ENDED", Activity::kEnded);
  nb::class_<Telemetry>(
      m, "Telemetry",
      "What this process appends to its run's folder (docs/runs.md). Call its methods from one thread where a step is meant.")
      .def(nb::new_([](const std::string& run, const std::string& role, int rank, int world, int local_rank, const std::string& host,
                       const std::string& device, std::vector<std::string> argv) {
             return unwrap(Telemetry::open(run, {role, rank, world, local_rank, host, device, std::move(argv)}));
           }),
           nb::arg("run"), nb::arg("role"), nb::arg("rank"), nb::arg("world"), nb::arg("local_rank"), nb::arg("host"), nb::arg("device"),
           nb::arg("argv"))
      .def("begin", &Telemetry::begin, nb::arg("activity"), nb::arg("key") = -1)
      .def("end", &Telemetry::end, nb::arg("activity"), nb::arg("key") = -1)
      .def("end_optimizer", &Telemetry::end_optimizer, nb::arg("key"), "Ends an optimizer's step, and so the training step.")
      .def("add_units", &Telemetry::add_units, nb::arg("names"), "Returns the number of the first one.")
      .def("begin_batch", &Telemetry::begin_batch)
      .def("wait_begin", &Telemetry::wait_begin, nb::arg("wait"), nb::arg("unit") = -1)
      .def("wait_end", &Telemetry::wait_end)
      .def("set_member", &Telemetry::set_member, nb::arg("rank"), nb::arg("world"), nb::arg("generation"))
      .def_prop_rw("step", &Telemetry::step, &Telemetry::set_step, "The number of steps that have ended.")
      .def("set_paused", &Telemetry::set_paused, nb::arg("paused"), "Records no step meanwhile, to measure the cost of recording.")
      .def("metrics", &Telemetry::metrics, nb::arg("values"))
      .def("event", &Telemetry::event, nb::arg("kind"), nb::arg("fields") = "{}", "`fields`: a JSON object.")
      .def("close", &Telemetry::close, nb::arg("code").none(), nb::arg("cause"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("folder", &Telemetry::folder);
}

}  // namespace shoal::python
