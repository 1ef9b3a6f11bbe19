// Bindings of a hand-written step: the engine runs the user's computation in Python.
#include "fsdp/runner/step_runner.h"

#include "fsdp/graph/runnable.h"
#include "python/native/fsdp/fsdp.h"

namespace shoal::python {

using fsdp::ShardedModel;
using fsdp::StepGraph;
using fsdp::StepRunner;

namespace {

// The user's computation in Python: forward(node, unit, micro, input, saves), recompute(unit, micro), backward(node, unit, micro, input,
// reduced) -> addresses, released(unit, micro). The rank's caller gets the original exception; the other ranks get its text.
class PyProgram final : public fsdp::StepProgram {
 public:
  explicit PyProgram(nb::object program) : program_(std::move(program)) {}

  Result<void> forward(const fsdp::Node& node, std::int32_t input, bool saves) override {
    return in_python([&] { program_.attr("forward")(node.id, node.unit, node.micro, input, saves); });
  }
  Result<void> recompute(const fsdp::Node& node, std::int32_t) override {
    return in_python([&] { program_.attr("recompute")(node.unit, node.micro); });
  }
  Result<Gradients> backward(const fsdp::Node& node, std::int32_t input, bool reduced) override {
    Gradients out;
    SHOAL_OK(in_python([&] {
      const nb::object addresses = program_.attr("backward")(node.id, node.unit, node.micro, input, reduced);
      for (const auto address : nb::cast<std::vector<std::uintptr_t>>(addresses))
        out.push_back(reinterpret_cast<const std::byte*>(address));
    }));
    return out;
  }
  void released(std::int32_t unit, std::int32_t micro) override {
    (void)in_python([&] { program_.attr("released")(unit, micro); });
  }

  void rethrow() {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  template <class F>
  Result<void> in_python(F&& fn) {
    const GilTaken gil;
    try {
      fn();
      return {};
    } catch (nb::python_error& e) {
      auto error = cancelled(nb::cast<std::string>(nb::str(e.type().attr("__name__"))) + ": " + nb::cast<std::string>(nb::str(e.value())));
      if (!raised_) raised_ = std::current_exception();
      return fail(std::move(error).with_reason("Raised"));
    }
  }

  nb::object program_;
  std::exception_ptr raised_;
};

}  // namespace

void bind_step_runner(nb::module_& m) {
  nb::class_<StepRunner>(m, "StepRunner", "Runs a hand-written step graph on one rank.")
      .def_static(
          "make",
          [](std::shared_ptr<ShardedModel> model, const nb::bytes& graph, double lr, double beta1, double beta2, double eps,
             double weight_decay, const std::string& offload_folder, std::shared_ptr<runtime::Telemetry> telemetry) {
            const auto sent = span_of(graph);
            auto decoded = unwrap(StepGraph::decode(Bytes::copy_of(sent.data(), sent.size())));
            return unwrap(StepRunner::make(std::move(model), std::move(decoded),
                                           {{lr, beta1, beta2, eps, weight_decay}, offload_folder, signals_pending, std::move(telemetry)}));
          },
          nb::arg("model"), nb::arg("graph"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"), nb::arg("weight_decay"),
          nb::arg("offload_folder"), nb::arg("telemetry").none(), "graph: as StepGraph.encode() wrote it.")
      .def(
          "run",
          [](StepRunner& r, nb::object program) {
            PyProgram calls(std::move(program));
            const auto result = [&] {
              const GilReleased release;
              return r.run(calls);
            }();
            calls.rethrow();
            unwrap(result);
          },
          nb::arg("program"), "One step.")
      .def_prop_ro("steps", &StepRunner::steps)
      .def_prop_ro("norm", &StepRunner::norm)
      .def_prop_ro("rows_bytes", &StepRunner::rows_bytes)
      .def_prop_ro("memory",
                   [](const StepRunner& r) {
                     std::vector<const fsdp::Layout*> layouts;
                     for (const auto& u : r.model().units()) layouts.push_back(&u->layout());
                     const auto rows =
                         fsdp::StepRows::memory(layouts, layouts.empty() ? fsdp::Grid(1) : r.model().units()[0]->grid(), r.graph());
                     auto out = memory_dict(r.model().memory());
                     out["gradients"] = rows.blocks;
                     out["optimizer"] = rows.moments;
                     return out;
                   })
      .def_prop_ro("micro_batches", [](const StepRunner& r) { return fsdp::num_micro_batches(r.graph()); })
      .def("graph_table", [](const StepRunner& r) { return r.graph().table(r.planned(), r.measured()); })
      .def("graph_perfetto", [](const StepRunner& r) { return r.graph().perfetto(r.planned(), r.measured(), r.rank()); })
      .def("graph_nodes", [](const StepRunner& r) { return graph_nodes(r.graph()); })
      .def("graph_planned", [](const StepRunner& r) { return spans_list(r.planned()); })
      .def("graph_measured", [](const StepRunner& r) { return spans_list(r.measured()); });
}

}  // namespace shoal::python
