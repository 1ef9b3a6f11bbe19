#include "scheduler/runs/event_text.h"

#include <cmath>

#include <fmt/format.h>

namespace shoal::scheduler::runs {

using nlohmann::json;

namespace {

std::string word(const json& fields, const char* key, const std::string& otherwise = "") {
  const auto at = fields.find(key);
  if (at == fields.end()) return otherwise;
  if (at->is_string()) return at->get<std::string>();
  return at->is_number() ? at->dump() : otherwise;
}

double number(const json& fields, const char* key) {
  const auto at = fields.find(key);
  return at != fields.end() && at->is_number() ? at->get<double>() : 0;
}

std::string duration(double us) {
  if (us >= 60e6) return fmt::format("{:.1f} min", us / 60e6);
  if (us >= 1e6) return fmt::format("{:.1f} s", us / 1e6);
  return us >= 1e3 ? fmt::format("{:.0f} ms", us / 1e3) : fmt::format("{:.0f} us", us);
}

std::string size(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string generation_text(const json& f) {
  const std::string cause = word(f, "cause");
  const std::string why = cause == "dies"     ? "a worker died"
                          : cause == "joins"  ? "workers joined"
                          : cause == "leaves" ? "workers left"
                                              : cause;
  return fmt::format("generation {} of {} workers: {}; the training paused for {}, moved {}, and lost {} steps", word(f, "generation", "?"),
                     word(f, "world", "?"), why, duration(number(f, "pause_us")), size(number(f, "bytes")), word(f, "steps_lost", "0"));
}

std::string with_cause(std::string text, const json& f) {
  const std::string cause = word(f, "cause");
  return cause.empty() ? text : text + ": " + cause;
}

}  // namespace

std::string event_text(const Event& event) {
  const json& f = event.fields;
  const std::string& kind = event.kind;
  if (kind == "begin") return "the process began to train";
  if (kind == "end") return with_cause("the process ended with code " + word(f, "code", "?"), f);
  if (kind == "generation") return generation_text(f);
  if (kind == "death") return with_cause(fmt::format("rank {} on host {} died", word(f, "rank", "?"), word(f, "host", "?")), f);
  if (kind == "save" || kind == "load") {
    return fmt::format("{} the checkpoint of step {} ({}, {}): {}", kind == "save" ? "saved" : "loaded", word(f, "step", "?"),
                       size(number(f, "bytes")), duration(number(f, "us")), word(f, "path"));
  }
  if (kind == "not_finite") return fmt::format("{} is no finite number in step {}", word(f, "what", "a number"), word(f, "step", "?"));
  if (kind == "clock")
    return fmt::format("the time of day jumped by {}", (number(f, "us") < 0 ? "-" : "") + duration(std::abs(number(f, "us"))));
  if (kind == "error") return word(f, "code") + (f.contains("code") ? ": " : "") + word(f, "message");
  if (kind == "verdict") return word(f, "sentence");
  if (kind == "events_left_out") return with_cause("further events are not recorded", f);
  if (kind == "recording_stopped") return with_cause("the recording stopped; the training goes on", f);
  if (kind == "recording_goes_on") return with_cause("the recording goes on", f);
  json rest = f;
  rest.erase("t");
  rest.erase("kind");
  return rest.empty() ? kind : rest.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos && text.front() != '-') return text;
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
  return (text.starts_with('-') ? "./" : "") + out + "'";
}

std::string python_text(const std::string& text) { return json(text).dump(-1, ' ', true, json::error_handler_t::replace); }

}  // namespace shoal::scheduler::runs
