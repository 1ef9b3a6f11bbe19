#include <cstdio>

#include "fsdp/graph/passes/passes.h"
#include "fsdp/graph/runnable.h"
#include "fsdp/shard/shard_actor.h"
#include "fsdp/shard/step_runner.h"
#include "python/native/collective.h"

namespace shoal::python {

using fsdp::ShardActor;
using fsdp::ShardedModel;
using fsdp::ShardedUnit;

namespace {

nb::dlpack::dtype dlpack_dtype(fsdp::DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * fsdp::dtype_bytes(dtype));
  const auto code = [&] {
    switch (dtype) {
      case fsdp::DType::kBFloat16:
        return nb::dlpack::dtype_code::Bfloat;
      case fsdp::DType::kUInt8:
        return nb::dlpack::dtype_code::UInt;
      case fsdp::DType::kInt8:
      case fsdp::DType::kInt16:
      case fsdp::DType::kInt32:
      case fsdp::DType::kInt64:
        return nb::dlpack::dtype_code::Int;
      case fsdp::DType::kBool:
        return nb::dlpack::dtype_code::Bool;
      default:
        return nb::dlpack::dtype_code::Float;
    }
  }();
  return {static_cast<std::uint8_t>(code), bits, 1};
}

// A torch tensor over a unit's memory, with a storage of exactly these bytes and a separate version counter.
nb::object tensor(const std::shared_ptr<ShardedUnit>& unit, std::byte* data, std::vector<std::size_t> shape, fsdp::DType dtype) {
  auto* owner = new std::shared_ptr<ShardedUnit>(unit);
  const nb::capsule capsule(owner, [](void* o) noexcept { delete static_cast<std::shared_ptr<ShardedUnit>*>(o); });
  nb::ndarray<nb::pytorch> array(data, shape.size(), shape.data(), capsule, nullptr, dlpack_dtype(dtype), nb::device::cpu::value, 0);
  return array.cast(nb::rv_policy::reference);
}

// (name, shape, dtype, requires_grad, dim, compute dtype, reduce dtype, external)
fsdp::Parameter parameter_of(const nb::tuple& t) {
  const auto dtype = [&](std::size_t i) { return unwrap(fsdp::parse_dtype(nb::cast<std::string>(t[i]))); };
  fsdp::Parameter p;
  p.name = nb::cast<std::string>(t[0]);
  p.shape = nb::cast<std::vector<std::int64_t>>(t[1]);
  p.dtype = dtype(2);
  p.requires_grad = nb::cast<bool>(t[3]);
  p.dim = nb::cast<int>(t[4]);
  p.compute_dtype = dtype(5);
  p.reduce_dtype = dtype(6);
  p.external = nb::cast<bool>(t[7]);
  return p;
}

// (address of the whole gradient or 0, dtype, address of the own shard or 0, accumulate, address of the partial sum or 0, has_partial)
std::vector<fsdp::Reducer::Gradient> gradients_of(const nb::list& list) {
  std::vector<fsdp::Reducer::Gradient> out;
  out.reserve(nb::len(list));
  const auto address = [](nb::handle h) { return reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(h)); };
  for (const auto item : list) {
    const auto t = nb::borrow<nb::tuple>(item);
    const auto dtype = nb::cast<int>(t[1]);
    if (dtype < 0 || dtype >= fsdp::kNumDTypes) throw nb::value_error("not a dtype's number");
    out.push_back(
        {address(t[0]), address(t[2]), nb::cast<bool>(t[3]), static_cast<fsdp::DType>(dtype), address(t[4]), nb::cast<bool>(t[5])});
  }
  return out;
}

nb::list spans_list(const std::vector<fsdp::Span>& spans) {
  nb::list out;
  for (const auto& s : spans) out.append(s.seen() ? nb::object(nb::make_tuple(s.start, s.end)) : nb::none());
  return out;
}

nb::list nodes_list(const fsdp::StepGraph& graph) {
  nb::list out;
  for (const auto& n : graph.nodes()) {
    nb::list after;
    for (const auto& e : n.after) after.append(e.from);
    nb::list units;
    const auto name = [&](std::int32_t unit) {
      const auto& text = graph.units()[static_cast<std::size_t>(unit)];
      units.append(text.empty() ? "root" : text.c_str());
    };
    if (n.unit >= 0) name(n.unit);
    for (const auto unit : n.also) name(unit);
    out.append(nb::make_tuple(graph.label(n), fsdp::lane_name(fsdp::lane_of(n.op)), after, fsdp::op_name(n.op), units, n.micro));
  }
  return out;
}

