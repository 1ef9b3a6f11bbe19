#include "scheduler/runs/views/parts.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::scheduler::runs::views {

std::int64_t Query::number(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most) {
  const auto at = given_.find(name);
  if (at == given_.end()) return otherwise;
  std::int64_t out = 0;
  const std::string& text = at->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size() && out >= least && out <= most) return out;
  if (!wrong_) wrong_ = invalid_argument(fmt::format("{} is a number from {} to {}, not '{}'", name, least, most, text));
  return otherwise;
}

std::string Query::text(const char* name) const {
  const auto at = given_.find(name);
  return at == given_.end() ? "" : at->second;
}

json paged(json rows, const Page& page, const std::string& version) {
  const auto total = static_cast<std::int64_t>(rows.size());
  json part = json::array();
  for (std::int64_t i = page.offset; i < std::min(total, page.offset + page.limit); ++i)
    part.push_back(std::move(rows[static_cast<std::size_t>(i)]));
  return {{"rows", std::move(part)}, {"total", total}, {"offset", page.offset}, {"cursor", version}};
}

json unchanged(const std::string& version) { return {{"unchanged", true}, {"cursor", version}}; }

std::uint64_t readings_of(const Run& run) {
  std::uint64_t out = run.processes.size();
  for (const auto& p : run.processes) out += p.readings;
  return out;
}

std::uint64_t last_step(const Process& p) {
  const std::uint64_t rows = p.steps.rows.empty() ? 0 : p.steps.rows.back().step;
  return std::max(rows, p.live ? p.live->step : 0);
}
std::int64_t last_time(const Process& p) {
  std::int64_t out = p.facts.start_us;
  if (!p.steps.rows.empty()) out = std::max(out, p.steps.rows.back().end_us);
  if (!p.samples.rows.empty()) out = std::max(out, p.samples.rows.back().t_us);
  if (!p.metrics.rows.empty()) out = std::max(out, p.metrics.rows.back().t_us);
  if (!p.events.rows.empty()) out = std::max(out, p.events.rows.back().t_us);
  return out;
}

const Process* timekeeper(const Run& run) {
  const Process* out = nullptr;
  for (const auto& p : run.processes) {
    if (trains(p) && !p.steps.rows.empty() && (!out || p.steps.rows.size() > out->steps.rows.size())) out = &p;
  }
  return out;
}
std::vector<TimedEvent> events_of(const Run& run, const std::function<bool(const Process&, const Event&)>& wanted) {
  std::vector<TimedEvent> out;
  for (const auto& p : run.processes) {
    for (const auto& e : p.events.rows) {
      if (wanted(p, e)) out.push_back({&p, &e});
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.event->t_us > b.event->t_us; });
  return out;
}

std::string events_version(const Run& run) {
  std::uint64_t appended = 0;
  for (const auto& p : run.processes) appended += p.events.appended;
  return fmt::format("{}.{}", appended, readings_of(run));
}

std::int64_t integer(const json& fields, const char* key) {
  const auto at = fields.find(key);
  if (at == fields.end() || !at->is_number()) return 0;
  const double value = at->get<double>();
  return std::abs(value) < 9e15 ? static_cast<std::int64_t>(value) : 0;
}
std::string text(const json& fields, const char* key) {
  const auto at = fields.find(key);
  return at != fields.end() && at->is_string() ? at->get<std::string>() : "";
}

}  // namespace shoal::scheduler::runs::views
