#include <map>

#include "fsdp/kernels/adam.h"
#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/kernels.h"
#include "fsdp/kernels/norm.h"
#include "fsdp/kernels/sgd.h"
#include "python/native/bindings.h"
#include "runtime/shm/memory.h"

namespace shoal::python {

namespace {

using DTypes = std::array<fsdp::DType, fsdp::kMaxArrays>;

// Dtype names; "" for an array that the update does not have.
DTypes dtypes_of(const std::vector<std::string>& names) {
  if (names.size() > fsdp::kMaxArrays) throw nb::value_error("an update has at most six arrays");
  DTypes out{};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) out[i] = unwrap(fsdp::parse_dtype(names[i]));
  }
  return out;
}

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// (numel, address of array 0, of array 1, ...) from item `first` on; address 0: no array.
fsdp::Shard shard_of(const nb::tuple& t, std::size_t first) {
  const std::size_t size = nb::len(t);
  if (size < first + 1 || size - first - 1 > fsdp::kMaxArrays) throw nb::value_error("an update has at most six arrays");
  fsdp::Shard shard;
  shard.numel = nb::cast<std::size_t>(t[first]);
  for (std::size_t i = first + 1; i < size; ++i) shard.at[i - first - 1] = at(nb::cast<std::uintptr_t>(t[i]));
  return shard;
}

}  // namespace

void bind_optim(nb::module_& m) {
  m.def(
      "adam",
      [](const std::vector<std::string>& dtypes, const nb::list& shards, double lr, double beta1, double beta2, double eps,
         double weight_decay, bool decoupled, bool maximize, double grad_scale, int num_threads) {
        const auto types = dtypes_of(dtypes);
        std::map<std::int64_t, std::vector<fsdp::Shard>> by_step;  // by step count: parameters added later have lower ones
        for (const auto item : shards) {
          const auto t = nb::borrow<nb::tuple>(item);
          const auto shard = shard_of(t, 1);
          auto& step = *reinterpret_cast<float*>(nb::cast<std::uintptr_t>(t[0]));
          by_step[static_cast<std::int64_t>(step += 1)].push_back(shard);
        }
        const nb::gil_scoped_release release;
        const fsdp::Adam options{lr, beta1, beta2, eps, weight_decay, decoupled, maximize, grad_scale};
        for (const auto& [step, work] : by_step) fsdp::adam(options, step, types, work, num_threads);
      },
      nb::arg("dtypes"), nb::arg("shards"), nb::kw_only(), nb::arg("lr"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"),
      nb::arg("weight_decay"), nb::arg("decoupled"), nb::arg("maximize"), nb::arg("grad_scale"), nb::arg("num_threads"),
      "Adam on [(address of the fp32 step, which is counted up, numel, address of p, g, m, v, max v or 0, copy or 0), ...] of these "
      "dtypes.");
  m.def(
      "sgd",
      [](const std::vector<std::string>& dtypes, const nb::list& shards, double lr, double momentum, double dampening, double weight_decay,
         bool nesterov, bool maximize, bool first, double grad_scale, int num_threads) {
        const auto types = dtypes_of(dtypes);
        std::vector<fsdp::Shard> work;
        for (const auto item : shards) work.push_back(shard_of(nb::borrow<nb::tuple>(item), 0));
        const nb::gil_scoped_release release;
        fsdp::sgd({lr, momentum, dampening, weight_decay, nesterov, maximize, first, grad_scale}, types, work, num_threads);
      },
      nb::arg("dtypes"), nb::arg("shards"), nb::kw_only(), nb::arg("lr"), nb::arg("momentum"), nb::arg("dampening"),
      nb::arg("weight_decay"), nb::arg("nesterov"), nb::arg("maximize"), nb::arg("first"), nb::arg("grad_scale"), nb::arg("num_threads"),
      "SGD on [(numel, address of p, g, momentum buffer or 0, 0, 0, copy or 0), ...] of these dtypes.");
  m.def(
      "power_sum",
      [](const std::string& dtype, std::uintptr_t address, std::size_t numel, double order, int num_threads) {
        const auto type = unwrap(fsdp::parse_dtype(dtype));
        const nb::gil_scoped_release release;
        return fsdp::power_sum(type, at(address), numel, order, num_threads);
      },
      nb::arg("dtype"), nb::arg("address"), nb::arg("numel"), nb::arg("order"), nb::arg("num_threads"),
      "What these elements add to a norm of this order.");
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