fsdp::EdgeKind edge_kind(const std::string& name) {
  if (name == "data") return fsdp::EdgeKind::kData;
  if (name == "memory") return fsdp::EdgeKind::kMemory;
  if (name == "order") return fsdp::EdgeKind::kOrder;
  throw nb::value_error("an edge is of data, order or memory");
}

std::size_t gradient_bytes(const ShardedUnit& u) {
  std::size_t out = 0;
  for (const auto& p : u.layout().placed()) {
    for (int rank = 0; p.parameter.requires_grad && rank < u.grid().world_size; ++rank)
      out += fsdp::Layout::owned_bytes(p, u.grid().shards(), u.grid().shard_of(rank));
  }
  return out;
}

nb::dict memory_dict(const ShardedModel::Memory& memory) {
  nb::dict out;
  out["arenas"] = memory.arenas;
  out["slots"] = memory.slots;
  out["control"] = memory.control;
  return out;
}

fsdp::PassOptions pass_options_of(const nb::dict& d) {
  fsdp::PassOptions o;
  const auto take = [&](const char* name, auto& out) {
    if (d.contains(name)) out = nb::cast<std::decay_t<decltype(out)>>(d[name]);
  };
  take("prefetch", o.prefetch.depth);
  take("reshard_after_forward", o.reshard_after_forward);
  take("recompute", o.recompute);
  take("micro_batches", o.accumulate.micro_batches);
  take("reduce_each", o.accumulate.reduce_each);
  take("unit_bytes", o.unit_bytes);
  take("bucket_bytes", o.bucket_bytes);
  take("max_norm", o.max_norm);
  take("optimizer_in_backward", o.optimizer_in_backward);
  take("offload", o.offload);
  if (d.contains("lists")) {
    for (const auto item : nb::cast<nb::list>(d["lists"])) {
      const auto t = nb::borrow<nb::tuple>(item);
      o.prefetch.lists.push_back({nb::cast<std::int32_t>(t[0]), nb::cast<bool>(t[1]), nb::cast<std::vector<std::int32_t>>(t[2])});
    }
  }
  return o;
}

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
      const nb::object made = program_.attr("backward")(node.id, node.unit, node.micro, input, reduced);
      for (const auto address : nb::cast<std::vector<std::uintptr_t>>(made)) out.push_back(reinterpret_cast<const std::byte*>(address));
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
    const nb::gil_scoped_acquire gil;
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

