#include "runtime/telemetry/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "runtime/wire/nesting.h"

namespace shoal::runtime {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kKeys[] = {"out", "load", "fwd", "bwd", "opt", "save", "gather", "reduce", "window", "sync", "ended"};

// NaN and infinities have no form in JSON.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::optional<double> number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return {};
}

// An object of numbers; discarded if the line is none.
Json parsed(std::string_view line) {
  if (nesting(line) > kMaxNesting) return Json(Json::value_t::discarded);
  auto out = Json::parse(line, nullptr, false);
  if (!out.is_object()) return Json(Json::value_t::discarded);
  return out;
}

template <class T>
T get(const Json& from, const char* key, T otherwise = {}) {
  const auto at = from.find(key);
  if (at == from.end() || !at->is_number()) return otherwise;
  if constexpr (std::is_floating_point_v<T>) return at->get<T>();
  if (at->is_number_float()) {
    const double value = at->get<double>();
    return value > -9e15 && value < 9e15 ? static_cast<T>(value) : otherwise;
  }
  return at->get<T>();
}

std::string text_of(const Json& row) { return row.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

const char* key_of(Activity activity) { return kKeys[std::min<std::size_t>(static_cast<std::size_t>(activity), std::size(kKeys) - 1)]; }

std::int64_t StepRow::exposed_us() const {
  return in(Activity::kGather) + in(Activity::kReduce) + in(Activity::kWindow) + in(Activity::kSync);
}

void StepRow::add(const StepRow& later) {
  step = later.step;
  steps += later.steps;
  rank = later.rank, world = later.world, generation = later.generation;
  end_us = later.end_us;
  total_us += later.total_us;
  for (std::size_t i = 0; i < at.size(); ++i) at[i] += later.at[i];
  cpu_us += later.cpu_us;
  longest_us = std::max(longest_us, later.longest_us);
}

std::string to_line(const StepRow& r) {
  Json out = {{"step", r.step},      {"n", r.steps},    {"rank", r.rank},  {"world", r.world},
              {"gen", r.generation}, {"end", r.end_us}, {"us", r.total_us}};
  for (int i = 0; i < kNumActivities; ++i) out[kKeys[i]] = r.in(static_cast<Activity>(i));
  out["cpu"] = r.cpu_us;
  out["max"] = r.longest_us;
  return text_of(out);
}

std::optional<StepRow> step_row(std::string_view line) {
  const auto in = parsed(line);
  if (in.is_discarded() || !in.contains("step") || !in.contains("us")) return {};
  StepRow out;
  out.step = get<std::uint64_t>(in, "step");
  out.steps = std::max<std::int64_t>(get<std::int64_t>(in, "n", 1), 1);
  out.rank = get<int>(in, "rank"), out.world = get<int>(in, "world", 1), out.generation = get<int>(in, "gen", 1);
  out.end_us = get<std::int64_t>(in, "end"), out.total_us = get<std::int64_t>(in, "us");
  for (int i = 0; i < kNumActivities; ++i) out.in(static_cast<Activity>(i)) = get<std::int64_t>(in, kKeys[i]);
  out.cpu_us = get<std::int64_t>(in, "cpu"), out.longest_us = get<std::int64_t>(in, "max");
  return out;
}

std::string to_line(const SpansRow& r) {
  Json spans = Json::array();
  for (const auto& s : r.spans) spans.push_back({key_of(s.activity), s.unit, s.from_us, s.length_us});
  return text_of({{"step", r.step}, {"rank", r.rank}, {"begin", r.begin_us}, {"spans", std::move(spans)}});
}

std::optional<SpansRow> spans_row(std::string_view line) {
  const auto in = parsed(line);
  if (in.is_discarded() || !in.contains("spans") || !in["spans"].is_array()) return {};
  SpansRow out{get<std::uint64_t>(in, "step"), get<int>(in, "rank"), get<std::int64_t>(in, "begin")};
  for (const auto& s : in["spans"]) {
    if (!s.is_array() || s.size() < 4 || !s[0].is_string() || !s[1].is_number_integer() || !s[2].is_number_integer() ||
        !s[3].is_number_integer())
      continue;
    const auto activity = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const char* key) { return s[0] == key; });
    if (activity == std::end(kKeys)) continue;
    out.spans.push_back(
        {static_cast<Activity>(activity - std::begin(kKeys)), s[1].get<int>(), s[2].get<std::int64_t>(), s[3].get<std::int64_t>()});
  }
  return out;
}

std::string to_line(const SampleRow& r) {
  return text_of({{"t", r.t_us},
                  {"n", r.samples},
                  {"rss", r.rss},
                  {"cpu", r.cpu_us},
                  {"runq", r.runqueue_us},
                  {"faults", r.major_faults},
                  {"host_free", r.host_free},
                  {"host_total", r.host_total},
                  {"psi_cpu", r.pressure_cpu},
                  {"psi_io", r.pressure_io},
                  {"psi_mem", r.pressure_memory},
                  {"disk_free", r.disk_free},
                  {"step", r.step}});
}

std::optional<SampleRow> sample_row(std::string_view line) {
  const auto in = parsed(line);
  if (in.is_discarded() || !in.contains("rss")) return {};
  SampleRow out;
  out.t_us = get<std::int64_t>(in, "t"), out.samples = get<std::int64_t>(in, "n", 1);
  out.rss = get<std::int64_t>(in, "rss"), out.cpu_us = get<std::int64_t>(in, "cpu"), out.runqueue_us = get<std::int64_t>(in, "runq");
  out.major_faults = get<std::int64_t>(in, "faults");
  out.host_free = get<std::int64_t>(in, "host_free"), out.host_total = get<std::int64_t>(in, "host_total");
  out.disk_free = get<std::int64_t>(in, "disk_free");
  out.pressure_cpu = get<double>(in, "psi_cpu"), out.pressure_io = get<double>(in, "psi_io"),
  out.pressure_memory = get<double>(in, "psi_mem");
  out.step = get<std::uint64_t>(in, "step");
  return out;
}

std::string to_line(const MetricsRow& r) {
  Json values = Json::object();
  for (const auto& [name, value] : r.values) values[name] = number(value);
  return text_of({{"t", r.t_us}, {"step", r.step}, {"values", std::move(values)}});
}

std::optional<MetricsRow> metrics_row(std::string_view line) {
  const auto in = parsed(line);
  if (in.is_discarded() || !in.contains("values") || !in["values"].is_object()) return {};
  MetricsRow out{get<std::int64_t>(in, "t"), get<std::uint64_t>(in, "step")};
  for (const auto& [name, value] : in["values"].items())
    if (const auto v = number_of(value)) out.values.emplace_back(name, *v);
  return out;
}

}  // namespace shoal::runtime
