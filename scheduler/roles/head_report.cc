#include "scheduler/roles/head_report.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal::scheduler {

using nlohmann::json;

namespace {

std::string note_of(const std::string& session) { return session + "/head-failure.json"; }

}  // namespace

void note_head_start(const std::string& session, const std::optional<Error>& failure) {
  std::error_code ignored;
  if (!failure) return void(std::filesystem::remove(note_of(session), ignored));
  const json note = {{"reason", failure->reason()}, {"message", failure->message()}, {"hint", failure->hint()}};
  std::ofstream(note_of(session)) << note.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
}

std::optional<Error> failed_head_start(const std::string& session) {
  std::ifstream file(note_of(session));
  const json note = json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  if (!note.is_object()) return std::nullopt;
  const auto text = [&](const char* key) { return note.contains(key) && note[key].is_string() ? note[key].get<std::string>() : ""; };
  return unavailable(text("message")).with_reason(text("reason")).with_hint(text("hint"));
}

std::string set_aside_folder(const std::string& session) { return session + "/set-aside"; }

void keep_set_aside(const std::string& session, const std::vector<SetAside>& rows) {
  const std::string folder = set_aside_folder(session);
  mkdir(folder.c_str(), 0700);
  std::size_t kept = num_set_aside(session);
  for (const auto& row : rows) {
    if (kept++ >= kMaxKept) return;
    std::ofstream file(fmt::format("{}/{}-{:016x}", folder, to_string(row.table), row.id), std::ios::binary);
    file.write(reinterpret_cast<const char*>(row.bytes.data()), static_cast<std::streamsize>(row.bytes.size()));
  }
}

std::size_t num_set_aside(const std::string& session) {
  std::error_code ignored;
  std::filesystem::directory_iterator files(set_aside_folder(session), ignored);
  return ignored ? 0 : static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace shoal::scheduler
