// A ByteMover in Python: shoal._process_group over torch's process groups. Takes the GIL for every call.
#pragma once

#include "python/native/bindings.h"
#include "runtime/transport/byte_mover.h"

namespace shoal::python {

std::shared_ptr<runtime::ByteMover> make_py_mover(nb::object calls);

}  // namespace shoal::python
