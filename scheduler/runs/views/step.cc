// One step in detail.
#include <algorithm>

#include <fmt/format.h>

#include "scheduler/runs/views/critical_path.h"
#include "scheduler/runs/views/parts.h"

namespace shoal::scheduler::runs::views {

using runtime::key_of;

namespace {
constexpr std::size_t kMostLanes = 256;  // a step with more lanes gets no critical path
}

Result<json> step_view(const Run& run, Query& query) {
  const Page page(query);
  const auto wanted = static_cast<std::uint64_t>(query.number("number", 0, 0, std::int64_t{1} << 53));
  std::map<std::uint64_t, std::size_t> known;  // by step: the number of ranks that have its spans
  for (const auto& p : run.processes) {
    for (const auto& row : p.spans.rows) ++known[row.step];
  }
  json numbers = json::array();
  for (const auto& [step, ranks] : known) numbers.push_back(step);
  if (known.empty()) return json{{"step", json()}, {"steps", numbers}, {"lanes", json::array()}, {"total", 0}};
  std::uint64_t chosen = wanted;
  if (wanted == 0) {
    // Chooses among the newest three steps the one that most ranks have written, and the later one if several have as many.
    std::size_t most = 0;
    auto at = known.rbegin();
    for (int i = 0; i < 3 && at != known.rend(); ++i, ++at) {
      if (at->second > most) chosen = at->first, most = at->second;
    }
  }
  std::vector<std::pair<const Process*, const runtime::SpansRow*>> rows;
  for (const auto& p : run.processes) {
    for (const auto& row : p.spans.rows) {
      if (row.step == chosen) rows.emplace_back(&p, &row);
    }
  }
  if (rows.empty()) return fail(not_found(fmt::format("step {} is not recorded in detail", chosen)));
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second->rank < b.second->rank; });
  std::int64_t begin = rows.front().second->begin_us, end = 0;
  for (const auto& [p, row] : rows) begin = std::min(begin, row->begin_us);
  // Each process numbers its units itself, so all lanes get the numbers of one list of names.
  std::map<std::string, int> units;
  json names = json::array();
  const auto unit_number = [&](const Process& p, int unit) {
    if (unit < 0) return -1;
    const std::string name = p.unit_name(unit);
    const auto [at, fresh] = units.emplace(name, static_cast<int>(names.size()));
    if (fresh) names.push_back(name);
    return at->second;
  };
  std::vector<Lane> lanes;
  json lanes_json = json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [p, row] = rows[i];
    Lane lane;
    for (auto span : row->spans) {
      span.from_us += row->begin_us - begin;
      span.unit = unit_number(*p, span.unit);
      end = std::max(end, span.from_us + span.length_us);
      lane.spans.push_back(span);
    }
    const auto at = static_cast<std::int64_t>(i);
    if (at >= page.offset && at < page.offset + page.limit) {
      json spans = json::array();
      for (const auto& s : lane.spans) spans.push_back({key_of(s.activity), s.unit, s.from_us, s.length_us});
      lanes_json.push_back({{"rank", row->rank}, {"host", p->facts.host}, {"lane", i}, {"spans", std::move(spans)}});
    }
    if (lanes.size() < kMostLanes) lanes.push_back(std::move(lane));
  }
  json critical = json::array();
  if (rows.size() <= kMostLanes) {
    for (const auto& part : critical_path(lanes)) critical.push_back({part.lane, part.from_us, part.length_us, key_of(part.activity)});
  }
  return json{{"step", chosen},
              {"steps", std::move(numbers)},
              {"begin", begin},
              {"us", end},
              {"units", std::move(names)},
              {"lanes", std::move(lanes_json)},
              {"total", rows.size()},
              {"critical", std::move(critical)}};
}

}  // namespace shoal::scheduler::runs::views
