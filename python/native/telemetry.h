// The telemetry, and the scope of a wait that it counts. Without a telemetry it does nothing.
#pragma once

#include <optional>

#include "python/native/bindings.h"
#include "runtime/telemetry/telemetry.h"

namespace shoal::python {

class CountedWait {
 public:
  CountedWait(runtime::Telemetry* telemetry, std::optional<runtime::Activity> activity, int unit)
      : telemetry_(activity ? telemetry : nullptr) {
    if (telemetry_ != nullptr) telemetry_->wait_begin(*activity, unit);
  }
  ~CountedWait() {
    if (telemetry_ != nullptr) telemetry_->wait_end();
  }
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;

 private:
  runtime::Telemetry* const telemetry_;
};

}  // namespace shoal::python
