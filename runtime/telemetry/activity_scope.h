// Counts the time of a block of code as time of an activity. Does nothing without a telemetry, or without an activity.
#pragma once

#include <optional>

#include "runtime/telemetry/telemetry.h"

namespace shoal::runtime {

class ActivityScope {
 public:
  // `key`: a unit's number, an optimizer's, or -1.
  ActivityScope(Telemetry* telemetry, std::optional<Activity> activity, int key)
      : telemetry_(activity ? telemetry : nullptr), activity_(activity.value_or(Activity::kElsewhere)), key_(key) {
    if (telemetry_ == nullptr) return;
    is_wait(activity_) ? telemetry_->wait_begin(activity_, key_) : telemetry_->begin(activity_, key_);
  }
  ~ActivityScope() {
    if (telemetry_ == nullptr) return;
    is_wait(activity_) ? telemetry_->wait_end() : telemetry_->end(activity_, key_);
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Telemetry* const telemetry_;
  const Activity activity_;
  const int key_;
};

}  // namespace shoal::runtime
