// Python callables as parts of transports. They take the GIL for every call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "python/native/bindings.h"
#include "runtime/transport/collective_backend.h"

namespace shoal::python {

// A CollectiveBackend in Python: shoal._distributed.process_group over torch's process groups.
std::shared_ptr<runtime::CollectiveBackend> make_py_backend(nb::object calls);

// exchange(name, bytes), which returns what every rank has passed under this name.
struct PyExchange {
  std::function<Result<std::vector<std::string>>(const std::string& name, const std::string& own)> call;
  std::function<Result<void>()> check;  // fails once one of the ranks is known to be gone: exchange.check()
};
PyExchange make_py_exchange(nb::object exchange);

}  // namespace shoal::python
