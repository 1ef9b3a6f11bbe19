// The extension module: conversions only, no logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "runtime/core/error.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.attr("__version__") = "0.1.0";
  m.def("code_name", [](std::uint16_t code) {
    if (code >= shoal::kNumCodes) throw nb::value_error("there are nine codes, 0 to 8");
    return std::string(shoal::code_name(static_cast<shoal::Code>(code)));
  });
}
