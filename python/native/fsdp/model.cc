// Bindings of a sharded model on one rank: the calls of a training step.
#include "python/native/fsdp/fsdp.h"

namespace shoal::python {

using fsdp::ShardedModel;
using fsdp::ShardedUnit;
using Gradient = fsdp::Reducer::Gradient;

namespace {

std::size_t gradient_bytes(const ShardedUnit& u) {
  std::size_t out = 0;
  for (const auto& p : u.layout().placed()) {
    for (int rank = 0; p.parameter.requires_grad && rank < u.grid().world_size; ++rank)
      out += fsdp::Layout::owned_bytes(p, u.grid().shards(), u.grid().shard_of(rank));
  }
  return out;
}

// Constructs a Gradient from addresses. The address 0 stands for memory that does not exist.
void make_gradient(Gradient* out, std::uintptr_t whole, int dtype, std::uintptr_t own, bool accumulate, std::uintptr_t partial,
                   bool has_partial) {
  if (dtype < 0 || dtype >= kNumDTypes || !fsdp::can_be_sharded(static_cast<DType>(dtype))) throw nb::value_error("not a dtype's number");
  new (out) Gradient{memory_at(whole), memory_at(own), accumulate, static_cast<DType>(dtype), memory_at(partial), has_partial};
}

void backward_end(ShardedModel& s, std::size_t unit, const std::vector<Gradient>& gradients, double scale, bool everywhere, bool reshard,
                  double weight) {
  without_gil([&] { return s.backward_end(unit, gradients, {scale, everywhere, weight}, reshard); });
}

std::vector<std::pair<std::uint32_t, std::vector<bool>>> take_reduced(ShardedModel& s) {
  std::vector<std::pair<std::uint32_t, std::vector<bool>>> out;
  for (auto& r : s.reductions().take()) out.emplace_back(r.unit, std::move(r.present));
  return out;
}

std::pair<std::string, std::size_t> next_service(ShardedModel& s) {
  using What = ShardedModel::Service::What;
  const auto a = without_gil([&] { return s.next_service(); });
  return {a.what == What::kPublish ? "publish" : a.what == What::kWindow ? "window" : "", a.unit};
}

nb::dict memory_of(const ShardedModel& s) {
  auto out = memory_dict(s.memory());
  std::size_t gradients = 0;
  for (const auto& u : s.units()) gradients += gradient_bytes(*u);
  out["gradients"] = gradients;
  out["optimizer"] = 0;
  return out;
}

void plan(ShardedModel& s, int prefetch, std::vector<fsdp::PrefetchList> lists, bool alike) {
  fsdp::PlanOptions options;
  if (alike) options.min_part = 2;
  options.prefetch = {prefetch, std::move(lists)};
  s.plan(std::move(options));
}

using ModelClass = nb::class_<ShardedModel>;

void bind_passes(ModelClass& model) {
  model
      .def("backward_end", &backward_end, nb::arg("unit"), nb::arg("gradients"), nb::arg("scale"), nb::arg("everywhere"),
           nb::arg("reshard"), nb::arg("weight") = -1.0)
      .def("take_reduced", &take_reduced, "[(unit, [a gradient is present, ...]), ...] since the last call.");
}

void bind_window(ModelClass& model) {
  model.def("join", &ShardedModel::join)
      .def("next_service", &next_service,
           "For a rank that has joined: (\"publish\", unit), (\"window\", _), or (\"\", _) when all have joined.")
      .def(
          "commit", [](ShardedModel& s, std::uint64_t step) { without_gil([&] { return s.commit(step); }); }, nb::arg("step"),
          "Under protection: this rank has recorded this optimizer step; waits until every rank has.")
      .def("has_recorded", &ShardedModel::has_recorded, nb::arg("rank"), nb::arg("step"),
           "True if this rank knows by a control word that another one has recorded this step.")
      .def("optimizer_begin", &ShardedModel::optimizer_begin)
      .def("optimizer_end", &ShardedModel::optimizer_end, nb::arg("unit") = -1)
      .def("end_step", &ShardedModel::end_step)
      .def_prop_ro("version", [](ShardedModel& s) { return s.leases().version(); });
}

double seconds_of(runtime::TimePoint at) { return std::chrono::duration<double>(at.time_since_epoch()).count(); }

void bind_graph(ModelClass& model) {
  model
      .def("plan", &plan, nb::arg("prefetch"), nb::arg("lists"), nb::arg("alike"),
           "How far ahead units are unsharded; `lists` override `prefetch`. `alike`: all ranks make the same plan, whatever their times.")
      .def_prop_ro("memory", &memory_of, "Bytes on this host, by kind; gradients: of every rank's own rows.")
      .def_prop_ro("has_plan", [](const ShardedModel& s) { return s.stepper().plan() != nullptr; })
      .def("graph_table",
           [](const ShardedModel& s) { return s.stepper().plan()->graph().table(s.stepper().planned(), s.stepper().measured()); })
      .def("graph_perfetto",
           [](const ShardedModel& s) {
             return s.stepper().plan()->graph().perfetto(s.stepper().planned(), s.stepper().measured(), s.rank());
           })
      .def("graph_nodes", [](const ShardedModel& s) { return graph_nodes(s.stepper().plan()->graph()); })
      .def("graph_planned", [](const ShardedModel& s) { return spans_list(s.stepper().planned()); })
      .def("graph_measured", [](const ShardedModel& s) { return spans_list(s.stepper().measured()); })
      .def(
          "measured_between",
          [](const ShardedModel& s) {
            const auto [from, until] = s.stepper().measured_between();
            return nb::make_tuple(seconds_of(from), seconds_of(until));
          },
          "The begin and the end of the measured step, in seconds of time.monotonic().");
}

}  // namespace

nb::dict memory_dict(const ShardedModel::Memory& memory) {
  nb::dict out;
  out["arenas"] = memory.arenas;
  out["slots"] = memory.slots;
  out["control"] = memory.control;
  return out;
}

void bind_model(nb::module_& m) {
  nb::class_<ShardedUnit>(m, "ShardedUnit", "Parameters that are unsharded together, in one arena.")
      .def_prop_ro("name", &ShardedUnit::name)
      .def_prop_ro("leased", &ShardedUnit::leased)
      .def_prop_ro("bytes", [](const ShardedUnit& u) { return u.layout().bytes(); })
      .def_prop_ro("arena_key", &ShardedUnit::arena_key, "The node's name for the unit's arena.")
      .def_prop_ro("fits_any_mesh", &ShardedUnit::fits_any_mesh,
                   "True if a unit of one replica on any number of this host's ranks can take over the arena.")
      .def_prop_ro("gradient_bytes", &gradient_bytes, "The gradients of every rank's own rows.");

  nb::class_<Gradient>(m, "Gradient", "This rank's gradient of one parameter, and the destination of its reduction, by address.")
      .def("__init__", &make_gradient, nb::arg("whole") = 0, nb::arg("dtype") = 0, nb::arg("own") = 0, nb::arg("accumulate") = false,
           nb::arg("partial") = 0, nb::arg("has_partial") = false,
           "`whole`: the unsharded gradient, of this dtype (a dtype_number). `own`: this rank's rows, the destination. `accumulate`: adds "
           "to "
           "them. `partial`: the sum within this replica; `has_partial`: it has values. 0: no such memory.");
  ModelClass model(m, "ShardedModel", "One sharded model on one rank.");
  bind_passes(model);
  bind_window(model);
  bind_graph(model);
}

}  // namespace shoal::python
