#include "scheduler/cli/verbs/submitting.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include <nlohmann/json.hpp>

#include "actors/protocol/wire/packages.h"
#include "runtime/core/fd.h"
#include "runtime/process/captured.h"
#include "scheduler/cli/verbs/python_module.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

constexpr auto kPythonPatience = std::chrono::minutes(10);  // for packing a large folder from a slow disk

}  // namespace

Result<std::string> run_python(const Common& common, const std::vector<std::string>& words) {
  runtime::SpawnSpec spec;
  spec.argv = python_module(common, "shoal._submitting");
  spec.argv.insert(spec.argv.end(), words.begin(), words.end());
  spec.env = common.environment.entries();
  SHOAL_TRY(auto captured, runtime::run_captured(std::move(spec), {.time = kPythonPatience}));
  const auto without_newlines = [](std::string& text) { text.erase(text.find_last_not_of('\n') + 1); };
  without_newlines(captured.out);
  without_newlines(captured.err);
  if (captured.ended.ok()) return std::move(captured.out);
  const auto last = captured.err.substr(captured.err.rfind('\n') + 1);  // the whole text if it has one line
  return fail(invalid_argument(last.empty() ? common.python + " -m shoal._submitting " + captured.ended.to_string() : last));
}

Result<void> ship_folder(const Common& common, const std::string& store, Client& head, const std::string& runtime_env,
                         actors::JobSpec& spec) {
  const json env = json::parse(runtime_env);
  const std::string folder = env.at("working_dir");
  std::vector<std::string> words = {"pack", folder};
  const std::string named = common.environment.get("TMPDIR");
  std::string file = (named.empty() ? "/tmp" : named) + "/shoal-package-XXXXXX";
  const Fd package(mkostemp(file.data(), O_CLOEXEC));
  if (!package) return fail(from_errno(errno, "a temporary file for " + folder));
  const auto remove = [&](const auto&) { unlink(file.c_str()); };
  const std::unique_ptr<const std::string, decltype(remove)> removed(&file, remove);
  words.push_back(file);
  for (const auto& pattern : env.value("excludes", json::array())) {
    if (pattern.is_string()) words.push_back(pattern);
  }
  SHOAL_TRY(const std::string name, run_python(common, words));
  struct stat seen {};
  if (fstat(package.get(), &seen) != 0) return fail(from_errno(errno, file));
  actors::PackagePart part{name, static_cast<std::uint64_t>(seen.st_size), 0, {}};
  SHOAL_TRY(auto has, head.request_for<actors::HasPackage>(actors::Method::kPutPackage, to_bytes(part)));
  while (!has.whole) {
    part.data.resize(std::min<std::uint64_t>(actors::PackagePart::kMaxBytes, part.total - part.offset));
    const ssize_t n = pread(package.get(), part.data.data(), part.data.size(), static_cast<off_t>(part.offset));
    if (n <= 0) return fail(data_loss(file + " was changed meanwhile"));
    part.data.resize(static_cast<std::size_t>(n));
    SHOAL_TRY(has, head.request_for<actors::HasPackage>(actors::Method::kPutPackage, to_bytes(part)));
    part.offset += part.data.size();
  }
  auto& launch = spec.launch;
  std::erase_if(launch.env, [](const auto& e) { return e.first == "SHOAL_RUNTIME_ENV"; });
  launch.env.emplace_back("SHOAL_RUNTIME_ENV", env.dump());
  launch.env.emplace_back("SHOAL_PACKAGES", json({{"store", store}, {"of", {{folder, name}}}}).dump());
  if (launch.argv[0] == "/bin/sh") launch.argv = {common.python, "-m", "shoal._entrypoint", launch.argv.back()};
  launch.cwd.clear();
  return {};
}

}  // namespace shoal::scheduler::cli
