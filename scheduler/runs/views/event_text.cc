#include "scheduler/runs/views/event_text.h"

#include <cmath>

#include <fmt/format.h>

#include "scheduler/runs/present.h"

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

std::string generation_text(const json& f) {
  const std::string cause = word(f, "cause");
  const std::string why = cause == "dies"     ? "a worker died"
                          : cause == "joins"  ? "workers joined"
                          : cause == "leaves" ? "workers left"
                                              : cause;
  return fmt::format("generation {} of {} workers: {}; the training paused for {}, moved {}, and lost {} steps", word(f, "generation", "?"),
                     word(f, "world", "?"), why, duration_text(number(f, "pause_us")), bytes_text(number(f, "bytes")),
                     word(f, "steps_lost", "0"));
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
                       bytes_text(number(f, "bytes")), duration_text(number(f, "us")), word(f, "path"));
  }
  if (kind == "memory") return "the rank has measured its memory by kind, after its first step";
  if (kind == "not_finite") return fmt::format("{} is no finite number in step {}", word(f, "what", "a number"), word(f, "step", "?"));
  if (kind == "clock")
    return fmt::format("the time of day jumped by {}", (number(f, "us") < 0 ? "-" : "") + duration_text(std::abs(number(f, "us"))));
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

std::string python_text(const std::string& text) { return json(text).dump(-1, ' ', true, json::error_handler_t::replace); }

}  // namespace shoal::scheduler::runs
