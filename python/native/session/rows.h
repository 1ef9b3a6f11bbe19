// Conversions of the head's rows to dicts.
#pragma once

#include "python/native/session/refs.h"

namespace shoal::python {

nb::dict resources_dict(const actors::Resources& r);
nb::dict group_dict(const actors::GroupRow& r);

}  // namespace shoal::python
