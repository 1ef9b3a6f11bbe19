// Bindings of ShardActor, of its units, and of the units' memory as tensors.
#include "fsdp/shard/shard_actor.h"

#include <cstdio>
#include <tuple>

#include "python/native/fsdp/fsdp.h"
#include "runtime/core/printable.h"

namespace shoal::python {

using fsdp::ShardActor;
using fsdp::ShardedUnit;

namespace {

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * dtype_bytes(dtype));
  const auto code = [&] {
    switch (dtype) {
      case DType::kBFloat16:
        return nb::dlpack::dtype_code::Bfloat;
      case DType::kUInt8:
        return nb::dlpack::dtype_code::UInt;
      case DType::kInt8:
      case DType::kInt16:
      case DType::kInt32:
      case DType::kInt64:
        return nb::dlpack::dtype_code::Int;
      case DType::kBool:
        return nb::dlpack::dtype_code::Bool;
      default:
        return nb::dlpack::dtype_code::Float;
    }
  }();
  return {static_cast<std::uint8_t>(code), bits, 1};
}

// A torch tensor over a unit's memory, with a storage of exactly these bytes and a separate version counter.
nb::object tensor(const std::shared_ptr<ShardedUnit>& unit, std::byte* data, std::vector<std::size_t> shape, DType dtype) {
  auto* owner = new std::shared_ptr<ShardedUnit>(unit);
  const nb::capsule capsule(owner, [](void* o) noexcept { delete static_cast<std::shared_ptr<ShardedUnit>*>(o); });
  nb::ndarray<nb::pytorch> array(data, shape.size(), shape.data(), capsule, nullptr, dlpack_dtype(dtype), nb::device::cpu::value, 0);
  return array.cast(nb::rv_policy::reference);
}

std::shared_ptr<ShardActor> place(PySession& session, const std::string& gang, int rank, int world_size, int replicas, double timeout,
                                  double warn_after, std::vector<int> hosts, nb::object exchange, const PyNetwork& network,
                                  bool in_rank_order, std::pair<int, int> place_as, std::vector<int> places) {
  ShardActor::Options o;
  o.gang = gang;
  o.rank = rank;
  o.world_size = world_size;
  o.replicas = replicas;
  if (!hosts.empty()) {
    o.open_layer = [credentials = session.use()->credentials(), rank, world_size, network,
                    call = make_py_exchange(std::move(exchange))](const std::string& name) {
      return runtime::make_message_layer(message_network(credentials, rank, world_size, network, call, name));
    };
    o.model.host_of_rank = std::move(hosts);
  }
  if (in_rank_order) o.model.order = fsdp::Reducer::SumOrder::kRanks;
  std::tie(o.place_rank, o.place_size) = place_as;
  o.model.places = std::move(places);
  o.place_timeout = o.model.waits.timeout = duration_of(timeout);
  o.model.waits.warn_after = duration_of(warn_after);
  o.model.waits.interrupted = signals_pending;
  o.model.waits.warn = [](const std::string& text) { std::fprintf(stderr, "shoal: warning: %s\n", printable(text).c_str()); };
  return unwrap(in_session(session, [&](actors::Session& s) { return ShardActor::place(s, std::move(o)); }));
}

std::shared_ptr<ShardedUnit> add_unit(ShardActor& a, const std::string& name, std::vector<fsdp::Parameter> parameters,
                                      ShardedUnit::Options options, const std::string& arena, const std::shared_ptr<ShardedUnit>& before) {
  return without_gil([&] { return a.add_unit(name, std::move(parameters), options, arena, before.get()); });
}

std::shared_ptr<fsdp::ShardedModel> make_model(ShardActor& a, const std::vector<std::shared_ptr<ShardedUnit>>& units,
                                               const std::vector<std::string>& names, int slots) {
  for (std::size_t i = 0; i < units.size(); ++i) units[i]->rename(names.at(i));
  return without_gil([&] { return a.make_model(units, slots); });
}

