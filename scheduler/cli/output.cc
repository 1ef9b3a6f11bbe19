#include "scheduler/cli/output.h"

#include <algorithm>
#include <cstdio>

namespace shoal::scheduler::cli {

using nlohmann::json;

bool is_refusal(const Error& e) {
  return e.reason() == "TokenRefused" || e.reason() == "CertificateRefused" || e.reason() == "TlsRequired";
}

int exit_code(const Error& e) {
  if (is_refusal(e)) return kAuth;
  if (e.reason() == "Usage") return kUsage;
  if (e.reason() == "Infeasible") return kDoesNotFit;
  switch (e.code()) {
    case Code::kNotFound:
      return kNotFoundExit;
    case Code::kUnavailable:
      return kUnreachable;
    case Code::kDeadlineExceeded:
      return kTimedOut;
    default:
      return kFailed;
  }
}

int submit_exit_code(const Error& e) {
  if (is_refusal(e)) return kSubmitAuth;
  if (e.reason() == "VersionMismatch") return kSubmitVersion;
  if (e.reason() == "Infeasible") return kSubmitDoesNotFit;
  if (e.code() == Code::kUnavailable || e.code() == Code::kDeadlineExceeded) return kSubmitUnreachable;
  return kSubmitOther;
}

void print_error(const Error& error, bool as_json) {
  if (as_json) {
    json out = to_json(error);
    out["schema"] = "shoal.error/1";
    print_json(out);
  } else {
    std::fprintf(stderr, "%s\n", error.to_string().c_str());
  }
}

void print_json(const json& out) { std::printf("%s\n", out.dump(-1, ' ', false, json::error_handler_t::replace).c_str()); }

actors::Resources for_people(actors::Resources resources) {
  const auto all = resources.all();
  for (const auto& [name, units] : all) {
    if (name.starts_with("node:")) resources.set_units(name, 0);
  }
  return resources;
}

namespace {
constexpr std::size_t kWidestColumn = 100;  // a longer cell moves the rest of its line: padding every line would print it once per row
}

void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& h : header) widths.push_back(h.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], std::min(row[i].size(), kWidestColumn));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      out += cells[i];
      if (i + 1 < cells.size()) out += std::string(std::max(widths[i], cells[i].size()) - cells[i].size() + 2, ' ');
    }
    std::printf("%s\n", out.c_str());
  };
  line(header);
  for (const auto& row : rows) line(row);
}

}  // namespace shoal::scheduler::cli