void bind_fsdp(nb::module_& m) {
  using fsdp::StepGraph;
  using fsdp::StepRunner;
  nb::class_<StepGraph>(m, "StepGraph", "A step as nodes and edges.")
      .def(nb::init<std::vector<std::string>>(), nb::arg("units"))
      .def(
          "add",
          [](StepGraph& g, const std::string& op, const std::vector<std::int32_t>& units,
             const std::vector<std::pair<std::int32_t, std::string>>& after, bool backward, std::int32_t micro, double value) {
            fsdp::Node node;
            node.op = unwrap(fsdp::parse_op(op));
            node.unit = units.empty() ? -1 : units.front();
            if (units.size() > 1) node.also.assign(units.begin() + 1, units.end());
            for (const auto& [from, kind] : after) node.after.push_back({from, edge_kind(kind)});
            node.backward = backward;
            node.micro = micro;
            node.value = value;
            return unwrap(g.add(std::move(node)));
          },
          nb::arg("op"), nb::arg("units"), nb::arg("after"), nb::arg("backward"), nb::arg("micro"), nb::arg("value"),
          "Id of a new node; after: [(node, 'data' | 'order' | 'memory'), ...]")
      .def(
          "passes", [](const StepGraph& g, const nb::dict& options) { return unwrap(fsdp::apply(g, pass_options_of(options))).graph; },
          nb::arg("options"), "Another graph; options: the fields of PassOptions (fsdp/graph/passes/passes.h).")
      .def(
          "fit",
          [](const StepGraph& g, std::size_t bytes, std::size_t fixed_bytes, std::vector<std::size_t> unsharded_bytes) {
            auto fitted = unwrap(fsdp::fit(g, {bytes, fixed_bytes, std::move(unsharded_bytes)}));
            return nb::make_tuple(fitted.prefetch.depth, fitted.reshard_after_forward, fitted.bytes);
          },
          nb::arg("bytes"), nb::arg("fixed_bytes"), nb::arg("unsharded_bytes"),
          "(prefetch, reshard_after_forward, bytes). Raises ResourceExhausted with the smallest budget that would do.")
      .def_static(
          "expected",
          [](std::vector<std::string> units, const std::vector<std::pair<bool, std::int32_t>>& forward, const std::vector<bool>& reshard,
             const nb::dict& options) {
            std::vector<fsdp::Boundary> boundaries;
            for (const auto& [begin, unit] : forward) boundaries.push_back({false, begin, unit});
            fsdp::PlanOptions plan;
            plan.prefetch = pass_options_of(options).prefetch;
            plan.min_part = 1;  // a unit's compute time between its children is unknown
            return fsdp::Plan::from_trace(units, fsdp::expected_trace(boundaries, reshard), plan).graph();
          },
          nb::arg("units"), nb::arg("forward"), nb::arg("reshard"), nb::arg("options"),
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
      .def("graph_nodes", &nodes_list)
      .def("graph_planned", [](const StepGraph&) { return nb::list(); })
      .def("graph_measured", [](const StepGraph&) { return nb::list(); });

  nb::class_<StepRunner>(m, "StepRunner", "Runs a hand-written step graph on one rank.")
      .def_static(
          "make",
          [](std::shared_ptr<ShardedModel> model, const nb::bytes& graph, double lr, double beta1, double beta2, double eps,
             double weight_decay, const std::string& offload_folder) {
            const auto sent = span_of(graph);
            auto decoded = unwrap(StepGraph::decode(Bytes::copy_of(sent.data(), sent.size())));
            return unwrap(StepRunner::make(std::move(model), std::move(decoded),
                                           {{lr, beta1, beta2, eps, weight_decay}, offload_folder, signals_pending}));
          },
          nb::arg("model"), nb::arg("graph"), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"), nb::arg("weight_decay"),
          nb::arg("offload_folder"), "graph: as StepGraph.encode() wrote it.")
      .def(
          "run",
          [](StepRunner& r, nb::object program) {
            PyProgram calls(std::move(program));
            const auto done = [&] {
              const nb::gil_scoped_release release;
              return r.run(calls);
            }();
            calls.rethrow();
            unwrap(done);
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
      .def("graph_nodes", [](const StepRunner& r) { return nodes_list(r.graph()); })
      .def("graph_planned", [](const StepRunner& r) { return spans_list(r.planned()); })
      .def("graph_measured", [](const StepRunner& r) { return spans_list(r.measured()); });

  nb::class_<ShardedUnit>(m, "ShardedUnit", "Parameters that are unsharded together, in one arena.")
      .def_prop_ro("name", &ShardedUnit::name)
      .def_prop_ro("leased", &ShardedUnit::leased)
      .def_prop_ro("bytes", [](const ShardedUnit& u) { return u.layout().bytes(); })
      .def_prop_ro("gradient_bytes", &gradient_bytes, "Of all ranks' own rows of its gradients.");

  nb::class_<ShardedModel>(m, "ShardedModel", "One sharded model on one rank.")
      .def(
          "enter", [](ShardedModel& s, bool training) { without_gil([&] { return s.enter(training); }); }, nb::arg("training"))
      .def(
          "forward_begin",
          [](ShardedModel& s, std::size_t unit, bool training) { without_gil([&] { return s.forward_begin(unit, training); }); },
          nb::arg("unit"), nb::arg("training"))
      .def("forward_end", &ShardedModel::forward_end, nb::arg("unit"), nb::arg("training"), nb::arg("reshard"))
      .def(
          "check_version", [](ShardedModel& s, std::size_t unit, std::uint64_t version) { unwrap(s.check_version(unit, version)); },
          nb::arg("unit"), nb::arg("version"))
      .def(
          "backward_begin",
          [](ShardedModel& s, std::size_t unit, std::uint64_t version) { without_gil([&] { return s.backward_begin(unit, version); }); },
          nb::arg("unit"), nb::arg("version"))
      .def(
          "backward_end",
          [](ShardedModel& s, std::size_t unit, const nb::list& gradients, double scale, bool everywhere, bool reshard, double weight) {
            const auto g = gradients_of(gradients);
            without_gil([&] { return s.backward_end(unit, g, {scale, everywhere, weight}, reshard); });
          },
          nb::arg("unit"), nb::arg("gradients"), nb::arg("scale"), nb::arg("everywhere"), nb::arg("reshard"), nb::arg("weight") = -1.0)
      .def(
          "await_reductions", [](ShardedModel& s) { without_gil([&] { return s.await_reductions(); }); },
          "Waits until what this rank has published is reduced.")
      .def(
          "finish_backward", [](ShardedModel& s, bool leave) { without_gil([&] { return s.finish_backward(leave); }); }, nb::arg("leave"))
      .def(
          "take_reduced",
          [](ShardedModel& s) {
            nb::list out;
            for (const auto& r : s.take_reduced()) out.append(nb::make_tuple(r.unit, r.present));
            return out;
          },
          "[(unit, [a gradient is present, ...]), ...] since the last call.")
      .def(
          "unshard", [](ShardedModel& s, std::size_t unit) { without_gil([&] { return s.unshard(unit); }); }, nb::arg("unit"))
      .def(
          "reshard", [](ShardedModel& s, std::size_t unit) { s.reshard(unit); }, nb::arg("unit"))
      .def(
          "open_window", [](ShardedModel& s, const std::string& caller) { without_gil([&] { return s.open_window(caller); }); },
          nb::arg("caller"))
      .def("join", [](ShardedModel& s) { unwrap(s.join()); })
      .def(
          "asked",
          [](ShardedModel& s) {
            auto asked = [&] {
              const nb::gil_scoped_release release;
              return s.asked();
            }();
            const auto a = unwrap(std::move(asked));
            using What = ShardedModel::Asked::What;
            return nb::make_tuple(a.what == What::kPublish ? "publish" : a.what == What::kWindow ? "window" : "", a.unit);
          },
          "Of a rank that has joined: (\"publish\", unit), (\"window\", _), or (\"\", _) when all have joined.")
      .def("optimizer_begin", &ShardedModel::optimizer_begin)
      .def("optimizer_end", &ShardedModel::optimizer_end, nb::arg("unit") = -1)
      .def("give_up", &ShardedModel::give_up, nb::arg("unit"), "This rank reads the unit no more in this version.")
      .def(
          "plan",
          [](ShardedModel& s, const nb::dict& options) {
            fsdp::PlanOptions plan;
            plan.prefetch = pass_options_of(options).prefetch;
            s.plan(std::move(plan));
          },
          nb::arg("options"), "options: prefetch, lists [(unit, backward, [unit, ...]), ...]")
      .def_prop_ro(
          "memory",
          [](const ShardedModel& s) {
            auto out = memory_dict(s.memory());
            std::size_t gradients = 0;
            for (const auto& u : s.units()) gradients += gradient_bytes(*u);
            out["gradients"] = gradients;
            out["optimizer"] = 0;
            return out;
          },
          "Bytes on this host, by kind; gradients: of every rank's own rows.")
      .def("end_step", &ShardedModel::end_step)
      .def("reset", &ShardedModel::reset)
      .def_prop_ro("version", &ShardedModel::version)
      .def_prop_ro("window_open", &ShardedModel::window_open)
      .def_prop_ro("steps", [](const ShardedModel& s) { return s.stepper().steps(); })
      .def_prop_ro("following", [](const ShardedModel& s) { return s.stepper().following(); })
      .def_prop_ro("detours", [](const ShardedModel& s) { return s.stepper().detours(); })
      .def_prop_ro("has_plan", [](const ShardedModel& s) { return s.stepper().plan() != nullptr; })
      .def("graph_table",
           [](const ShardedModel& s) { return s.stepper().plan()->graph().table(s.stepper().planned(), s.stepper().measured()); })
      .def("graph_perfetto",
           [](const ShardedModel& s) {
             return s.stepper().plan()->graph().perfetto(s.stepper().planned(), s.stepper().measured(), s.rank());
           })
      .def("graph_nodes", [](const ShardedModel& s) { return nodes_list(s.stepper().plan()->graph()); })
      .def("graph_planned", [](const ShardedModel& s) { return spans_list(s.stepper().planned()); })
      .def("graph_measured", [](const ShardedModel& s) { return spans_list(s.stepper().measured()); });

  nb::class_<ShardActor>(m, "ShardActor", "The actor that owns this rank's rows.")
      .def_static(
          "place",
          [](PySession& session, const std::string& gang, int rank, int world_size, int replicas, double timeout, double warn_after,
             const PyCommunicator* communicator, std::pair<int, int> place_as) {
            ShardActor::Options o;
            o.gang = gang;
            o.rank = rank;
            o.world_size = world_size;
            o.replicas = replicas;
            if (communicator != nullptr) o.model.communicator = communicator->shared();
            std::tie(o.place_rank, o.place_size) = place_as;
            const auto seconds = [](double s) { return std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(s)); };
            o.place_timeout = o.model.timeout = seconds(timeout);
            o.model.warn_after = seconds(warn_after);
            o.model.interrupted = signals_pending;
            o.model.warn = [](const std::string& text) { std::fprintf(stderr, "shoal: warning: %s\n", text.c_str()); };
            const auto use = session.use();
            auto placed = [&] {
              const nb::gil_scoped_release release;
              return ShardActor::place(*use, std::move(o));
            }();
            return unwrap(std::move(placed));
          },
          nb::arg("session"), nb::arg("gang"), nb::arg("rank"), nb::arg("world_size"), nb::arg("replicas"), nb::arg("timeout"),
          nb::arg("warn_after"), nb::arg("communicator") = nb::none(), nb::arg("place_as") = std::make_pair(-1, 0), nb::keep_alive<0, 1>(),
          "communicator: of ranks that share no memory; place_as: (rank, ranks) at this head, (-1, 0) for all.")
      .def(
          "add_unit",
          [](ShardActor& a, const std::string& name, const nb::list& parameters, bool lease_guard) {
            std::vector<fsdp::Parameter> list;
            for (const auto p : parameters) list.push_back(parameter_of(nb::borrow<nb::tuple>(p)));
            auto unit = [&] {
              const nb::gil_scoped_release release;
              return a.add_unit(name, std::move(list), {.lease_guard = lease_guard});
            }();
            return unwrap(std::move(unit));
          },
          nb::arg("name"), nb::arg("parameters"), nb::arg("lease_guard"),
          "parameters: [(name, shape, dtype, requires_grad, dim, compute dtype, reduce dtype, external), ...]")
      .def(
          "make_model",
          [](ShardActor& a, const std::vector<std::shared_ptr<ShardedUnit>>& units, const std::vector<std::string>& names, int slots) {
            for (std::size_t i = 0; i < units.size(); ++i) units[i]->rename(names.at(i));
            auto model = [&] {
              const nb::gil_scoped_release release;
              return a.make_model(units, slots);
            }();
            return unwrap(std::move(model));
          },
          nb::arg("units"), nb::arg("names"), nb::arg("slots"), "Waits until every rank's ShardActor is placed.")
      .def("leave", &ShardActor::leave, "Before the session closes: gives the arenas back and asks nothing more of it.")
      .def_prop_ro("id", [](const ShardActor& a) { return to_string(a.id()); })
      .def_prop_ro("rank", &ShardActor::rank)
      .def_prop_ro("generation", &ShardActor::generation)
      .def_prop_ro("members", [](const ShardActor& a) {
        std::vector<std::string> out;
        for (const auto id : a.members()) out.push_back(to_string(id));
        return out;
      });

  m.def(
      "own",
      [](const std::shared_ptr<ShardedUnit>& unit, std::size_t index) {
        const auto& p = unit->layout().placed().at(index).parameter;
        std::vector<std::size_t> shape(p.shape.begin(), p.shape.end());
        auto& sharded = shape[static_cast<std::size_t>(p.dim)];
        std::size_t others = 1;
        for (const auto n : shape) others *= n;
        if (others > 0) sharded = unit->own_bytes(index) / fsdp::dtype_bytes(p.dtype) / (others / sharded);
        return tensor(unit, unit->own(index), std::move(shape), p.dtype);
      },
      nb::arg("unit"), nb::arg("parameter"), "This rank's shard of a parameter, as a torch tensor.");
  m.def(
      "whole",
      [](const std::shared_ptr<ShardedUnit>& unit, std::size_t index) {
        const auto& p = unit->layout().placed().at(index);
        return tensor(unit, unit->whole(index), {p.parameter.shape.begin(), p.parameter.shape.end()}, p.compute_dtype());
      },
      nb::arg("unit"), nb::arg("parameter"), "A whole parameter, as a torch tensor; in place, over the same bytes as the shards.");
  m.def(
      "dtype_number", [](const std::string& name) { return static_cast<int>(unwrap(fsdp::parse_dtype(name))); }, nb::arg("name"),
      "Of a dtype, as backward_end takes it. Raises InvalidArgument when it cannot be sharded.");
}

}  // namespace shoal::python
