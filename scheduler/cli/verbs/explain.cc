// explain: what an error, an exit code or a verdict on a run means, and what to do.
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/process/process.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/explain/explanation.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

const char* kind_text(const Explanation& entry) {
  switch (entry.kind) {
    case Explanation::Kind::kCode:
      return "code";
    case Explanation::Kind::kReason:
      return "reason";
    case Explanation::Kind::kExit:
      return "exit";
    case Explanation::Kind::kVerdict:
      return "verdict";
  }
  return "";
}

void print_explanations(std::span<const Explanation> entries) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& entry : entries) {
    const bool names_kind = entry.kind == Explanation::Kind::kExit || entry.kind == Explanation::Kind::kVerdict;
    rows.push_back({names_kind ? title_of(entry) : std::string(entry.name), std::string(entry.meaning)});
  }
  print_table({"ERROR", "MEANING"}, rows);
}

void print_explanation(const Explanation& entry) {
  print(stdout, "{}\n  {}\n", title_of(entry), entry.meaning);
  if (!entry.causes.empty()) print(stdout, "  usual causes: {}\n", entry.causes);
  if (!entry.remedy.empty()) print(stdout, "  remedy: {}\n", entry.remedy);
}

nlohmann::json explanations_json(std::span<const Explanation> entries) {
  nlohmann::json out = {{"schema", "shoal.explanations/1"}, {"entries", nlohmann::json::array()}};
  for (const auto& entry : entries) {
    nlohmann::json codes = nlohmann::json::array();
    for (const auto& code : all_explanations()) {
      if (code.kind == Explanation::Kind::kCode && has_code(entry, code.name)) codes.push_back(code.name);
    }
    out["entries"].push_back({{"kind", kind_text(entry)},
                              {"name", entry.name},
                              {"codes", codes},
                              {"meaning", entry.meaning},
                              {"causes", entry.causes},
                              {"remedy", entry.remedy}});
  }
  return out;
}

// The signal that ended a program with this exit code; 0: none.
int signal_of(const std::string& text) {
  int code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && code > 128 && code < 128 + NSIG ? code - 128 : 0;
}

int explain_error(const Common& common, const std::string& text) {
  auto found = text.empty() ? std::vector<Explanation>(all_explanations().begin(), all_explanations().end()) : explain(text);
  std::string meaning;
  if (const int signal = signal_of(text); found.empty() && signal != 0) {
    meaning = fmt::format("{} ended the program (128 + {}).", runtime::signal_name(signal), signal);
    found.push_back(
        {Explanation::Kind::kExit, text, "", meaning, "", "Look at the end of its output, and at the log of whoever sent the signal."});
  }
  if (found.empty()) {
    const std::string meant = nearest_explained(text);
    return failed(common,
                  not_found("there is no error '" + text + "'")
                      .with_hint((meant.empty() ? "" : "did you mean `shoal explain " + meant + "`? ") +
                                 "`shoal explain` lists all errors; other exit codes are those of the script: 128 + N after signal N"));
  }
  if (common.json) {
    print_json(explanations_json(found));
  } else if (text.empty()) {
    print_explanations(found);
  } else {
    print_explanation(found.front());
    if (found.size() > 1) print(stdout, "\nits reasons:\n");
    if (found.size() > 1) print_explanations(std::span(found).subspan(1));
  }
  return kOk;
}

}  // namespace

void add_explain(CommandLine& line) {
  auto& text = line.own<std::string>();
  auto* verb = line.add_verb_without_cluster("explain", "Print what an error, an exit code or a verdict on a run means, and what to do");
  auto* code = verb->add_option(
      "code", text, "A code, a reason, CODE/REASON as an error shows it, an exit code, or a verdict's code; without one all are listed");
  std::vector<std::string> names;
  for (const auto& entry : all_explanations()) names.emplace_back(entry.name);
  line.set_choices(code, std::move(names));
  line.on_run(verb, [&text](const Common& common) { return explain_error(common, text); });
}

}  // namespace shoal::scheduler::cli
