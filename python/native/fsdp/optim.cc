#include <map>

#include "fsdp/kernels/adam.h"
#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/cuda/device_optim.h"
#include "fsdp/kernels/kernels.h"
#include "fsdp/kernels/norm.h"
#include "fsdp/kernels/sgd.h"
#include "fsdp/protect/protected_shard.h"
#include "python/native/bindings.h"
#include "runtime/shm/memory.h"

namespace shoal::python {

namespace {

using DTypes = std::array<DType, fsdp::kMaxArrays>;

// The dtypes with these names; the empty name stands for an array that the update does not have.
DTypes dtypes_of(const std::vector<std::string>& names) {
  if (names.size() > fsdp::kMaxArrays) throw nb::value_error("an update has at most six arrays");
  DTypes out{};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) out[i] = unwrap(fsdp::parse_dtype(names[i]));
  }
  return out;
}

// The addresses of the arrays of one parameter's update. Python keeps the object from step to step.
struct UpdateRow {
  fsdp::Shard shard;
  float* step = nullptr;  // the number of updates; null for other optimizers than Adam, unless they are protected
};

constexpr std::size_t kGradient = 1, kStates = 2;  // positions in Shard::at

void make_row(UpdateRow* out, std::size_t numel, std::uintptr_t parameter, const std::vector<std::uintptr_t>& states, std::uintptr_t copy) {
  if (states.size() > fsdp::kCopy - kStates) throw nb::value_error("an update has at most three states");
  UpdateRow row;
  row.shard.numel = numel;
  row.shard.at[0] = memory_at(parameter);
  for (std::size_t i = 0; i < states.size(); ++i) row.shard.at[kStates + i] = memory_at(states[i]);
  row.shard.at[fsdp::kCopy] = memory_at(copy);
  new (out) UpdateRow(row);
}

// Groups rows by the number of this step, which is lower for parameters added later. Increments the step of each row.
std::map<std::int64_t, std::vector<fsdp::Shard>> by_next_step(const std::vector<UpdateRow>& rows) {
  std::map<std::int64_t, std::vector<fsdp::Shard>> out;
  for (const auto& row : rows) {
    if (row.step == nullptr) throw nb::value_error("a row of Adam has a step");
    out[static_cast<std::int64_t>(*row.step += 1)].push_back(row.shard);
  }
  return out;
}

using Item = fsdp::StepRecord::Item;

// Adds the update of each row to a protected update, which runs it later.
void add_to(fsdp::ProtectedShard& record, Item item, const std::vector<UpdateRow>& rows) {
  for (const auto& row : rows) {
    if (row.step == nullptr) throw nb::value_error("a row of a protected update has a step");
    item.step = static_cast<std::int64_t>(*row.step + 1);
    unwrap(record.update().add(item, row.shard, row.step));
  }
}

void adam(const std::vector<std::string>& dtypes, const std::vector<UpdateRow>& rows, double lr, double beta1, double beta2, double eps,
          double weight_decay, bool decoupled, bool maximize, double grad_scale, int num_threads, fsdp::ProtectedShard* into) {
  const auto types = dtypes_of(dtypes);
  const fsdp::Adam options{lr, beta1, beta2, eps, weight_decay, decoupled, maximize, grad_scale};
  if (into != nullptr) {
    Item item{};
    item.kernel = Item::Kernel::kAdam;
    item.adam = options;
    item.dtypes = types;
    return add_to(*into, item, rows);
  }
  const auto by_step = by_next_step(rows);
  const GilReleased release;
  for (const auto& [step, work] : by_step) fsdp::adam(options, step, types, work, num_threads);
}

std::vector<fsdp::Shard> shards_of(const std::vector<UpdateRow>& rows) {
  std::vector<fsdp::Shard> out;
  for (const auto& row : rows) out.push_back(row.shard);
  return out;
}

