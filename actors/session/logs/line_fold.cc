#include "actors/session/logs/line_fold.h"

#include <fmt/format.h>

namespace shoal::actors {

std::string LineFold::add(const std::string& who, std::string_view line, runtime::TimePoint now) {
  std::string out = over(now);
  const auto it = seen_.find(line);
  // Only lines of several processes are folded. A process that repeats its own line is shown each time.
  if (it != seen_.end() && it->second.first != who) {
    it->second.others.insert(who);
    ++it->second.repeats;
    return out;
  }
  if (it == seen_.end() && !line.empty()) {
    if (order_.size() == options_.max_lines) {
      out += forget_oldest();
    }
    seen_[std::string(line)] = {now, who, {}, 0};
    order_.emplace_back(line);
  }
  out += fmt::format("({}) {}\n", who, line);
  return out;
}

std::string LineFold::over(runtime::TimePoint now) {
  std::string out;
  while (!order_.empty() && now - seen_.at(order_.front()).since >= options_.window) out += forget_oldest();
  return out;
}

std::string LineFold::rest() {
  std::string out;
  while (!order_.empty()) out += forget_oldest();
  return out;
}

std::string LineFold::forget_oldest() {
  const auto oldest = seen_.extract(order_.front());
  order_.pop_front();
  return say(oldest.key(), oldest.mapped());
}

std::optional<runtime::TimePoint> LineFold::next() const {
  for (const auto& line : order_) {
    const Seen& seen = seen_.at(line);
    if (seen.repeats > 0) return seen.since + options_.window;
  }
  return std::nullopt;
}

std::string LineFold::say(const std::string& line, const Seen& seen) const {
  if (seen.repeats == 0) return {};
  return fmt::format("({}) {} (×{}; SHOAL_DEDUP_LOGS=0 shows each)\n", seen.first, line, seen.repeats + 1);
}

}  // namespace shoal::actors
