// A CollectiveBackend in Python: shoal._distributed.process_group over torch's process groups. Takes the GIL for every call.
#pragma once

#include "python/native/bindings.h"
#include "runtime/transport/collective_backend.h"

namespace shoal::python {

std::shared_ptr<runtime::CollectiveBackend> make_py_backend(nb::object calls);

}  // namespace shoal::python