// The optimizers' kernels on one CUDA device.
class PyDeviceOptim {
 public:
  PyDeviceOptim(int device, const std::optional<nb::bytes>& image) : image_(image ? std::string(image->c_str(), image->size()) : "") {
    const auto* const cuda = unwrap(runtime::CudaApi::load());
    optim_.emplace(unwrap(fsdp::DeviceOptim::load(unwrap(runtime::Device::open(*cuda, device)),
                                                  image ? static_cast<const void*>(image_.data()) : fsdp::DeviceOptim::embedded())));
  }

  void adam(const std::vector<std::string>& dtypes, const std::vector<UpdateRow>& rows, double lr, double beta1, double beta2, double eps,
            double weight_decay, bool decoupled, bool maximize, double grad_scale, std::uintptr_t stream) const {
    const auto types = dtypes_of(dtypes);
    const fsdp::Adam options{lr, beta1, beta2, eps, weight_decay, decoupled, maximize, grad_scale};
    for (const auto& [step, work] : by_next_step(rows))
      unwrap(optim_->adam(options, step, types, work, reinterpret_cast<runtime::CudaStream>(stream)));
  }

  void sgd(const std::vector<std::string>& dtypes, const std::vector<UpdateRow>& rows, double lr, double momentum, double dampening,
           double weight_decay, bool nesterov, bool maximize, bool first, double grad_scale, std::uintptr_t stream) const {
    const fsdp::Sgd options{lr, momentum, dampening, weight_decay, nesterov, maximize, first, grad_scale};
    unwrap(optim_->sgd(options, dtypes_of(dtypes), shards_of(rows), reinterpret_cast<runtime::CudaStream>(stream)));
  }

 private:
  const std::string image_;  // the driver may read it until the kernels are unloaded
  std::optional<fsdp::DeviceOptim> optim_;
};

void bind_device_optim(nb::module_& m) {
  nb::class_<PyDeviceOptim>(m, "DeviceOptim", "The optimizers' kernels on a CUDA device.")
      .def(nb::init<int, const std::optional<nb::bytes>&>(), nb::arg("device"), nb::arg("image") = nb::none(),
           "`image`: code of these kernels in the place of this build's.")
      .def("adam", &PyDeviceOptim::adam, nb::arg("dtypes"), nb::arg("rows"), nb::kw_only(), nb::arg("lr"), nb::arg("beta1"),
           nb::arg("beta2"), nb::arg("eps"), nb::arg("weight_decay"), nb::arg("decoupled"), nb::arg("maximize"), nb::arg("grad_scale"),
           nb::arg("stream"), "Adam on rows in the device's memory, as `adam`, in the order of the stream; returns at once.")
      .def("sgd", &PyDeviceOptim::sgd, nb::arg("dtypes"), nb::arg("rows"), nb::kw_only(), nb::arg("lr"), nb::arg("momentum"),
           nb::arg("dampening"), nb::arg("weight_decay"), nb::arg("nesterov"), nb::arg("maximize"), nb::arg("first"), nb::arg("grad_scale"),
           nb::arg("stream"), "SGD on rows in the device's memory, as `sgd`, in the order of the stream; returns at once.");
}

void sgd(const std::vector<std::string>& dtypes, const std::vector<UpdateRow>& rows, double lr, double momentum, double dampening,
         double weight_decay, bool nesterov, bool maximize, bool first, double grad_scale, int num_threads, fsdp::ProtectedShard* into) {
  const auto types = dtypes_of(dtypes);
  const fsdp::Sgd options{lr, momentum, dampening, weight_decay, nesterov, maximize, first, grad_scale};
  if (into != nullptr) {
    Item item{};
    item.kernel = Item::Kernel::kSgd;
    item.sgd = options;
    item.dtypes = types;
    return add_to(*into, item, rows);
  }
  const auto work = shards_of(rows);
  const GilReleased release;
  fsdp::sgd(options, types, work, num_threads);
}

}  // namespace

