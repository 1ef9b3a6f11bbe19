#include "scheduler/runs/views/critical_path.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::Span;

namespace {

std::int64_t end_of(const Span& span) { return span.from_us + span.length_us; }

// A rank's time without overlap, in order: waits cut the work around them into pieces.
std::vector<Span> flattened(const Lane& lane) {
  std::vector<Span> waits, out;
  for (const auto& s : lane.spans) {
    if (s.length_us > 0 && runtime::is_wait(s.activity)) waits.push_back(s);
  }
  const auto earlier = [](const Span& a, const Span& b) { return a.from_us < b.from_us; };
  std::sort(waits.begin(), waits.end(), earlier);
  out = waits;
  for (const auto& s : lane.spans) {
    if (runtime::is_wait(s.activity)) continue;
    std::int64_t at = s.from_us;
    auto wait = std::partition_point(waits.begin(), waits.end(), [&](const Span& w) { return end_of(w) <= s.from_us; });
    for (; wait != waits.end() && wait->from_us < end_of(s); ++wait) {
      if (wait->from_us > at) out.push_back({s.activity, s.unit, at, wait->from_us - at});
      at = std::max(at, end_of(*wait));
    }
    if (at < end_of(s)) out.push_back({s.activity, s.unit, at, end_of(s) - at});
  }
  std::sort(out.begin(), out.end(), earlier);
  return out;
}

}  // namespace

std::vector<PathPart> critical_path(const std::vector<Lane>& lanes) {
  std::vector<std::vector<Span>> flat;
  // When each lane came to an exchange. A rank that did not wait has no entry.
  std::vector<std::multimap<std::pair<Activity, int>, std::int64_t>> arrivals(lanes.size());
  std::size_t lane = 0, num_spans = 0;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    flat.push_back(flattened(lanes[i]));
    num_spans += flat.back().size();
    for (const auto& s : flat.back()) {
      if (runtime::is_wait(s.activity)) arrivals[i].emplace(std::pair(s.activity, s.unit), s.from_us);
    }
    if (!flat.back().empty() && end_of(flat.back().back()) > at) at = end_of(flat.back().back()), lane = i;
  }
  // The lane that came last to the exchange of this wait, while it lasted; the same lane if none came later.
  const auto last_to = [&](const Span& wait, std::size_t waiting) {
    std::pair<std::int64_t, std::size_t> last{wait.from_us, waiting};
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const auto [from, to] = arrivals[i].equal_range({wait.activity, wait.unit});
      for (auto a = from; a != to; ++a) {
        if (a->second > last.first && a->second < end_of(wait)) last = {a->second, i};
      }
    }
    return last;
  };
  std::vector<PathPart> out;
  for (std::size_t i = 0; i < 2 * num_spans && at > 0; ++i) {
    const auto& spans = flat[lane];
    auto span = std::partition_point(spans.begin(), spans.end(), [&](const Span& s) { return s.from_us < at; });
    if (span == spans.begin()) break;
    --span;
    const std::int64_t end = std::min(at, end_of(*span));
    if (!runtime::is_wait(span->activity)) {
      out.push_back({lane, span->from_us, end - span->from_us, span->activity});
      at = span->from_us;
      continue;
    }
    const auto [arrived, other] = last_to(*span, lane);
    if (arrived < end) out.push_back({lane, arrived, end - arrived, span->activity});
    at = std::min(arrived, end);
    lane = other;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace shoal::scheduler::runs
