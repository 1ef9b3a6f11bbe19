// Conversions that all binding files use: of an Error to a Python exception, and of Python's buffers to spans.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>

#include "python/native/gil.h"
#include "python/native/text.h"
#include "runtime/core/result.h"

namespace shoal::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_refs(nb::module_& m);
void bind_session(nb::module_& m);
void bind_metrics(nb::module_& m);
void bind_telemetry(nb::module_& m);
void bind_channel(nb::module_& m);
void bind_network(nb::module_& m);
void bind_collective(nb::module_& m);
void bind_device(nb::module_& m);
void bind_step_graph(nb::module_& m);
void bind_step_runner(nb::module_& m);
void bind_model(nb::module_& m);
void bind_step(nb::module_& m);
void bind_shard_actor(nb::module_& m);
void bind_optim(nb::module_& m);
void bind_reshard(nb::module_& m);
void bind_protect(nb::module_& m);
void bind_checkpoint(nb::module_& m);

inline std::byte* memory_at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// Raises the exception that shoal.exceptions makes of `error`. If a signal ended a wait, it raises the exception of Python's signal
// handler.
[[noreturn]] void raise(const Error& error);
nb::object to_exception(const Error& error);

template <class T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// Calls fn, which returns a Result, without the GIL.
template <class F>
auto without_gil(F&& fn) {
  auto result = [&] {
    const GilReleased release;
    return fn();
  }();
  return unwrap(std::move(result));
}

// Runs Python's pending signal handlers during a wait. Returns true if one raised. Called without the GIL.
bool signals_pending();

using ReadBuffer = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<nb::memview, std::uint8_t, nb::ndim<1>>;

inline std::span<const std::byte> span_of(const nb::bytes& b) { return {static_cast<const std::byte*>(b.data()), b.size()}; }
inline std::span<const std::byte> span_of(const ReadBuffer& b) { return {reinterpret_cast<const std::byte*>(b.data()), b.size()}; }

// A read-only memoryview that keeps its owner alive. A tensor made from its `.obj` is writable, because a tensor cannot be read-only.
nb::object memory_view(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

}  // namespace shoal::python
