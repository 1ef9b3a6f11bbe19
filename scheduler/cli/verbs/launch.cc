// launch: the file by which a scheduler starts `shoal run` on all hosts. Slurm's and ssh's are passed on, too.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "runtime/core/fd.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/launch/batch_script.h"
#include "scheduler/cli/launch/job_set.h"
#include "scheduler/cli/launch/request.h"
#include "scheduler/cli/launch/ssh_script.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

struct LaunchVerb {
  LaunchTarget launcher;
  const char* name;
  const char* about;
  const char* submit;  // the command that takes the file
  const char* script;  // bash runs it to pass the file on; nullptr: the user does
};

// $1: the file with the batch script, $2: the run's name. Shows the output until the job ends, whose exit code it takes.
constexpr const char* kSubmitToSlurm = R"BASH(set -euo pipefail
command -v sbatch >/dev/null || { echo 'shoal: there is no sbatch on PATH; --dry-run prints the file' >&2; exit 1; }
job=$(sbatch --parsable <"$1")
job=${job%%;*}
log=$2-$job.out
echo "shoal: job $job writes $log; Ctrl-C leaves it alone, and scancel $job ends it" >&2
state() { scontrol --oneliner show job "$job" | sed -n "s/.* $1=\([A-Z0-9_]*\).*/\1/p"; }
goes_on() {
  case $(state JobState) in
    PENDING|CONFIGURING|RUNNING|SUSPENDED|COMPLETING|REQUEUE*|RESIZING|STOPPED|SIGNALING) ;;
    *) return 1 ;;
  esac
}
reported=
report() {  # the job's state and Slurm's reason, when they change
  local now
  now=$(squeue --noheader --jobs="$job" --format='%T (%r)' 2>/dev/null) || return 0
  now=${now% (None)}
  case $now in ''|"$reported"|COMPLETING*) return ;; esac
  reported=$now
  echo "shoal: job $job: $now" >&2
}
while ! [ -e "$log" ] && goes_on; do report; sleep 2; done
[ -e "$log" ] || { echo "shoal: job $job ended without output" >&2; exit 1; }
case $reported in ''|RUNNING*) ;; *) reported=RUNNING; echo "shoal: job $job has started" >&2 ;; esac
tail -n +1 -f "$log" &
trap "kill $!" EXIT
while goes_on; do report; sleep 5; done
sleep 2  # tail looks once a second
ended=$(state JobState) code=$(state ExitCode)
[ "$ended" = COMPLETED ] || echo "shoal: job $job has ended: $ended" >&2
[ "$ended" = COMPLETED ] || [ "${code:-0}" != 0 ] || code=1  # a cancelled job has code 0
exit "$code"
)BASH";

// $1: the file with the script.
constexpr const char* kSubmitToSsh = R"BASH(
command -v ssh >/dev/null || { echo 'shoal: there is no ssh on PATH; --dry-run prints the file' >&2; exit 1; }
exec bash "$1"
)BASH";

constexpr LaunchVerb kLaunchers[] = {
    {LaunchTarget::kSlurm, "slurm", "An sbatch script with one task per host", "sbatch FILE", kSubmitToSlurm},
    {LaunchTarget::kJobSet, "jobset", "A JobSet of Kubernetes", "kubectl create -f FILE", nullptr},
    {LaunchTarget::kKueue, "kueue", "A JobSet of Kubernetes with the label of a queue of Kueue", "kubectl create -f FILE", nullptr},
    {LaunchTarget::kSsh, "ssh", "A script that starts the run on named hosts through ssh", "bash FILE", kSubmitToSsh},
};

// Options as they are given.
struct LaunchTexts {
  LaunchRequest request;
  std::string hosts, time;
  std::vector<std::string> volumes, variables;
  bool dry_run = false;
};

// The variables of --env, and the caller's settings of Shoal. Slurm passes the caller's whole environment on.
Result<std::vector<LaunchVariable>> requested_variables(const Environment& environment, const std::vector<std::string>& texts, bool slurm) {
  std::vector<LaunchVariable> out;
  for (const auto& text : texts) {
    SHOAL_TRY(auto variable, read_variable(text, [&](const std::string& name) { return environment.find(name); }));
    out.push_back(std::move(variable));
  }
  for (const auto& name : kTrainingSettings) {
    const auto value = environment.get(name);
    const bool given = std::any_of(out.begin(), out.end(), [&](const LaunchVariable& v) { return v.name == name; });
    if (!slurm && !given && !value.empty()) out.push_back({name, value});
  }
  // The hosts would refuse a wrong value, some of them late. sbatch passes those of the caller on.
  SHOAL_OK(check_switches(environment));
  std::vector<std::string> entries;
  for (const auto& v : out) entries.push_back(v.name + "=" + v.value);
  SHOAL_OK(check_switches(Environment(std::move(entries))));
  return out;
}

