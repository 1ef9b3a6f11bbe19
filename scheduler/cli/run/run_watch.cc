#include "scheduler/cli/run/run_watch.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>

#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {

namespace {

constexpr std::int64_t kIntervalUs = 250'000;
constexpr std::int64_t kForgottenUs = 60'000'000;  // a trouble that comes back later is reported again

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

void RunWatch::poll(std::int64_t now_us) {
  if (now_us - polled_us_ < kIntervalUs && now_us >= polled_us_) return;
  polled_us_ = now_us;
  if (!reader_) {
    auto opened = runs::RunReader::open(folder_);
    if (!opened) return;  // no rank has begun
    reader_.emplace(std::move(*opened));
  }
  reader_->poll(now_us);
  for (const auto& verdict : runs::diagnose(reader_->run(), now_us)) {
    if (verdict.state == runs::Health::kOk) continue;
    auto& seen = seen_us_[{verdict.code, verdict.rank.value_or(-1)}];
    if (now_us - std::exchange(seen, now_us) > kForgottenUs) report(verdict);
  }
}

void RunWatch::report(const runs::Verdict& verdict) {
  if (!telemetry_) {
    runtime::ProcessFacts facts;
    facts.role = "launcher", facts.host = host_name();
    auto opened = runtime::Telemetry::open(folder_, std::move(facts));
    if (opened) telemetry_ = *opened;
  }
  if (telemetry_) telemetry_->event("verdict", runs::to_json(verdict).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  // The error of a process that has ended comes with its exit.
  for (const char* code : {"dead_rank", "dead_driver", "failed", "lost"})
    if (verdict.code == code) return;
  const auto next = verdict.next.empty() ? "" : fmt::format(" ({})", verdict.next);
  print(stderr, "shoal: {}\n", verdict.sentence + next);
  std::fflush(stderr);
}

}  // namespace shoal::scheduler::cli
