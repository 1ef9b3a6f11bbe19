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

std::string with_cause(std::string text, const json& f) {
  const std::string cause = word(f, "cause");
  return cause.empty() ? text : text + ": " + cause;
}

std::string generation_text(const json& f) {
  const std::string cause = word(f, "cause"), world = word(f, "world", "?");
  if (cause == "begins") return fmt::format("generation 1 begins with {} {}", world, world == "1" ? "worker" : "workers");
  const std::string why = cause == "dies"     ? "a worker died"
                          : cause == "joins"  ? "workers joined"
                          : cause == "leaves" ? "workers left"
                                              : cause;
  return fmt::format("generation {} of {} workers: {}; the training paused for {}, moved {}, and lost {} steps", word(f, "generation", "?"),
                     world, why, duration_text(number(f, "pause_us")), bytes_text(number(f, "bytes")), word(f, "steps_lost", "0"));
}

std::string end_text(const json& f) {
  const std::string code = word(f, "code");
  return with_cause(code.empty() ? "the process ended" : "the process ended with code " + code, f);
}

std::string death_text(const json& f) {
  const std::string rank = word(f, "rank"), host = word(f, "host");
  std::string who = rank.empty() ? "worker " + word(f, "worker", "?") + ", which had not joined yet," : "rank " + rank;
  return with_cause(who + (host.empty() ? "" : " on host " + host) + " died", f);
}

// A number that the program reported, or the norm of its gradients.
std::string number_text(const json& f, bool finite) {
  return fmt::format("{} is {} in step {}", word(f, "what", "a number"), finite ? "finite again" : "no finite number",
                     word(f, "step", "?"));
}

// The other fields, as "key value" each.
std::string fields_text(const json& f) {
  std::string out;
  for (const auto& [key, value] : f.items()) {
    if (key == "t" || key == "kind" || value.is_null()) continue;
    out += (out.empty() ? "" : ", ") + key + " " +
           (value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return out;
}

}  // namespace

std::string event_text(const Event& event) {
  const json& f = event.fields;
  const std::string& kind = event.kind;
  if (kind == "begin") return "the process began to train";
  if (kind == "end") return end_text(f);
  if (kind == "generation") return generation_text(f);
  if (kind == "death") return death_text(f);
  if (kind == "save" || kind == "load") {
    return fmt::format("{} the checkpoint of step {} ({}, {}): {}", kind == "save" ? "saved" : "loaded", word(f, "step", "?"),
                       bytes_text(number(f, "bytes")), duration_text(number(f, "us")), word(f, "path"));
  }
  if (kind == "memory") return "the rank has measured its memory by kind, after its first step";
  if (kind == "not_finite" || kind == "finite") return number_text(f, kind == "finite");
  if (kind == "clock")
    return fmt::format("the time of day jumped by {}", (number(f, "us") < 0 ? "-" : "") + duration_text(std::abs(number(f, "us"))));
  if (kind == "error") return word(f, "code") + (f.contains("code") ? ": " : "") + word(f, "message");
  if (kind == "verdict" || kind == "note") return word(f, "sentence");
  if (kind == "events_left_out") return with_cause("further events are not recorded", f);
  if (kind == "recording_stopped") return with_cause("the recording stopped; the training goes on", f);
  if (kind == "recording_goes_on") return with_cause("the recording goes on", f);
  const auto rest = fields_text(f);
  return rest.empty() ? kind : rest;
}

std::string python_text(const std::string& text) { return json(text).dump(-1, ' ', true, json::error_handler_t::replace); }

}  // namespace shoal::scheduler::runs
