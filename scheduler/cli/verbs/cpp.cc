// cpp new, cpp prefix: programs of C++ actors outside of Shoal's workspace, with the headers and the library beside this command.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

namespace files = std::filesystem;

constexpr std::string_view kNameInFiles = "@NAME@";
constexpr std::size_t kMaxName = 64;
// Names that CMake keeps for its own targets, and the name by which a program looks for the command beside itself.
constexpr std::array<std::string_view, 9> kReserved = {"all", "ALL_BUILD", "build", "clean", "help", "install", "package", "shoal", "test"};

// PREFIX/bin/shoal is this command, and `./dev wheel` puts the rest below PREFIX.
Result<files::path> prefix_of(const Common& common) {
  auto prefix = files::path(common.self).parent_path().parent_path();
  std::error_code unreadable;
  if (files::is_regular_file(prefix / "lib" / "cmake" / "shoal" / "shoal-config.cmake", unreadable)) return prefix;
  return fail(not_found(fmt::format("{} has no C++ headers and library beside it", common.self))
                  .with_hint("use the command of an installed wheel (`./dev wheel` builds it); in Shoal's workspace, a BUILD file builds "
                             "C++ programs (docs/cpp.md)"));
}

Result<void> check_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; };
  const bool reserved = std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
  if (!name.empty() && name.size() <= kMaxName && std::isalpha(static_cast<unsigned char>(name[0])) != 0 &&
      std::all_of(name.begin(), name.end(), fits) && !reserved) {
    return {};
  }
  const auto why =
      reserved ? std::string("has a meaning of its own for CMake or Shoal")
               : fmt::format("is no name of a project: up to {} letters, digits, _ and -, of which the first is a letter", kMaxName);
  return fail(invalid_argument(fmt::format("'{}' {}", name, why)).with_reason("Usage").with_hint("shoal cpp new counter"));
}

Result<std::string> project_file(const files::path& source, const std::string& name) {
  std::ostringstream read;
  if (!(read << std::ifstream(source).rdbuf())) return fail(not_found(fmt::format("{} cannot be read", source.string())));
  std::string text = std::move(read).str();
  for (std::size_t at = 0; (at = text.find(kNameInFiles, at)) != std::string::npos; at += name.size()) {
    text.replace(at, kNameInFiles.size(), name);
  }
  return text;
}

// Makes the folder `name`; returns the names of its files.
Result<std::vector<std::string>> make_project(const files::path& prefix, const std::string& name) {
  SHOAL_OK(check_name(name));
  const auto source = prefix / "share" / "shoal" / "project";
  std::error_code error;
  std::vector<files::path> sources;
  for (const auto& entry : files::directory_iterator(source, error)) sources.push_back(entry.path());
  if (error) return fail(from_errno(error.value(), source.string()));
  std::sort(sources.begin(), sources.end());

  // Making the folder fails if anything has its name, so nothing is overwritten.
  const bool created = files::create_directory(name, error);
  if (error && error != std::errc::file_exists) return fail(from_errno(error.value(), name));
  if (!created) {
    return fail(
        invalid_argument(fmt::format("{} exists already", name)).with_reason("Exists").with_hint("choose another name, or remove it"));
  }
  std::vector<std::string> out;
  for (const auto& file : sources) {
    SHOAL_TRY(const std::string text, project_file(file, name));
    const auto to = files::path(name) / file.filename();
    if (!(std::ofstream(to) << text << std::flush)) return fail(internal(fmt::format("{} cannot be written", to.string())));
    out.push_back(file.filename());
  }
  return out;
}

int new_project(const Common& common, const std::string& name) {
  const auto prefix = prefix_of(common);
  if (!prefix) return failed(common, prefix.error());
  const auto files_written = make_project(*prefix, name);
  if (!files_written) return failed(common, files_written.error());
  if (common.json) {
    print_json({{"schema", "shoal.cpp_new/1"}, {"folder", files::absolute(name).string()}, {"files", *files_written}});
    return kOk;
  }
  print(stdout, "{}/ has {}. Next:\n  cd {}\n  cmake -B build && cmake --build build\n  build/{}\n", name, fmt::join(*files_written, ", "),
        name, name);
  return kOk;
}

int print_prefix(const Common& common) {
  const auto prefix = prefix_of(common);
  if (!prefix) return failed(common, prefix.error());
  if (common.json) {
    print_json({{"schema", "shoal.cpp_prefix/1"}, {"prefix", prefix->string()}});
  } else {
    print_output(stdout, prefix->string() + "\n");
  }
  return kOk;
}

}  // namespace

void add_cpp(CommandLine& line) {
  auto* group = line.add_group("cpp", "Programs of C++ actors with CMake or pkg-config (docs/cpp.md)");
  auto& name = line.own<std::string>();
  auto* verb = line.add_verb_without_cluster("new", "Make a folder with CMakeLists.txt, a program of actors and a README", group);
  verb->add_option("name", name, "Name of the new folder and of its program")->required();
  line.on_run(verb, [&name](const Common& common) { return new_project(common, name); });
  line.on_run(line.add_verb_without_cluster("prefix", "Print the folder that has include, lib/cmake and lib/pkgconfig", group),
              print_prefix);
}

}  // namespace shoal::scheduler::cli