Result<LaunchRequest> requested(const Environment& environment, const LaunchTexts& given, LaunchTarget launcher) {
  LaunchRequest request = given.request;
  SHOAL_TRY(request.variables, requested_variables(environment, given.variables, launcher == LaunchTarget::kSlurm));
  if (!given.hosts.empty()) SHOAL_OK(read_hosts(given.hosts, request));
  if (!given.time.empty()) {
    SHOAL_TRY(request.time, read_limit(given.time));
  }
  for (const auto& text : given.volumes) {
    SHOAL_TRY(auto volume, read_volume(text));
    request.volumes.push_back(std::move(volume));
  }
  return complete(std::move(request), launcher);
}

std::string launch_file(const LaunchRequest& request, LaunchTarget launcher) {
  switch (launcher) {
    case LaunchTarget::kSlurm:
      return batch_script(request);
    case LaunchTarget::kJobSet:
    case LaunchTarget::kKueue:
      return job_set(request);
    case LaunchTarget::kSsh:
      return ssh_script(request);
  }
  return "";
}

// The flag MFD_NOEXEC_SEAL, which glibc 2.35 does not name. Hosts with vm.memfd_noexec=2 may demand it, and Linux before 6.3 refuses it.
constexpr unsigned kNoExecution = 8;

// A file in memory. Every user of this host can read the words of a command, and the text has the values of --env.
Result<Fd> memory_file(std::string_view text) {
  Fd file(memfd_create("shoal-launch", kNoExecution));  // the shell inherits it
  if (!file && errno == EINVAL) file = Fd(memfd_create("shoal-launch", 0));
  if (!file) return fail(from_errno(errno, "the file of the launch"));
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t size = write(file.get(), text.data() + at, text.size() - at);
    if (size < 0) return fail(from_errno(errno, "the file of the launch"));
    at += static_cast<std::size_t>(size);
  }
  return file;
}

// Becomes the shell that passes the file on. Ctrl-C reaches that shell, and not the run.
int submit_launch(const Common& common, const LaunchVerb& verb, const LaunchRequest& request, const std::string& text) {
  const auto file = memory_file(text);
  if (!file) {
    print_error(file.error(), common.json);
    return kFailed;
  }
  std::vector<std::string> words = {"bash", "-c", verb.script, "shoal", fmt::format("/proc/self/fd/{}", file->get()), request.name};
  std::vector<std::string> env = common.environment.entries();
  std::vector<char*> argv, variables;
  for (auto& word : words) argv.push_back(word.data());
  for (auto& entry : env) variables.push_back(entry.data());
  argv.push_back(nullptr);
  variables.push_back(nullptr);
  execvpe(argv[0], argv.data(), variables.data());
  print_error(from_errno(errno, "bash"), common.json);
  return kFailed;
}

int print_launch(const Common& common, const LaunchVerb& verb, const LaunchTexts& given) {
  const auto request = requested(common.environment, given, verb.launcher);
  if (!request) {
    print_error(request.error(), common.json);
    return kUsage;
  }
  const auto text = launch_file(*request, verb.launcher);
  if (verb.script != nullptr && !given.dry_run && !common.json) return submit_launch(common, verb, *request, text);
  if (common.json) {
    print_json({{"schema", "shoal.launch/1"}, {"launcher", verb.name}, {"name", request->name}, {"text", text}, {"submit", verb.submit}});
  } else {
    print_output(stdout, text);
  }
  if (given.dry_run || common.json) return kOk;
  print(stderr, "shoal: nothing is submitted: write this to a file, and pass it on by `{}`\n", verb.submit);
  return kOk;
}

