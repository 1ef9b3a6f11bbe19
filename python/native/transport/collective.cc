#include <cstdio>

#include "python/native/transport/collective.h"
#include "runtime/core/printable.h"
#include "runtime/process/cpu_limit.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/reduction.h"

namespace shoal::python {

using runtime::Call;
using runtime::Window;
using runtime::Work;
using runtime::WorkPtr;

namespace {

runtime::Duration seconds(double s) { return std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(s)); }

// A tensor that Python keeps alive, as (address, bytes).
using PyMemory = std::pair<std::uintptr_t, std::size_t>;
std::span<const std::byte> input_of(const PyMemory& m) { return {reinterpret_cast<const std::byte*>(m.first), m.second}; }
std::span<std::byte> output_of(const PyMemory& m) { return {reinterpret_cast<std::byte*>(m.first), m.second}; }

// One all_gather of several.
struct PyGather {
  PyMemory input, output;
  std::vector<std::size_t> counts;
};

// The caller's description of an operation, as (label, step, timeout in seconds or 0, background).
using PyCall = std::tuple<std::string, std::uint64_t, double, bool>;
Call call_of(const PyCall& c) {
  Call out;
  std::tie(out.label, out.step, std::ignore, out.background) = c;
  out.timeout = seconds(std::get<2>(c));
  return out;
}

DType dtype_of(const std::string& name) { return unwrap(runtime::parse_dtype(name)); }

// Starts an operation without the GIL: some operations end before this returns.
template <class F>
WorkPtr submit(F&& fn) {
  WorkPtr work;
  {
    const GilReleased release;
    work = fn();
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal arrived during a callback to the process group
  return work;
}

}  // namespace

namespace {

// The stream on which this thread's next operations find their buffers ready.
thread_local CUstream_st* stream_of_thread = nullptr;

CUstream_st* stream_of(std::uintptr_t handle) { return reinterpret_cast<CUstream_st*>(handle); }

void add_device(runtime::CommunicatorRequest& request, const PyDevice& device) {
  if (device.transport.empty()) return;
  const bool copies = device.transport == "cuda_ipc";
  if (!copies && device.transport != "nccl")
    raise(invalid_argument("there is no transport " + device.transport + " between devices").with_hint("nccl or cuda_ipc"));
  auto& nccl = request.nccl.emplace();
  nccl.cuda_ipc = copies;
  // The driver may read the image as long as the process exists.
  if (!device.kernels.empty()) nccl.kernels = (new std::string(device.kernels))->data();
  nccl.device = device.number;
  nccl.current_stream = [] { return stream_of_thread; };
}

}  // namespace

std::unique_ptr<PyCommunicator> PyCommunicator::make(PySession& session, const std::string& name, int rank, int world_size,
                                                     bool shares_memory, nb::object exchange, const PyNetwork& network,
                                                     const std::string& backend, nb::callable open_backend, double timeout,
                                                     double warn_after, bool spins, const PyDevice& device) {
  const auto use = session.use();
  runtime::CommunicatorRequest request;
  request.rank = rank;
  request.world_size = world_size;
  request.name = name;
  request.timeout = seconds(timeout);
  request.warn_after = seconds(warn_after);
  request.interrupted = signals_pending;
  request.warn = [](const std::string& text) { std::fprintf(stderr, "shoal: warning: %s\n", printable(text).c_str()); };
  if (shares_memory) {
    auto& shared = request.memory.emplace();
    shared.spins = spins;
    shared.shares_cores = world_size > runtime::usable_cpus();
    shared.open = [memory = use->memory()](const std::string& key, std::size_t bytes, int member) {
      return memory->open(key, bytes, member);
    };
  }
  // A backend encrypts nothing, so the network refuses it in an encrypted cluster.
  if (!shares_memory && (network.kind != backend || use->credentials().data_tls)) {
    const auto call = make_py_exchange(std::move(exchange));
    auto layer = without_gil(
        [&] { return runtime::make_message_layer(message_network(use->credentials(), rank, world_size, network, call, name)); });
    request.messages.emplace().open = [layer = std::move(layer)] { return Result<std::shared_ptr<runtime::MessageLayer>>(layer); };
  }
  add_device(request, device);
  std::optional<nb::python_error> raised;
  request.bytes = runtime::ByteTransport{backend, [&]() -> Result<std::shared_ptr<runtime::CollectiveBackend>> {
                                           const GilTaken gil;
                                           try {
                                             return make_py_backend(open_backend());
                                           } catch (nb::python_error& e) {
                                             raised.emplace(e);
                                             return fail(internal("opening the backend raised an exception"));
                                           }
                                         }};
  auto communicator = [&] {
    const GilReleased release;
    return runtime::make_communicator(std::move(request), use->loop().clock());
  }();
  if (raised) throw *std::move(raised);
  return std::make_unique<PyCommunicator>(unwrap(std::move(communicator)));
}

std::unique_ptr<PyCommunicator> PyCommunicator::reform() const {
  return std::make_unique<PyCommunicator>(without_gil([&] { return communicator_->reform(); }));
}

namespace {

using C = PyCommunicator;
using CommunicatorClass = nb::class_<C>;
using Sizes = std::vector<std::size_t>;

void bind_work(nb::module_& m) {
  nb::class_<Work>(m, "Work", "An operation under way.")
      .def(
          "ended",
          [](const Work& w) {
            bool ended;
            {
              const GilReleased release;  // ended() of a failed group ends pending operations, which may need the GIL
              ended = w.ended();
            }
            if (PyErr_Occurred() != nullptr) throw nb::python_error();
            return ended;
          },
          "Whether wait() would return at once.")
      .def("wait", [](Work& w) { without_gil([&] { return w.wait(); }); }, "Until it is done; raises how it failed.");
}

// A torch tensor of uint8 over a part of a window, which the tensor keeps alive.
nb::object tensor_of(const std::shared_ptr<Window>& window, std::span<std::byte> part) {
  auto* owner = new std::shared_ptr<Window>(window);
  const nb::capsule capsule(owner, [](void* o) noexcept { delete static_cast<std::shared_ptr<Window>*>(o); });
  const std::size_t shape[1] = {part.size()};
  return nb::ndarray<nb::pytorch, std::uint8_t>(part.data(), 1, shape, capsule).cast(nb::rv_policy::reference);
}

// Reduces the memory of this process, as a collective reduces that of its ranks. All sources have the size of `output`.
void reduce_memory(const std::vector<PyMemory>& inputs, const PyMemory& output, const std::string& dtype, const std::string& op) {
  const auto type = dtype_of(dtype);
  const auto by = unwrap(runtime::parse_reduce_op(op));
  unwrap(runtime::check_reducible(type, by));
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) {
    if (input.second != output.second) raise(invalid_argument("the sources and the output of a reduction have one size"));
    sources.push_back(input_of(input).data());
  }
  if (sources.empty()) raise(invalid_argument("a reduction of no sources"));
  const GilReleased release;
  runtime::reduce(type, by, sources, output_of(output).data(), output.second / dtype_bytes(type));
}

void bind_window(nb::module_& m) {
  m.def("reduce", &reduce_memory, nb::arg("inputs"), nb::arg("output"), nb::arg("dtype"), nb::arg("op"),
        "Reduces memories of this process in their order, with the bits of a collective. A memory is (address, bytes).");
  nb::class_<Window>(m, "Window", "Memory of every rank that all may read.")
      .def_prop_ro(
          "own", [](const std::shared_ptr<Window>& w) { return tensor_of(w, w->own()); }, "This rank's part, as a torch tensor of uint8.")
      .def(
          "mapped",
          [](const std::shared_ptr<Window>& w, int rank) -> nb::object {
            const auto part = w->mapped(rank);
            return part.empty() ? nb::none() : tensor_of(w, part);
          },
          nb::arg("rank"), "A rank's part as a torch tensor of uint8, where this process has mapped it, else None.")
      .def("bytes", &Window::bytes, nb::arg("rank"), "Of a rank's part.");
}

void bind_group(nb::module_& m, CommunicatorClass& c) {
  nb::class_<PyGather>(m, "Gather", "One all_gather of several.")
      .def(
          "__init__",
          [](PyGather* out, const PyMemory& input, const PyMemory& output, const Sizes& counts) {
            new (out) PyGather{input, output, counts};
          },
          nb::kw_only(), nb::arg("input"), nb::arg("output"), nb::arg("counts"), "`counts`: the bytes of each rank's input.")
      .def_ro("input", &PyGather::input)
      .def_ro("output", &PyGather::output)
      .def_ro("counts", &PyGather::counts);
  nb::class_<PyDevice>(m, "Device", "A CUDA device of this process, and the transport between the ranks' devices.")
      .def(
          "__init__",
          [](PyDevice* out, const std::string& transport, int number, const nb::bytes& kernels) {
            new (out) PyDevice{transport, number, std::string(kernels.c_str(), kernels.size())};
          },
          nb::kw_only(), nb::arg("transport"), nb::arg("number"), nb::arg("kernels") = nb::bytes(""),
          "`transport`: \"nccl\" or \"cuda_ipc\". `kernels`: code for the latter's reductions in the place of this build's.");
  c.def_static("make", &C::make, nb::arg("session"), nb::kw_only(), nb::arg("name"), nb::arg("rank"), nb::arg("world_size"),
               nb::arg("shares_memory"), nb::arg("exchange"), nb::arg("network"), nb::arg("backend"), nb::arg("open_backend"),
               nb::arg("timeout"), nb::arg("warn_after"), nb::arg("spins"), nb::arg("device"),
               "Over shared memory if all ranks share the node's; else over a network of messages, or the backend if the network's kind is "
               "its name. `device`: buffers are memory of that device.")
      .def_prop_ro("rank", [](const C& c) { return c.get().rank(); })
      .def_prop_ro("world_size", [](const C& c) { return c.get().world_size(); })
      .def_prop_ro("generation", [](const C& c) { return c.get().generation(); })
      .def_prop_ro("transport", [](const C& c) { return std::string(c.get().transport()); });
}

void bind_collectives(CommunicatorClass& c) {
  c.def(
       "all_gather",
       [](C& c, const PyMemory& input, const PyMemory& output, const Sizes& counts, const std::string& dtype, const PyCall& call) {
         const auto type = dtype_of(dtype);
         return submit([&] { return c.get().all_gather(input_of(input), output_of(output), counts, type, call_of(call)); });
       },
       nb::arg("input"), nb::arg("output"), nb::arg("counts"), nb::arg("dtype"), nb::arg("call"))
      .def(
          "all_gather_each",
          [](C& c, const std::vector<PyGather>& gathers, const std::string& dtype, const PyCall& call) {
            const auto type = dtype_of(dtype);
            std::vector<runtime::Communicator::Gather> all;
            for (const auto& g : gathers) all.push_back({input_of(g.input), output_of(g.output), g.counts});
            return submit([&] { return c.get().all_gather_each(all, type, call_of(call)); });
          },
          nb::arg("gathers"), nb::arg("dtype"), nb::arg("call"), "Several all_gathers as one operation.")
      .def(
          "reduce_scatter",
          [](C& c, const PyMemory& input, const PyMemory& output, const Sizes& counts, const std::string& dtype, const std::string& op,
             const PyCall& call) {
            const auto type = dtype_of(dtype);
            const auto by = unwrap(runtime::parse_reduce_op(op));
            return submit([&] { return c.get().reduce_scatter(input_of(input), output_of(output), counts, type, by, call_of(call)); });
          },
          nb::arg("input"), nb::arg("output"), nb::arg("counts"), nb::arg("dtype"), nb::arg("op"), nb::arg("call"))
      .def(
          "all_reduce",
          [](C& c, const PyMemory& input, const PyMemory& output, const std::string& dtype, const std::string& op, const PyCall& call) {
            const auto type = dtype_of(dtype);
            const auto by = unwrap(runtime::parse_reduce_op(op));
            return submit([&] { return c.get().all_reduce(input_of(input), output_of(output), type, by, call_of(call)); });
          },
          nb::arg("input"), nb::arg("output"), nb::arg("dtype"), nb::arg("op"), nb::arg("call"))
      .def(
          "broadcast",
          [](C& c, const PyMemory& data, int root, const std::string& dtype, const PyCall& call) {
            const auto type = dtype_of(dtype);
            return submit([&] { return c.get().broadcast(output_of(data), root, type, call_of(call)); });
          },
          nb::arg("data"), nb::arg("root"), nb::arg("dtype"), nb::arg("call"))
      .def(
          "all_to_all",
          [](C& c, const PyMemory& input, const PyMemory& output, const Sizes& sends, const Sizes& receives, const std::string& dtype,
             const PyCall& call) {
            const auto type = dtype_of(dtype);
            return submit([&] { return c.get().all_to_all(input_of(input), output_of(output), sends, receives, type, call_of(call)); });
          },
          nb::arg("input"), nb::arg("output"), nb::arg("sends"), nb::arg("receives"), nb::arg("dtype"), nb::arg("call"))
      .def("barrier", [](C& c, const PyCall& call) { return submit([&] { return c.get().barrier(call_of(call)); }); }, nb::arg("call"));
}

void bind_messages(CommunicatorClass& c) {
  c.def(
       "send",
       [](C& c, const PyMemory& data, int to, const std::string& dtype, std::uint32_t tag, const PyCall& call) {
         const auto type = dtype_of(dtype);
         return submit([&] { return c.get().send(input_of(data), to, type, tag, call_of(call)); });
       },
       nb::arg("data"), nb::arg("to"), nb::arg("dtype"), nb::arg("tag"), nb::arg("call"))
      .def(
          "receive",
          [](C& c, const PyMemory& data, int from, const std::string& dtype, std::uint32_t tag, const PyCall& call) {
            const auto type = dtype_of(dtype);
            return submit([&] { return c.get().receive(output_of(data), from, type, tag, call_of(call)); });
          },
          nb::arg("data"), nb::arg("source"), nb::arg("dtype"), nb::arg("tag"), nb::arg("call"))
      .def(
          "window",
          [](C& c, std::size_t bytes, const PyCall& call) { return without_gil([&] { return c.get().window(bytes, call_of(call)); }); },
          nb::arg("bytes"), nb::arg("call"), "Every rank calls it, each with its own size.")
      .def(
          "read",
          [](C& c, Window& window, int from, std::size_t offset, const PyMemory& out) {
            without_gil([&] { return c.get().read(window, from, offset, output_of(out)); });
          },
          nb::arg("window"), nb::arg("source"), nb::arg("offset"), nb::arg("out"));
}

// Order with a CUDA stream, which is named by its handle.
void bind_streams(CommunicatorClass& c) {
  c.def_static(
       "ready_on", [](std::uintptr_t stream) { stream_of_thread = stream_of(stream); }, nb::arg("stream"),
       "Later operations of this thread use their buffers once the stream's work of that time is done.")
      .def(
          "order_after",
          [](C& c, const WorkPtr& work, std::uintptr_t stream) {
            without_gil([&] { return c.get().order_after(*work, stream_of(stream)); });
          },
          nb::arg("work"), nb::arg("stream"), "Later work of the stream waits for the operation; without devices the caller does.");
}

void bind_end(CommunicatorClass& c) {
  c.def(
       "abort", [](C& c, const std::string& cause) { c.get().abort(cancelled(cause).with_reason("Aborted")); },
       nb::call_guard<GilReleased>(), nb::arg("cause"))
      .def(
          "failed",
          [](const C& c) -> nb::object {
            const auto error = c.get().failed();
            return error ? to_exception(*error) : nb::none();
          },
          "What ended it, as an exception, or None.")
      .def(
          "lost", [](const C& c) { return c.get().lost(); }, nb::call_guard<GilReleased>())
      .def("reform", &C::reform)
      .def("leave", [](C& c) { c.get().leave(); }, nb::call_guard<GilReleased>());
}

}  // namespace

void bind_collective(nb::module_& m) {
  bind_work(m);
  bind_window(m);
  CommunicatorClass communicator(
      m, "Communicator", "Messages among the ranks of a group. Sizes and counts are bytes; a call is (label, step, timeout, background).");
  bind_group(m, communicator);
  bind_collectives(communicator);
  bind_messages(communicator);
  bind_streams(communicator);
  bind_end(communicator);
}

}  // namespace shoal::python
