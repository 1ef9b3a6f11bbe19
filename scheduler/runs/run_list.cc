#include "scheduler/runs/run_list.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "scheduler/runs/files.h"
#include "scheduler/runs/run_reader.h"

namespace shoal::scheduler::runs {

namespace {

constexpr std::size_t kMostNames = 100'000;  // names that are read of a folder, since any of them may be the newest run

std::int64_t change_us(const std::string& path) {
  struct stat seen {};
  return stat(path.c_str(), &seen) != 0 ? 0 : seen.st_mtim.tv_sec * std::int64_t{1'000'000} + seen.st_mtim.tv_nsec / 1000;
}

// The last word of a path, which may be "." or end with a slash.
std::string name_of(const std::string& path) {
  std::error_code gone;
  const auto whole = std::filesystem::weakly_canonical(path, gone);
  return whole.has_filename() ? whole.filename() : whole.parent_path().filename();
}

}  // namespace

std::vector<ListedRun> list_runs(const std::vector<std::string>& roots, std::size_t most) {
  std::vector<ListedRun> out;
  const auto add = [&](const std::string& name, const std::string& path) {
    if (is_run_folder(path)) out.push_back({name, path, std::max(change_us(path), change_us(path + "/processes"))});
  };
  for (const auto& root : roots) {
    const Fd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) continue;
    add(name_of(root), root);
    for (const auto& name : names_in(folder, kMostNames)) add(name, root + "/" + name);
  }
  std::stable_sort(out.begin(), out.end(), [](const ListedRun& a, const ListedRun& b) { return a.changed_us > b.changed_us; });
  if (out.size() > most) out.resize(most);
  return out;
}

}  // namespace shoal::scheduler::runs
