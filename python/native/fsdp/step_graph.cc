// Bindings of step graphs: nodes and edges, the passes over them, and plans.
#include "fsdp/graph/runnable.h"
#include "python/native/fsdp/fsdp.h"

namespace shoal::python {

using fsdp::Fitted;
using fsdp::PrefetchList;
using fsdp::StepGraph;

namespace {

fsdp::EdgeKind edge_kind(const std::string& name) {
  if (name == "data") return fsdp::EdgeKind::kData;
  if (name == "memory") return fsdp::EdgeKind::kMemory;
  if (name == "order") return fsdp::EdgeKind::kOrder;
  throw nb::value_error("an edge is of data, order or memory");
}

using Edges = std::vector<std::pair<std::int32_t, std::string>>;

std::int32_t add_node(StepGraph& g, const std::string& op, const std::vector<std::int32_t>& units, const Edges& after, bool backward,
                      std::int32_t micro, double value) {
  fsdp::Node node;
  node.op = unwrap(fsdp::parse_op(op));
  node.unit = units.empty() ? -1 : units.front();
  if (units.size() > 1) node.also.assign(units.begin() + 1, units.end());
  for (const auto& [from, kind] : after) node.after.push_back({from, edge_kind(kind)});
  node.backward = backward;
  node.micro = micro;
  node.value = value;
  return unwrap(g.add(std::move(node)));
}

// The planned graph of a step that has not run. `forward`: the boundaries of the forward in order, as (it begins, unit).
StepGraph expected(const std::vector<std::string>& units, const std::vector<std::pair<bool, std::int32_t>>& forward,
                   const std::vector<bool>& reshard, int prefetch) {
  std::vector<fsdp::Boundary> boundaries;
  for (const auto& [begin, unit] : forward) boundaries.push_back({false, begin, unit});
  fsdp::PlanOptions plan;
  plan.prefetch.depth = prefetch;
  plan.min_part = 1;  // no node for a unit's compute between its children, whose time is unknown
  return fsdp::Plan::from_trace(units, fsdp::expected_trace(boundaries, reshard), plan).graph();
}

Fitted fit(const StepGraph& g, std::size_t bytes, std::size_t fixed_bytes, std::vector<std::size_t> unsharded_bytes) {
  return unwrap(fsdp::fit(g, {bytes, fixed_bytes, std::move(unsharded_bytes)}));
}

// Makes PassOptions from a dict, whose keys are the names of the fields.
fsdp::PassOptions pass_options_of(const nb::dict& d) {
  fsdp::PassOptions o;
  const auto take = [&](const char* name, auto& out) {
    if (d.contains(name)) out = nb::cast<std::decay_t<decltype(out)>>(d[name]);
  };
  take("prefetch", o.prefetch.depth);
  take("lists", o.prefetch.lists);
  take("reshard_after_forward", o.reshard_after_forward);
  take("recompute", o.recompute);
  take("micro_batches", o.accumulate.micro_batches);
  take("reduce_each", o.accumulate.reduce_each);
  take("unit_bytes", o.unit_bytes);
  take("bucket_bytes", o.bucket_bytes);
  take("max_norm", o.max_norm);
  take("optimizer_in_backward", o.optimizer_in_backward);
  take("offload", o.offload);
  return o;
}

void bind_rows(nb::module_& m) {
  nb::class_<GraphNode>(m, "GraphNode", "A node of a step graph.")
      .def_ro("label", &GraphNode::label)
      .def_ro("lane", &GraphNode::lane)
      .def_ro("after", &GraphNode::after, "Ids of its predecessors.")
      .def_ro("op", &GraphNode::op)
      .def_ro("units", &GraphNode::units, "Names of its units; empty for all units.")
      .def_ro("micro", &GraphNode::micro, "Its micro-batch.");
  nb::class_<PrefetchList>(m, "PrefetchList", "The units to be unsharded when a unit begins to compute.")
      .def(
          "__init__",
          [](PrefetchList* out, std::int32_t unit, bool backward, std::vector<std::int32_t> ahead) {
            new (out) PrefetchList{unit, backward, std::move(ahead)};
          },
          nb::kw_only(), nb::arg("unit"), nb::arg("backward"), nb::arg("ahead"));
  nb::class_<Fitted>(m, "Fitted", "The plan that fits a memory budget.")
      .def_prop_ro(
          "prefetch", [](const Fitted& f) { return f.prefetch.depth; }, "Depth of the prefetch.")
      .def_ro("reshard_after_forward", &Fitted::reshard_after_forward, "By unit.")
      .def_ro("bytes", &Fitted::bytes, "fixed_bytes plus the leases.");
}

}  // namespace

std::vector<GraphNode> graph_nodes(const StepGraph& graph) {
  std::vector<GraphNode> out;
  for (const auto& n : graph.nodes()) {
    GraphNode node{graph.label(n), std::string(fsdp::lane_name(fsdp::lane_of(n.op))), {}, std::string(fsdp::op_name(n.op)), {}, n.micro};
    for (const auto& e : n.after) node.after.push_back(e.from);
    const auto name = [&](std::int32_t unit) {
      const auto& text = graph.units()[static_cast<std::size_t>(unit)];
      node.units.push_back(text.empty() ? "root" : text);
    };
    if (n.unit >= 0) name(n.unit);
    for (const auto unit : n.also) name(unit);
    out.push_back(std::move(node));
  }
  return out;
}

nb::list spans_list(const std::vector<fsdp::Span>& spans) {
  nb::list out;
  for (const auto& s : spans) out.append(s.seen() ? nb::object(nb::make_tuple(s.start, s.end)) : nb::none());
  return out;
}

void bind_step_graph(nb::module_& m) {
  bind_rows(m);
  nb::class_<StepGraph>(m, "StepGraph", "A step as nodes and edges.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("units"))
      .def("add", &add_node, nb::arg("op"), nb::arg("units"), nb::arg("after"), nb::arg("backward"), nb::arg("micro"), nb::arg("value"),
           "Id of a new node; after: [(node, 'data' | 'order' | 'memory'), ...]")
      .def(
          "passes", [](const StepGraph& g, const nb::dict& options) { return unwrap(fsdp::apply(g, pass_options_of(options))).graph; },
          nb::arg("options"), "Another graph; options: the fields of PassOptions (fsdp/graph/passes/passes.h).")
      .def("fit", &fit, nb::arg("bytes"), nb::arg("fixed_bytes"), nb::arg("unsharded_bytes"),
           "Raises ResourceExhausted with the smallest sufficient budget.")
      .def_static("expected", &expected, nb::arg("units"), nb::arg("forward"), nb::arg("reshard"), nb::arg("prefetch"),
                  "The plan of a step that has not run; forward: [(a unit's forward begins or ends, unit), ...]")
      .def_prop_ro("units", &StepGraph::units)
      .def_prop_ro("micro_batches", [](const StepGraph& g) { return fsdp::num_micro_batches(g); })
      .def(
          "op", [](const StepGraph& g, std::size_t node) { return std::string(fsdp::op_name(g.nodes().at(node).op)); }, nb::arg("node"))
      .def(
          "label", [](const StepGraph& g, std::size_t node) { return g.label(g.nodes().at(node)); }, nb::arg("node"))
      .def(
          "check", [](const StepGraph& g) { unwrap(fsdp::check_runnable(g)); }, "Raises InvalidArgument when it cannot be run.")
      .def("encode",
           [](const StepGraph& g) {
             const Bytes b = g.encode();
             return nb::bytes(reinterpret_cast<const char*>(b.data()), b.size());
           })
      .def("graph_table", [](const StepGraph& g) { return g.table({}, {}); })
      .def("graph_perfetto", [](const StepGraph& g) { return g.perfetto({}, {}, 0); })
      .def("graph_nodes", &graph_nodes)
      .def("graph_planned", [](const StepGraph&) { return nb::list(); })
      .def("graph_measured", [](const StepGraph&) { return nb::list(); });
}

}  // namespace shoal::python
