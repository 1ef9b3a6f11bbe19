// Bindings of step records: a rank's own, and one of a dead rank.
#include "fsdp/protect/adoption.h"
#include "fsdp/protect/protected_shard.h"
#include "fsdp/protect/replica_link.h"
#include "python/native/fsdp/fsdp.h"

namespace shoal::python {

using fsdp::AdoptedShard;
using fsdp::ProtectedShard;
using fsdp::ReplicaLink;
using fsdp::SharedArrays;

namespace {

// A flat torch tensor of uint8 over a part of a record, which keeps the record mapped.
template <class Owner>
nb::object tensor_over(std::shared_ptr<Owner> owner, std::byte* data, std::size_t bytes) {
  auto* kept = new std::shared_ptr<Owner>(std::move(owner));
  const nb::capsule capsule(kept, [](void* o) noexcept { delete static_cast<std::shared_ptr<Owner>*>(o); });
  return nb::ndarray<nb::pytorch, std::uint8_t>(data, 1, &bytes, capsule).cast(nb::rv_policy::reference);
}

// (name, unit, parameter, dtype, (begin, length, stride, runs), bytes as a tensor)
nb::list arrays(const std::shared_ptr<AdoptedShard>& shard) {
  nb::list out;
  for (const auto& a : shard->arrays()) {
    const auto& p = a.piece;
    out.append(nb::make_tuple(a.name, a.unit, a.parameter, dtype_name(a.dtype), nb::make_tuple(p.begin, p.length, p.stride, p.runs),
                              tensor_over(shard, a.data, p.numel() * dtype_bytes(a.dtype))));
  }
  return out;
}

bool fits(const SharedArrays& arrays, const fsdp::Units& units, const States& states) { return arrays.fits(units, specs_of(states)); }

States states(const SharedArrays& arrays) {
  States out;
  for (const auto& s : arrays.states()) out.emplace_back(s.unit, s.parameter, s.name, dtype_name(s.dtype));
  return out;
}

using Words = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

template <class Record>
Words words(const Record& record) {
  const auto w = record.words();
  return {w.recorded, w.begun, w.finished};
}

std::uint64_t committed_step(const std::vector<Words>& ranks, bool all) {
  std::vector<fsdp::RecordWords> words;
  for (const auto& [recorded, begun, finished] : ranks) words.push_back({recorded, begun, finished});
  return fsdp::committed_step(words, all);
}

using Copy = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t, std::string>;

void add_copies(ProtectedShard& shard, const std::vector<Copy>& copies) {
  for (const auto& [to, from, numel, dtype] : copies) {
    fsdp::StepRecord::Item item{};
    item.kernel = fsdp::StepRecord::Item::Kernel::kCopy;
    item.dtypes[0] = item.dtypes[1] = unwrap(fsdp::parse_dtype(dtype));
    unwrap(shard.update().add(item, {{memory_at(to), memory_at(from)}, numel}, nullptr));
  }
}

nb::dict costs(const ReplicaLink& link) {
  const auto c = link.costs();
  nb::dict out;
  out["memory_bytes"] = c.memory_bytes;
  out["steps"] = c.steps;
  out["step_bytes"] = c.step_bytes;
  out["contents"] = c.contents;
  out["contents_bytes"] = c.contents_bytes;
  out["waited_s"] = c.waited_s;
  return out;
}

void bind_replicas(nb::module_& m) {
  nb::class_<ReplicaLink>(m, "ReplicaLink", "Sends this rank's steps to its replica on another host, and holds replicas for others.")
      .def(
          "send_contents", [](ReplicaLink& l, std::uint64_t step) { without_gil([&] { return l.send_contents(step); }); }, nb::arg("step"),
          "Sends rows and states of a complete step; returns once the buddy has them.")
      .def(
          "send_step",
          [](ReplicaLink& l, std::uint64_t step, bool with_contents) { without_gil([&] { return l.send_step(step, with_contents); }); },
          nb::arg("step"), nb::arg("with_contents"), "Sends the recorded update; returns once the buddy has recorded it.")
      .def("committed", &ReplicaLink::committed, nb::arg("step"), "The step counts. The replicas that this rank holds make it.")
      .def("stop", &ReplicaLink::stop, nb::call_guard<GilReleased>(), "Ends the link; the replicas stay.")
      .def_prop_ro("costs", &costs, "Sizes in bytes, counts of messages, and seconds in which optimizer steps have waited.");
}

}  // namespace

std::vector<fsdp::StateSpec> specs_of(const States& states) {
  std::vector<fsdp::StateSpec> out;
  for (const auto& [unit, parameter, name, dtype] : states) out.push_back({unit, parameter, name, unwrap(fsdp::parse_dtype(dtype))});
  return out;
}

void bind_protect(nb::module_& m) {
  nb::class_<SharedArrays>(m, "SharedArrays", "The states and gradients of a model's optimizer, whole, in memory that its ranks share.")
      .def_prop_ro("key", &SharedArrays::key, "The memory's name at the node.")
      .def_prop_ro("bytes", [](const SharedArrays& s) { return s.memory().size(); })
      .def("fits", &fits, nb::arg("units"), nb::arg("states"), "True if it has these arrays, of parameters with these units' sizes.")
      .def_prop_ro("states", &states, "[(unit, parameter, name, dtype), ...]")
      .def(
          "part",
          [](const std::shared_ptr<SharedArrays>& arrays, std::size_t index, std::size_t offset, std::size_t bytes) {
            if (index >= arrays->states().size() || offset > arrays->whole(index).size() || bytes > arrays->whole(index).size() - offset)
              throw nb::index_error();
            const auto part = arrays->whole(index).subspan(offset, bytes);
            return tensor_over(arrays, part.data(), part.size());
          },
          nb::arg("index"), nb::arg("offset"), nb::arg("bytes"),
          "Bytes of one array, as a torch tensor of uint8. A rank writes to its own shard only.")
      .def(
          "has",
          [](const SharedArrays& s, std::uintptr_t address) {
            return address - reinterpret_cast<std::uintptr_t>(s.memory().data()) < s.memory().size();
          },
          nb::arg("address"), "True if this address is in the memory.");
  nb::class_<ProtectedShard>(m, "ProtectedShard", "This rank's step record.")
      .def_prop_ro("key", &ProtectedShard::key, "The record's name at the node.")
      .def("key_of", &ProtectedShard::key_of, nb::arg("rank"), "The name of the record of another rank of this host.")
      .def("replica_key_of", &ProtectedShard::replica_key_of, nb::arg("rank"),
           "The name of the replica of a rank of another host, which a rank of this host holds.")
      .def_prop_ro("bytes", &ProtectedShard::bytes)
      .def_prop_ro("words", &words<ProtectedShard>, "(recorded, begun, finished): step numbers.")
      .def(
          "state",
          [](const std::shared_ptr<ProtectedShard>& shard, std::size_t index) {
            const auto bytes = shard->state(index);
            return tensor_over(shard, bytes.data(), bytes.size());
          },
          nb::arg("index"), "The memory of one of `states`, as a torch tensor of uint8.")
      .def("set_usable", &ProtectedShard::set_usable, nb::arg("usable"),
           "False while states are written into the record: they are torn meanwhile, so a death loses them.")
      .def(
          "begin", [](ProtectedShard& s, std::uint64_t step) { return unwrap(s.update().begin(step)); }, nb::arg("step"),
          "Begins to record a step. False: it is recorded already, and is only to be run.")
      .def("add_copies", &add_copies, nb::arg("copies"),
           "Adds copies to the recorded update: (address to write, address to read, number of elements, dtype) of arrays of the record.")
      .def(
          "record", [](ProtectedShard& s) { s.update().record(); }, "The gradients and the update of this step are final.")
      .def(
          "run", [](ProtectedShard& s, int num_threads) { s.update().run(num_threads); }, nb::arg("num_threads"),
          nb::call_guard<GilReleased>(), "Makes the recorded update, or what is left of it.");
  bind_replicas(m);
  nb::class_<AdoptedShard>(m, "AdoptedShard", "What a dead rank has left: its rows, its optimizer's states, and their step.")
      .def_prop_ro("rank", &AdoptedShard::rank)
      .def_prop_ro("world_size", [](const AdoptedShard& s) { return s.grid().world_size; })
      .def_prop_ro("replicas", [](const AdoptedShard& s) { return s.grid().replicas; })
      .def_prop_ro("words", &words<AdoptedShard>, "(recorded, begun, finished): step numbers.")
      .def(
          "settle",
          [](AdoptedShard& s, std::uint64_t committed, int num_threads) { without_gil([&] { return s.settle(committed, num_threads); }); },
          nb::arg("committed"), nb::arg("num_threads") = 1,
          "Brings the shard to the committed step. Raises Unavailable while the rank's process lives, DataLoss if that step is lost.")
      .def_prop_ro("arrays", &arrays, "[(name, unit, parameter, dtype, (begin, length, stride, runs), bytes as a tensor), ...]");
  m.def("committed_step", &committed_step, nb::arg("words"), nb::arg("all"),
        "The last step that counts, from the words of all ranks' records. `all`: no record is lost.");
}

}  // namespace shoal::python
