// The steps of a training that a C++ driver makes, in its run's folder (docs/runs.md).
//
//   shoal::StepRecord& record = context.record();
//   for (...) {
//     { const auto at = record.at(shoal::Activity::kForward, "layers.0"); ... }
//     record.end_step();
//   }
//
// The driver's process is the run's rank 0 of 1. Its time in no block counts as `out`. The thread that trains calls all methods. A
// method never fails; without a folder it does nothing. The first call opens the record.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/telemetry/live_page.h"

namespace shoal::runtime {
class ActivityScope;
class Telemetry;
}  // namespace shoal::runtime

namespace shoal {

using runtime::Activity;

class StepRecord {
 public:
  // The time of a block at an activity; the innermost block counts.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class StepRecord;
    explicit Scope(std::unique_ptr<runtime::ActivityScope> scope);
    const std::unique_ptr<runtime::ActivityScope> scope_;
  };

  // `folder`: the run's; empty: nothing is recorded. `program`: the name of this process's program.
  StepRecord(std::string folder, std::string program);
  ~StepRecord();
  StepRecord(const StepRecord&) = delete;
  StepRecord& operator=(const StepRecord&) = delete;

  // `unit`: the part of the model or of the program. Verdicts compare forwards, backwards and waits (kGather to kSync) by unit.
  [[nodiscard]] Scope at(Activity activity, const std::string& unit = "");
  // Ends a training step: writes one row of the record.
  void end_step();
  // Numbers of the step that has ended, such as the loss.
  void report(const std::map<std::string, double>& metrics);
  // Records that the program ends with `code`. main calls it.
  void close(int code);

 private:
  runtime::Telemetry* open();

  std::string folder_;
  const std::string program_;
  std::shared_ptr<runtime::Telemetry> telemetry_;
  std::map<std::string, int> units_;  // the telemetry's number of each unit, by the unit's name
};

}  // namespace shoal
