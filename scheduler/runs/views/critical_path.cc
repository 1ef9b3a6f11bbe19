#include "scheduler/runs/views/critical_path.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::Span;

namespace {

std::int64_t end_of(const Span& span) { return span.from_us + span.length_us; }

// A rank's time without overlap, in order: of spans inside each other the innermost counts, such as a unit's forward inside the root's.
std::vector<Span> flattened(const Lane& lane) {
  std::vector<Span> spans, open, out;
  for (const auto& s : lane.spans) {
    if (s.length_us > 0) spans.push_back(s);
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    const bool waits = runtime::is_wait(a.activity), other_waits = runtime::is_wait(b.activity);
    return std::tuple(a.from_us, -a.length_us, waits) < std::tuple(b.from_us, -b.length_us, other_waits);
  });
  std::int64_t at = 0;
  const auto pass = [&](std::int64_t until) {  // adds the innermost open span, up to `until`
    if (until > at) out.push_back({open.back().activity, open.back().unit, at, until - at});
    at = std::max(at, until);
  };
  const auto close = [&](std::int64_t until) {
    for (; !open.empty() && end_of(open.back()) <= until; open.pop_back()) pass(end_of(open.back()));
  };
  for (const auto& s : spans) {
    close(s.from_us);
    if (!open.empty()) pass(s.from_us);
    at = std::max(at, s.from_us);
    open.push_back(s);
  }
  close(std::numeric_limits<std::int64_t>::max());
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
  // Returns the time and the lane of the last arrival at the exchange of `wait` before `wait` ended. If no lane arrived during `wait`, it
  // returns the time at which `wait` began, and the lane `waiting`.
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
