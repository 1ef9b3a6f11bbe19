#include "scheduler/cli/launch/batch_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler::cli {

namespace {

std::string slurm_time(std::chrono::seconds limit) {
  const auto s = limit.count();
  const auto days = s / 86400;
  return (days > 0 ? fmt::format("{}-", days) : "") + fmt::format("{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60);
}

}  // namespace

std::string batch_script(const LaunchRequest& r) {
  std::string out = "#!/bin/bash\n";
  const auto directive = [&out](const std::string& text) { out += "#SBATCH " + text + "\n"; };
  directive("--job-name=" + r.name);
  directive("--output=%x-%j.out");
  if (!r.partition.empty()) directive("--partition=" + r.partition);
  if (!r.account.empty()) directive("--account=" + r.account);
  directive(r.elastic() ? fmt::format("--nodes={}-{}", *r.min, *r.max) : fmt::format("--nodes={}", r.first_hosts()));
  if (!r.hosts.empty()) directive(fmt::format("--nodelist={}", fmt::join(r.hosts, ",")));
  directive("--ntasks-per-node=1");
  if (r.gpus > 0) directive(fmt::format("--gpus-per-node={}", r.gpus));
  if (r.cpus > 0) directive(fmt::format("--cpus-per-task={}", r.cpus));
  if (r.gpus == 0 && r.cpus == 0) directive("--exclusive");
  if (r.time.count() > 0) directive("--time=" + slurm_time(r.time));
  out += fmt::format("# {} s before the time limit: the ranks save, and each host ends within {} s.\n", r.grace_s + kEndMargin, r.grace_s);
  directive(fmt::format("--signal=USR1@{}", r.grace_s + kEndMargin));
  if (r.elastic()) {
    out +=
        "# A lost host does not end the run. If Slurm ends the job for another one, it starts again later. A host that comes later has a\n";
    const auto ranks = r.num_ranks ? fmt::format(" --nproc {}", *r.num_ranks) : "";
    out += fmt::format("# job of its own: srun --nodes=1 {} run --join --max {}{} --run-folder shoal-run/JOB-0\n", shell_word(r.shoal),
                       *r.max, ranks);
    directive("--no-kill");
    directive("--requeue");
    directive("--open-mode=append");
  }
  if (!r.variables.empty()) out += "\n";
  for (const auto& v : r.variables) out += fmt::format("export {}={}\n", v.name, shell_word(v.value));
  out += "\n# One task per host: `shoal run` starts the ranks, binds no CPU, and ends on all hosts with the script's exit code.\n";
  std::string srun = "srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0";
  if (r.elastic()) srun += " --no-kill";
  if (r.cpus > 0) srun += fmt::format(" --cpus-per-task={}", r.cpus);  // Slurm 22.05 and later do not take this number from the job
  out += fmt::format("exec {} \\\n  {} run {}\n", srun, shell_word(r.shoal), shell_words(run_words(r)));
  return out;
}

}  // namespace shoal::scheduler::cli
