#include "runtime/telemetry/rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

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

// Reads the form in which to_line() writes numbers, without spaces and escapes, some ten times faster than a parser for all JSON: a reader
// of a long run reads a million lines at once. Each function returns false for any other text, which nlohmann then reads.
class PlainText {
 public:
  explicit PlainText(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool over() const { return at_ == end_; }
  bool key(std::string_view& out) {
    if (!take('"')) return false;
    const char* const begin = at_;
    while (at_ != end_ && static_cast<signed char>(*at_) >= ' ' && *at_ != '"' && *at_ != '\\') ++at_;  // nlohmann checks UTF-8
    out = {begin, at_};
    return take('"') && take(':');
  }
  bool number(std::int64_t& out) {
    const auto read = std::from_chars(at_, end_, out);
    const bool whole = read.ec == std::errc() && read.ptr != end_ && (*read.ptr == ',' || *read.ptr == '}') && is_json({at_, read.ptr});
    if (whole) at_ = read.ptr;
    return whole;
  }
  bool number(double& out) {
    const auto read = std::from_chars(at_, end_, out);
    if (read.ec != std::errc() || !is_json({at_, read.ptr})) return false;
    at_ = read.ptr;
    return true;
  }
  // The members of an object: `read_member(key)` reads the value of each.
  template <class ReadMember>
  bool object(const ReadMember& read_member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string_view name;
      if (!key(name) || !read_member(name)) return false;
    } while (take(','));
    return take('}');
  }

 private:
  // from_chars also takes `nan`, `007`, `.5` and `1.`, which JSON does not have.
  static bool is_json(std::string_view number) {
    const auto is_digit = [&](std::size_t i) { return i < number.size() && number[i] >= '0' && number[i] <= '9'; };
    const std::size_t first = number.starts_with('-') ? 1 : 0, dot = number.find('.');
    return is_digit(first) && !(number[first] == '0' && is_digit(first + 1)) && (dot == number.npos || is_digit(dot + 1));
  }

  const char* at_;
  const char* const end_;
};

// The place of a row's number: `whole`, or `real` if it may have a fraction.
struct Member {
  std::string_view key;
  std::int64_t* whole = nullptr;
  double* real = nullptr;
  std::int64_t otherwise = 0;  // if the line has no such number
  bool found = false;
};

// Members that come in their order are found at once.
bool read_plain(std::string_view line, std::span<Member> members) {
  PlainText text(line);
  std::size_t next = 0;
  const bool plain = text.object([&](std::string_view key) {
    for (std::size_t tried = 0; tried < members.size(); ++tried) {
      Member& m = members[next++ % members.size()];
      if (m.key != key) continue;
      m.found = true;
      return m.real != nullptr ? text.number(*m.real) : text.number(*m.whole);
    }
    double other = 0;
    return text.number(other);
  });
  return plain && text.over();
}

// Returns false if the line is no object.
bool read_numbers(std::string_view line, std::span<Member> members) {
  for (const Member& m : members) {
    if (m.whole != nullptr) *m.whole = m.otherwise;
  }
  if (read_plain(line, members)) return true;
  const auto in = parsed(line);
  if (in.is_discarded()) return false;
  for (Member& m : members) {
    m.found = in.contains(m.key);
    if (m.real != nullptr) {
      *m.real = get<double>(in, m.key.data());
    } else {
      *m.whole = get<std::int64_t>(in, m.key.data(), m.otherwise);
    }
  }
  return true;
}

std::string text_of(const Json& row) { return row.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

const char* key_of(Activity activity) { return kKeys[std::min<std::size_t>(static_cast<std::size_t>(activity), std::size(kKeys) - 1)]; }

std::int64_t StepRow::exposed_us() const {
  return in(Activity::kGather) + in(Activity::kReduce) + in(Activity::kWindow) + in(Activity::kSync);
}

double StepRow::exposed_part() const {
  return std::clamp(static_cast<double>(exposed_us()) / std::max(static_cast<double>(total_us), 1.0), 0.0, 1.0);
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
  StepRow out;
  std::int64_t step = 0, rank = 0, world = 0, generation = 0;
  std::array<Member, 9 + kNumActivities> members = {{{"step", &step},
                                                     {"n", &out.steps, nullptr, 1},
                                                     {"rank", &rank},
                                                     {"world", &world, nullptr, 1},
                                                     {"gen", &generation, nullptr, 1},
                                                     {"end", &out.end_us},
                                                     {"us", &out.total_us}}};
  for (std::size_t i = 0; i < kNumActivities; ++i) members[7 + i] = {kKeys[i], &out.at[i]};
  members[7 + kNumActivities] = {"cpu", &out.cpu_us};
  members[8 + kNumActivities] = {"max", &out.longest_us};
  if (!read_numbers(line, members) || !members[0].found || !members[6].found) return {};
  out.step = static_cast<std::uint64_t>(step);
  out.steps = std::max<std::int64_t>(out.steps, 1);
  out.rank = static_cast<int>(rank), out.world = static_cast<int>(world), out.generation = static_cast<int>(generation);
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
  SampleRow out;
  std::int64_t step = 0;
  std::array<Member, 13> members = {{{"t", &out.t_us},
                                     {"n", &out.samples, nullptr, 1},
                                     {"rss", &out.rss},
                                     {"cpu", &out.cpu_us},
                                     {"runq", &out.runqueue_us},
                                     {"faults", &out.major_faults},
                                     {"host_free", &out.host_free},
                                     {"host_total", &out.host_total},
                                     {"psi_cpu", nullptr, &out.pressure_cpu},
                                     {"psi_io", nullptr, &out.pressure_io},
                                     {"psi_mem", nullptr, &out.pressure_memory},
                                     {"disk_free", &out.disk_free},
                                     {"step", &step}}};
  if (!read_numbers(line, members) || !members[2].found) return {};
  out.step = static_cast<std::uint64_t>(step);
  return out;
}

namespace {

std::optional<MetricsRow> plain_metrics(std::string_view line) {
  MetricsRow out;
  PlainText text(line);
  std::int64_t step = 0;
  bool any = false;
  const auto value = [&](std::string_view name) {  // nlohmann keeps the last one of equal names
    const bool is_new = std::none_of(out.values.begin(), out.values.end(), [&](const auto& v) { return v.first == name; });
    return is_new && text.number(out.values.emplace_back(name, 0).second);
  };
  const bool plain = text.object([&](std::string_view key) {
    if (key == "t") return text.number(out.t_us);
    if (key == "step") return text.number(step);
    return key == "values" && !std::exchange(any, true) && text.object(value);
  });
  if (!plain || !any || !text.over()) return {};
  out.step = static_cast<std::uint64_t>(step);
  return out;
}

}  // namespace

std::string to_line(const MetricsRow& r) {
  Json values = Json::object();
  for (const auto& [name, value] : r.values) values[name] = number(value);
  return text_of({{"t", r.t_us}, {"step", r.step}, {"values", std::move(values)}});
}

std::optional<MetricsRow> metrics_row(std::string_view line) {
  if (auto plain = plain_metrics(line)) return plain;
  const auto in = parsed(line);
  if (in.is_discarded() || !in.contains("values") || !in["values"].is_object()) return {};
  MetricsRow out{get<std::int64_t>(in, "t"), get<std::uint64_t>(in, "step")};
  for (const auto& [name, value] : in["values"].items())
    if (const auto v = number_of(value)) out.values.emplace_back(name, *v);
  return out;
}

}  // namespace shoal::runtime
