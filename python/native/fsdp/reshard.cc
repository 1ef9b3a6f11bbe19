// Bindings of the plan that moves a model from one mesh to another.
#include "fsdp/reshard/plan.h"

#include <tuple>

#include "python/native/bindings.h"

namespace shoal::python {

using fsdp::ReshardPlan;
using fsdp::Transfer;

namespace {

using Processes = std::vector<int>;

ReshardPlan make_plan(const std::vector<std::tuple<std::string, std::int64_t, std::size_t>>& parameters, const Processes& from,
                      int from_replicas, const Processes& to, int to_replicas, const std::vector<int>& hosts) {
  std::vector<fsdp::MovedRows> moved;
  for (const auto& [name, rows, row_bytes] : parameters) moved.push_back({name, rows, row_bytes});
  const auto placement = [](const Processes& processes, int replicas) {
    return fsdp::Placement{fsdp::Grid(static_cast<int>(processes.size()), replicas), processes};
  };
  return without_gil(
      [&] { return fsdp::plan_reshard(std::move(moved), placement(from, from_replicas), placement(to, to_replicas), hosts); });
}

}  // namespace

void bind_reshard(nb::module_& m) {
  nb::class_<Transfer>(m, "Transfer", "Rows of one parameter that one process sends to another, or keeps.")
      .def_ro("source", &Transfer::source)
      .def_ro("destination", &Transfer::destination)
      .def_ro("parameter", &Transfer::parameter)
      .def_prop_ro("begin", [](const Transfer& t) { return t.rows.begin; })
      .def_prop_ro("end", [](const Transfer& t) { return t.rows.end; })
      .def_ro("relayed", &Transfer::relayed, "The source receives the rows itself, in an earlier transfer.");
  nb::class_<ReshardPlan>(m, "ReshardPlan", "The transfers that move a model from one mesh to another.")
      .def_ro("transfers", &ReshardPlan::transfers, "In the order in which every process sends and receives.")
      .def_ro("kept", &ReshardPlan::kept, "Rows that stay on their process.")
      .def_prop_ro("moved_bytes", &ReshardPlan::moved_bytes)
      .def_prop_ro("kept_bytes", &ReshardPlan::kept_bytes)
      .def("table", &ReshardPlan::table, "The plan as text: a line per pair of processes, then one per transfer.");
  m.def(
      "plan_reshard", &make_plan, nb::arg("parameters"), nb::arg("old_processes"), nb::arg("old_replicas"), nb::arg("new_processes"),
      nb::arg("new_replicas"), nb::arg("hosts") = std::vector<int>(),
      "parameters: (name, rows, bytes per row). Processes: by rank of each mesh, replica after replica. hosts: the host of each process.");
}

}  // namespace shoal::python
