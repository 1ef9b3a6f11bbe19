#include "actors/api/record/step_record.h"

#include <unistd.h>

#include <array>
#include <cstdio>

#include "runtime/telemetry/activity_scope.h"
#include "runtime/telemetry/telemetry.h"

namespace shoal {

namespace {

constexpr int kOptimizerKey = 0;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

StepRecord::Scope::Scope(std::unique_ptr<runtime::ActivityScope> scope) : scope_(std::move(scope)) {}

StepRecord::Scope::~Scope() = default;

StepRecord::StepRecord(std::string folder, std::string program) : folder_(std::move(folder)), program_(std::move(program)) {}

StepRecord::~StepRecord() = default;

runtime::Telemetry* StepRecord::open() {
  if (telemetry_ || folder_.empty()) return telemetry_.get();
  // Records only the program's name, since its arguments may be secrets.
  auto opened = runtime::Telemetry::open(folder_, {.role = "rank", .host = host_name(), .device = "cpu", .argv = {program_}});
  folder_.clear();
  if (opened) {
    telemetry_ = *std::move(opened);
    telemetry_->event("begin");
  } else {
    std::fprintf(stderr, "shoal: this process records nothing: %s\n", opened.error().message().c_str());
  }
  return telemetry_.get();
}

StepRecord::Scope StepRecord::at(Activity activity, const std::string& unit) {
  auto* const telemetry = open();
  int key = activity == Activity::kOptimizer ? kOptimizerKey : -1;
  if (telemetry != nullptr && activity != Activity::kOptimizer && !unit.empty()) {
    const auto [at, added] = units_.try_emplace(unit, 0);
    if (added) at->second = telemetry->add_units({unit});
    key = at->second;
  }
  return Scope(std::make_unique<runtime::ActivityScope>(telemetry, activity, key));
}

void StepRecord::end_step() {
  auto* const telemetry = open();
  if (telemetry == nullptr) return;
  telemetry->begin(Activity::kOptimizer, kOptimizerKey);
  telemetry->end_optimizer(kOptimizerKey);
}

void StepRecord::report(const std::map<std::string, double>& metrics) {
  if (auto* const telemetry = open(); telemetry != nullptr) telemetry->metrics({metrics.begin(), metrics.end()});
}

void StepRecord::close(int code) {
  if (telemetry_) telemetry_->close(code, code == 0 ? "" : "the program ended with an error");
}

}  // namespace shoal