std::shared_ptr<fsdp::SharedArrays> share_arrays(ShardActor& a, const std::vector<std::shared_ptr<ShardedUnit>>& units,
                                                 const States& states, const std::string& key,
                                                 const std::shared_ptr<fsdp::SharedArrays>& before) {
  const auto specs = specs_of(states);
  return without_gil([&] { return a.share_arrays(units, specs, key, before); });
}

std::shared_ptr<fsdp::ProtectedShard> protect(ShardActor& a, const fsdp::ShardedModel& model, const States& states, std::uint64_t step,
                                              const std::shared_ptr<fsdp::SharedArrays>& shared) {
  const auto specs = specs_of(states);
  return without_gil([&] { return a.protect(model, specs, step, shared); });
}

std::vector<std::string> members(const ShardActor& a) {
  std::vector<std::string> out;
  for (const auto id : a.members()) out.push_back(to_string(id));
  return out;
}

void make_parameter(fsdp::Parameter* out, std::string name, std::vector<std::int64_t> shape, const std::string& dtype, bool requires_grad,
                    int dim, const std::string& compute_dtype, const std::string& reduce_dtype, bool external) {
  fsdp::Parameter p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.dtype = unwrap(fsdp::parse_dtype(dtype));
  p.requires_grad = requires_grad;
  p.dim = dim;
  p.compute_dtype = unwrap(fsdp::parse_dtype(compute_dtype));
  p.reduce_dtype = unwrap(fsdp::parse_dtype(reduce_dtype));
  p.external = external;
  new (out) fsdp::Parameter(std::move(p));
}

nb::object own(const std::shared_ptr<ShardedUnit>& unit, std::size_t index) {
  const auto& p = unit->layout().placed().at(index).parameter;
  std::vector<std::size_t> shape(p.shape.begin(), p.shape.end());
  auto& sharded = shape[static_cast<std::size_t>(p.dim)];
  std::size_t others = 1;
  for (const auto n : shape) others *= n;
  if (others > 0) sharded = unit->own_bytes(index) / dtype_bytes(p.dtype) / (others / sharded);
  return tensor(unit, unit->own(index), std::move(shape), p.dtype);
}

nb::object whole(const std::shared_ptr<ShardedUnit>& unit, std::size_t index) {
  const auto& p = unit->layout().placed().at(index);
  return tensor(unit, unit->whole(index), {p.parameter.shape.begin(), p.parameter.shape.end()}, p.compute_dtype());
}

}  // namespace