void bind_optim(nb::module_& m) {
  nb::class_<UpdateRow>(m, "UpdateRow", "The arrays of one parameter's update, by address; 0: no such array.")
      .def("__init__", &make_row, nb::kw_only(), nb::arg("numel"), nb::arg("parameter"), nb::arg("states"), nb::arg("copy"),
           "`parameter`: the values to update, or their master copy. `copy`: receives the updated values in its own dtype.")
      .def_prop_rw(
          "gradient", [](const UpdateRow& r) { return reinterpret_cast<std::uintptr_t>(r.shard.at[kGradient]); },
          [](UpdateRow& r, std::uintptr_t address) { r.shard.at[kGradient] = memory_at(address); })
      .def_prop_rw(
          "step", [](const UpdateRow& r) { return reinterpret_cast<std::uintptr_t>(r.step); },
          [](UpdateRow& r, std::uintptr_t address) { r.step = reinterpret_cast<float*>(address); }, "The count of updates, in fp32.");
  m.def(
      "adam", &adam, nb::arg("dtypes"), nb::arg("rows"), nb::kw_only(), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
      nb::arg("weight_decay"), nb::arg("decoupled"), nb::arg("maximize"), nb::arg("grad_scale"), nb::arg("num_threads"),
      nb::arg("into") = nb::none(),
      "Adam on rows of these dtypes (parameter, gradient, m, v, max v, copy); counts their steps up. `into`: a ProtectedShard that records "
      "the update instead.");
  bind_device_optim(m);
  m.def("sgd", &sgd, nb::arg("dtypes"), nb::arg("rows"), nb::kw_only(), nb::arg("lr"), nb::arg("momentum"), nb::arg("dampening"),
        nb::arg("weight_decay"), nb::arg("nesterov"), nb::arg("maximize"), nb::arg("first"), nb::arg("grad_scale"), nb::arg("num_threads"),
        nb::arg("into") = nb::none(), "SGD on rows of these dtypes (parameter, gradient, momentum buffer, two absent ones, copy).");
  m.def(
      "power_sum",
      [](const std::string& dtype, std::uintptr_t address, std::size_t numel, double order, int num_threads) {
        const auto type = unwrap(fsdp::parse_dtype(dtype));
        const GilReleased release;
        return fsdp::power_sum(type, memory_at(address), numel, order, num_threads);
      },
      nb::arg("dtype"), nb::arg("address"), nb::arg("numel"), nb::arg("order"), nb::arg("num_threads"),
      "The sum of these elements' powers, for a norm of this order.");
  m.def(
      "row_power_sums",
      [](const std::string& dtype, std::uintptr_t address, std::size_t rows, std::size_t row_numel, double order, std::uintptr_t out,
         int num_threads) {
        const auto type = unwrap(fsdp::parse_dtype(dtype));
        const GilReleased release;
        fsdp::row_power_sums(type, memory_at(address), rows, row_numel, order, reinterpret_cast<double*>(out), num_threads);
      },
      nb::arg("dtype"), nb::arg("address"), nb::arg("rows"), nb::arg("row_numel"), nb::arg("order"), nb::arg("out"), nb::arg("num_threads"),
      "As power_sum, of each row: writes that many doubles to `out`, whose bits do not depend on other rows.");
  m.def(
      "private_memory",
      [](std::size_t bytes, bool touched) {
        auto* owner = new runtime::Mapping(unwrap(runtime::private_memory(bytes, touched)));
        const nb::capsule capsule(owner, [](void* o) noexcept { delete static_cast<runtime::Mapping*>(o); });
        return nb::ndarray<nb::pytorch, std::uint8_t>(owner->data(), 1, &bytes, capsule).cast(nb::rv_policy::reference);
      },
      nb::arg("bytes"), nb::arg("touched"), "Zeroed memory in pages of its own, huge ones where it is large, as a torch tensor of uint8.");
  m.def("kernel_target", [] { return std::string(fsdp::kernel_target()); }, "The instruction set that the kernels use here.");
}

}  // namespace shoal::python
