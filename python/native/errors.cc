#include "python/native/bindings.h"

namespace shoal::python {

namespace {

// shoal.exceptions.from_error, set at import. Module state: there is one interpreter and one module.
nb::object& factory() {
  static nb::object* const object = new nb::object();  // never destroyed: the interpreter may end first
  return *object;
}

}  // namespace

nb::object to_exception(const Error& e) {
  if (!factory().is_valid()) throw std::runtime_error(e.to_string());
  nb::list context;
  for (const auto& frame : e.context()) context.append(frame);
  return factory()(static_cast<int>(e.code()), e.reason(), e.message(), e.hint(), context, e.cause_reason());
}

void raise(const Error& e) {
  if (e.reason() == "Interrupted") {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    raise(cancelled("this process left the cluster").with_reason("Closed"));  // another thread has closed the session meanwhile
  }
  const nb::object exception = to_exception(e);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

bool signals_pending() {
  const GilTaken gil;
  return PyErr_CheckSignals() != 0;
}

nb::object memory_view(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  auto* data = const_cast<std::byte*>(bytes.data());
  auto* kept = new std::shared_ptr<const void>(std::move(owner));
  const nb::capsule capsule(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  const std::size_t shape[1] = {bytes.size()};
  return Memory(data, 1, shape, capsule).cast(nb::rv_policy::reference).attr("toreadonly")();
}

void bind_errors(nb::module_& m) {
  m.def(
      "set_error_factory", [](nb::object make) { factory() = std::move(make); }, nb::arg("make"),
      "Names the function (code, reason, message, hint, context, cause_reason) -> exception that errors become.");
}

}  // namespace shoal::python