void bind_shard_actor(nb::module_& m) {
  nb::class_<fsdp::Parameter>(m, "ParameterSpec", "A parameter of a unit, as add_unit takes it. Dtypes are names.")
      .def(
          "__init__", &make_parameter, nb::kw_only(), nb::arg("name"), nb::arg("shape"), nb::arg("dtype"), nb::arg("requires_grad"),
          nb::arg("dim"), nb::arg("compute_dtype"), nb::arg("reduce_dtype"), nb::arg("external"),
          "`dim`: the sharded one. `compute_dtype`: of the whole parameter. `reduce_dtype`: of gradients on their way. `external`: it lies "
          "outside the arena.")
      .def_ro("name", &fsdp::Parameter::name);
  nb::class_<ShardedUnit::Options>(m, "UnitOptions", "The arguments of fully_shard that the engine takes, for one unit.")
      .def(nb::init<bool>(), nb::kw_only(), nb::arg("lease_guard") = false)
      .def_ro("lease_guard", &ShardedUnit::Options::lease_guard);
  nb::class_<ShardActor>(m, "ShardActor", "The actor that owns this rank's rows.")
      .def_static(
          "place", &place, nb::arg("session"), nb::arg("gang"), nb::arg("rank"), nb::arg("world_size"), nb::arg("replicas"),
          nb::arg("timeout"), nb::arg("warn_after"), nb::arg("hosts") = std::vector<int>(), nb::arg("exchange") = nb::none(),
          nb::arg("network") = PyNetwork(), nb::arg("in_rank_order") = false, nb::arg("place_as") = std::make_pair(-1, 0),
          nb::arg("places") = std::vector<int>(), nb::keep_alive<0, 1>(),
          "hosts: the host of each rank, numbered without gaps; empty if all share memory. exchange(name, bytes): returns what every "
          "rank has passed. place_as: (rank, ranks) at this head, (-1, 0) for all. places: by rank, in the tree of additions.")
      .def("add_unit", &add_unit, nb::arg("name"), nb::arg("parameters"), nb::arg("options"), nb::arg("arena") = "",
           nb::arg("before").none() = nb::none(),
           "arena: that of another mesh's unit with these parameters, which the new unit takes over; empty: a new one. "
           "before: that unit, if this process has it.")
      .def("make_model", &make_model, nb::arg("units"), nb::arg("names"), nb::arg("slots"),
           "Waits until every rank's ShardActor is placed.")
      .def(
          "share_arrays", &share_arrays, nb::arg("units"), nb::arg("states"), nb::arg("key") = "", nb::arg("before").none() = nb::none(),
          "Opens memory for arrays that all ranks share. states: as in protect. key: that of another mesh's arrays, which these ranks take "
          "over; empty: a new one. before: this process's arrays there, if any. None if the ranks cannot share arrays.")
      .def("protect", &protect, nb::arg("model"), nb::arg("states"), nb::arg("step"), nb::arg("shared").none() = nb::none(),
           "Makes this rank's step record. states: (unit, parameter, name, dtype) of each array besides the rows; step: complete steps; "
           "shared: the memory of states that do not lie in the record.")
      .def(
          "replicate",
          [](ShardActor& a, const std::shared_ptr<fsdp::ShardedModel>& model, const std::shared_ptr<fsdp::ProtectedShard>& shard,
             const std::vector<int>& buddies) { return without_gil([&] { return a.replicate(model, shard, buddies); }); },
          nb::arg("model"), nb::arg("shard"), nb::arg("buddies"),
          "Keeps a replica of this rank's record at its buddy. Every rank calls it. buddies: by rank, a rank of another host, or -1.")
      .def(
          "adopt", [](ShardActor& a, const std::string& key) { return without_gil([&] { return a.adopt(key); }); }, nb::arg("key"),
          "Opens a dead rank's record. Raises NotFound if this host's node has none.")
      .def("release", &ShardActor::release, nb::arg("shard"), "Frees an adopted record at the node, unless another process holds it.")
      .def("free_unheld", &ShardActor::free_unheld, nb::arg("keys"), nb::call_guard<GilReleased>(),
           "Frees those of these memories of the node that no living process holds.")
      .def("leave", &ShardActor::leave, nb::call_guard<GilReleased>(),
           "Before the session closes: gives the arenas back and makes no further requests.")
      .def_prop_ro("id", [](const ShardActor& a) { return to_string(a.id()); })
      .def_prop_ro("rank", &ShardActor::rank)
      .def_prop_ro("hosts", &ShardActor::hosts, "The host of each rank; empty if all share memory.")
      .def_prop_ro("generation", &ShardActor::generation)
      .def_prop_ro("members", &members, "Ids of every rank's ShardActor.");

  m.def("own", &own, nb::arg("unit"), nb::arg("parameter"), "This rank's shard of a parameter, as a torch tensor.");
  m.def("whole", &whole, nb::arg("unit"), nb::arg("parameter"),
        "A whole parameter, as a torch tensor; in place, over the same bytes as the shards.");
  m.def(
      "dtype_number", [](const std::string& name) { return static_cast<int>(unwrap(fsdp::parse_dtype(name))); }, nb::arg("name"),
      "A dtype as Gradient takes it. Raises InvalidArgument for a dtype that cannot be sharded.");
}

}  // namespace shoal::python