void add_launcher(CommandLine& line, CLI::App* group, const LaunchVerb& launcher) {
  auto& given = line.own<LaunchTexts>();
  LaunchRequest& request = given.request;
  const bool pods = launcher.launcher == LaunchTarget::kJobSet || launcher.launcher == LaunchTarget::kKueue;
  const bool slurm = launcher.launcher == LaunchTarget::kSlurm;
  auto* verb = line.add_verb_without_cluster(launcher.name, launcher.about, group);
  line.takes_command(verb, CommandLine::Command::kProgramOrScript);
  verb->add_flag("--dry-run", given.dry_run, "Print the file, and submit nothing");
  verb->add_option("--name", request.name, "Name of the run (default: the script's)")->check(not_empty());
  verb->add_option("--hosts", given.hosts,
                   slurm  ? "Number of hosts, or their names: HOST,HOST (default: 1)"
                   : pods ? "Number of hosts (default: 1)"
                          : "Names of the hosts: HOST,HOST; the first one leads")
      ->check(not_empty());
  verb->add_option("--min", request.min, "An elastic run: hosts with which it begins")->check(positive());
  verb->add_option("--max", request.max, "An elastic run: hosts that it may have")->check(positive());
  verb->add_option("--nproc", request.num_ranks, "Ranks per host (default: as many as it has GPUs, or 1)")->check(positive());
  verb->add_flag("--driver", request.trainer, "Run the script once, on the first host: its Trainer starts the ranks");
  verb->add_option("--grace", request.grace_s, "Seconds from a signal to the end of a host's part; its ranks have all but the last six")
      ->capture_default_str();
  verb->add_option("--shoal", request.shoal, "The command on the hosts, as a name or a path")->capture_default_str()->check(not_empty());
  verb->add_option("--env", given.variables,
                   slurm ? "NAME=VALUE, or NAME for this command's own value: a variable of the run, beside the environment that sbatch "
                           "passes on; repeatable"
                         : "NAME=VALUE, or NAME for this command's own value: a variable of the run, beside Shoal's settings such as "
                           "SHOAL_FSDP; repeatable")
      ->allow_extra_args(false);
  if (launcher.launcher == LaunchTarget::kSsh) {
    verb->add_option("--folder", request.folder, "Folder of the hosts in which the script runs (default: the user's home)");
    verb->add_option("--port", request.port, "Port of the head on the first host (default: 7460)")->check(CLI::Range(1, 65535));
  }
  if (slurm || pods) {
    verb->add_option("--gpus-per-host", request.gpus, "GPUs per host")->check(positive());
    verb->add_option("--cpus-per-host", request.cpus, "CPUs per host")->check(positive());
    verb->add_option("--time", given.time, "Limit of the run: 45m, 4h, 2d, 12:00:00 or 1-12:00:00")->check(not_empty());
  }
  if (slurm) {
    verb->add_option("--partition", request.partition, "Partition of Slurm")->check(not_empty());
    verb->add_option("--account", request.account, "Account of Slurm")->check(not_empty());
  }
  if (pods) {
    verb->add_option("--image", request.image, "Image of the pods, with Shoal and the script")->check(not_empty());
    verb->add_option("--memory-per-host", request.memory, "Memory per host, such as 64Gi")->check(not_empty());
    verb->add_option("--namespace", request.space, "Namespace of Kubernetes")->check(not_empty());
    verb->add_option("--secret", request.secret,
                     "Secret by which the pods meet; its entry token has 64 hexadecimal digits (default: NAME-shoal)")
        ->check(not_empty());
    verb->add_option("--volume", given.volumes, "CLAIM:PATH: a PersistentVolumeClaim, and where pods see it; repeatable")
        ->allow_extra_args(false);
    verb->add_option("--max-restarts", request.num_restarts, "How often a run that fails starts again")->capture_default_str();
  }
  if (launcher.launcher == LaunchTarget::kKueue)
    verb->add_option("--queue", request.queue, "Queue of Kueue in that namespace")->check(not_empty());
  line.on_run(verb, [&line, &given, &launcher](const Common& common) {
    given.request.words = line.command();
    given.request.is_script = line.command_is_script();
    return print_launch(common, launcher, given);
  });
}

}  // namespace

void add_launch(CommandLine& line) {
  auto* group = line.add_group(
      "launch", "Start `shoal run` on all hosts by Slurm or ssh, or print the file by which a scheduler starts it (docs/launch.md)");
  for (const auto& launcher : kLaunchers) add_launcher(line, group, launcher);
}

}  // namespace shoal::scheduler::cli
