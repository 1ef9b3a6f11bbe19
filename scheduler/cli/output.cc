#include "scheduler/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shoal::scheduler::cli {

using nlohmann::json;

bool is_refusal(const Error& e) {
  return e.reason() == "TokenRefused" || e.reason() == "CertificateRefused" || e.reason() == "CertificateExpired" ||
         e.reason() == "TlsRequired";
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

void print_bytes(std::FILE* to, std::string_view bytes) { std::fwrite(bytes.data(), 1, bytes.size(), to); }

void print_output(std::FILE* to, std::string_view text) {
  print_bytes(to, isatty(fileno(to)) == 1 ? terminal_output(text) : text);
  std::fflush(to);
}

void print_output(std::FILE* to, std::string_view prefix, std::string_view lines) {
  const std::string before = printable(prefix);
  std::string out;
  for (std::size_t from = 0; from < lines.size();) {
    const auto end = std::min(lines.find('\n', from), lines.size());
    out += before;
    out += lines.substr(from, end - from);
    out += '\n';
    from = end + 1;
  }
  print_output(to, out);
}

namespace {

bool reader_has_gone(std::FILE* to) {
  pollfd descriptor{fileno(to), POLLOUT, 0};
  return poll(&descriptor, 1, 0) == 1 && (descriptor.revents & POLLERR) != 0;
}

}  // namespace

int finish_output(int code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost || reader_has_gone(stdout)) return code;
  errno = 0;  // an earlier write may have failed, so another one finds the reason
  const bool again = std::fputc('\n', stdout) == EOF || std::fflush(stdout) != 0;
  const std::string why = again && errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  print_error(resource_exhausted("stdout did not take the whole output" + why).with_hint("free the disk, or write to another file"), false);
  return code == kOk ? static_cast<int>(kFailed) : code;
}

void print_error(const Error& error, bool as_json) {
  if (as_json) {
    json out = to_json(error);
    out["schema"] = "shoal.error/1";
    print_json(out);
  } else {
    print(stderr, "{}\n", Lines{error.to_string()});
  }
}

std::string json_text(const json& value) { return printable_json(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

void print_json(const json& out) { print_bytes(stdout, json_text(out) + "\n"); }

actors::Resources for_people(actors::Resources resources) {
  const auto all = resources.all();
  for (const auto& [name, units] : all) {
    if (name.starts_with("node:")) resources.set_units(name, 0);
  }
  return resources;
}

namespace {
constexpr std::size_t kWidestColumn = 100;  // a longer cell only moves the rest of its own line: else all rows would be padded to its width
}

void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> shown;
  for (const auto& row : rows) {
    auto& cells = shown.emplace_back();
    for (const auto& cell : row) cells.push_back(printable(cell));
  }
  std::vector<std::size_t> widths;
  for (const auto& h : header) widths.push_back(h.size());
  for (const auto& row : shown) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], std::min(row[i].size(), kWidestColumn));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      out += cells[i];
      if (i + 1 < cells.size()) out += std::string(std::max(widths[i], cells[i].size()) - cells[i].size() + 2, ' ');
    }
    print_bytes(stdout, out + "\n");
  };
  line(header);
  for (const auto& row : shown) line(row);
}

}  // namespace shoal::scheduler::cli
