#include "scheduler/cli/launch/job_set.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "runtime/core/utf8.h"

namespace shoal::scheduler::cli {

namespace {

constexpr const char* kContainer = "shoal";
constexpr std::uint32_t kDoNotRepeat = 93;         // run_host.h: kDoNotRetry
constexpr std::uint32_t kAlwaysRepeat = 1000;      // a limit that pods do not reach, since the JobSet ends them before
constexpr std::uint32_t kRepeatWithoutLeader = 6;  // without a leader nothing but this limit ends the repetition

// Lines of YAML, in their order. `depth`: in levels of two columns.
class Yaml {
 public:
  void line(int depth, const std::string& text) { out_ += std::string(2 * depth, ' ') + text + "\n"; }
  std::string text() && { return std::move(out_); }

 private:
  std::string out_;
};

class Objects {
 public:
  explicit Objects(const LaunchRequest& request) : r_(request) {}

  std::string make() && {
    add_head();
    add_job_set();
    if (has_further() && !r_.queue.empty()) add_further_job();
    return std::move(yaml_).text();
  }

 private:
  bool has_further() const { return r_.elastic() && *r_.max > *r_.min; }

  void add_head() {
    const std::string space = r_.space.empty() ? "" : " --namespace=" + r_.space;
    yaml_.line(0, "# The pods meet by a secret, made once:");
    yaml_.line(0,
               fmt::format("#   openssl rand -hex 32 | kubectl create secret generic {}{} --from-file=token=/dev/stdin", r_.secret, space));
  }

  void add_metadata(const std::string& name) {
    yaml_.line(0, "metadata:");
    yaml_.line(1, "name: " + yaml_text(name));
    if (!r_.space.empty()) yaml_.line(1, "namespace: " + yaml_text(r_.space));
    if (r_.queue.empty()) return;
    yaml_.line(1, "labels:");
    yaml_.line(2, "kueue.x-k8s.io/queue-name: " + yaml_text(r_.queue));
  }

  void add_job_set() {
    yaml_.line(0, "apiVersion: jobset.x-k8s.io/v1alpha2");
    yaml_.line(0, "kind: JobSet");
    add_metadata(r_.name);
    yaml_.line(0, "spec:");
    yaml_.line(1, "network:  # a headless service of the JobSet's name, by which pods find the first one before they are ready");
    yaml_.line(2, "enableDNSHostnames: true");
    yaml_.line(2, "publishNotReadyAddresses: true");
    if (r_.elastic()) {
      yaml_.line(1, "successPolicy:  # other pods may still wait when the run ends");
      yaml_.line(2, "operator: All");
      yaml_.line(2, "targetReplicatedJobs: [leader]");
    }
    yaml_.line(1, "failurePolicy:");
    yaml_.line(2, fmt::format("maxRestarts: {}", r_.num_restarts));
    yaml_.line(2, "rules:");
    yaml_.line(2, "- name: doNotRepeat");
    yaml_.line(3, "action: FailJobSet");
    yaml_.line(3, "onJobFailureReasons: [PodFailurePolicy, DeadlineExceeded]");
    yaml_.line(1, "replicatedJobs:");
    if (!r_.elastic()) {
      add_replicated("workers", "", {0, r_.first_hosts(), 0, true});
      return;
    }
    add_replicated("leader", "  # its loss ends the run, which the JobSet starts again", {0, 1, 0, true});
    if (*r_.min > 1) add_replicated("workers", "  # with these the run begins", {1, *r_.min - 1, kAlwaysRepeat, false});
    if (has_further() && r_.queue.empty())
      add_replicated("further", "  # these come and go", {*r_.min, *r_.max - *r_.min, kAlwaysRepeat, false});
  }

  // Pods with consecutive host numbers.
  struct Pods {
    std::uint32_t first = 0, count = 1;
    std::uint32_t num_failures = 0;
    bool needed = true;  // the loss of one fails the Job
  };

  void add_replicated(const std::string& name, const std::string& remark, const Pods& pods) {
    yaml_.line(1, "- name: " + name + remark);
    yaml_.line(2, "replicas: 1");
    yaml_.line(2, "template:");
    yaml_.line(3, "spec:");
    add_job(4, pods);
  }

  // Adds the Job of the further hosts, of whose pods Kueue may admit only some.
  void add_further_job() {
    yaml_.line(0, "---");
    yaml_.line(0, "# Hosts that come and go: Kueue admits from one of them to all, after and apart from the first ones.");
    yaml_.line(0, "apiVersion: batch/v1");
    yaml_.line(0, "kind: Job");
    add_metadata(r_.name + "-further");
    if (*r_.max - *r_.min > 1) {  // Kueue refuses a minimum that is not below the number
      yaml_.line(1, "annotations:");
      yaml_.line(2, "kueue.x-k8s.io/job-min-parallelism: \"1\"");
      yaml_.line(2, "kueue.x-k8s.io/job-completions-equal-parallelism: \"true\"");
    }
    yaml_.line(0, "spec:");
    yaml_.line(1, "suspend: true");
    add_job(1, {*r_.min, *r_.max - *r_.min, kRepeatWithoutLeader, false});
  }

  void add_job(int at, const Pods& pods) {
    yaml_.line(at, "completionMode: Indexed");
    yaml_.line(at, fmt::format("completions: {}", pods.count));
    yaml_.line(at, fmt::format("parallelism: {}", pods.count));
    yaml_.line(at, fmt::format("backoffLimit: {}", pods.num_failures));
    if (r_.time.count() > 0) yaml_.line(at, fmt::format("activeDeadlineSeconds: {}", r_.time.count()));
    yaml_.line(at, "podFailurePolicy:");
    yaml_.line(at + 1, "rules:");
    yaml_.line(at + 1, "- action: FailJob");
    yaml_.line(at + 2, "onExitCodes:");
    yaml_.line(at + 3, fmt::format("containerName: {}", kContainer));
    yaml_.line(at + 3, "operator: In");
    yaml_.line(at + 3, fmt::format("values: [{}]", kDoNotRepeat));
    if (!pods.needed) {
      yaml_.line(at + 1, "- action: Ignore");
      yaml_.line(at + 2, "onPodConditions:");
      yaml_.line(at + 2, "- type: DisruptionTarget");
      yaml_.line(at + 3, "status: \"True\"");
    }
    yaml_.line(at, "template:");
    yaml_.line(at + 1, "spec:");
    add_pod(at + 2, pods.first);
  }

  void add_pod(int at, std::uint32_t first) {
    yaml_.line(at, "restartPolicy: Never");
    yaml_.line(at, fmt::format("terminationGracePeriodSeconds: {}", r_.grace_s + kEndMargin));
    yaml_.line(at, "automountServiceAccountToken: false");
    yaml_.line(at, "containers:");
    yaml_.line(at, fmt::format("- name: {}", kContainer));
    yaml_.line(at + 1, "image: " + yaml_text(r_.image));
    yaml_.line(at + 1, "command:");
    add_command(at + 1, first);
    yaml_.line(at + 1, "args:");
    words(at + 1, {"--master-addr", fmt::format("{0}-{1}-0-0.{0}", r_.name, r_.elastic() ? "leader" : "workers"), "--run-folder",
                   "/tmp/shoal-run"});
    if (!r_.elastic()) words(at + 1, {"--nnodes", std::to_string(r_.first_hosts())});
    words(at + 1, run_words(r_));
    yaml_.line(at + 1, "env:");
    variable(at + 1, "SHOAL_TOKEN_FILE", "/var/run/shoal/token");
    variable(at + 1, "TORCHELASTIC_ERROR_FILE", "/dev/termination-log");
    for (const auto& v : r_.variables) variable(at + 1, v.name, yaml_text(pod_word(v.value)));
    add_resources(at + 1);
    yaml_.line(at + 1, "volumeMounts:");
    mount(at + 1, "token", "/var/run/shoal", true);
    mount(at + 1, "shared-memory", "/dev/shm", false);
    for (std::size_t i = 0; i < r_.volumes.size(); ++i) mount(at + 1, fmt::format("volume-{}", i), r_.volumes[i].path, false);
    yaml_.line(at, "volumes:");
    yaml_.line(at, "- name: token");
    yaml_.line(at + 1, "secret:");
    yaml_.line(at + 2, "secretName: " + yaml_text(r_.secret));
    yaml_.line(at, "- name: shared-memory  # ranks of a pod exchange through it; without this it has 64 MiB");
    yaml_.line(at + 1, "emptyDir:");
    yaml_.line(at + 2, "medium: Memory");
    for (std::size_t i = 0; i < r_.volumes.size(); ++i) {
      yaml_.line(at, fmt::format("- name: volume-{}", i));
      yaml_.line(at + 1, "persistentVolumeClaim:");
      yaml_.line(at + 2, "claimName: " + yaml_text(r_.volumes[i].claim));
    }
  }

  // A shell starts `shoal run`, for two reasons. A pod that leaves the run on SIGTERM must not end with 0, which a Job takes for done. And
  // pods of each Job count from 0, so that the Job's variable would contradict a later pod's number in the run.
  void add_command(int at, std::uint32_t first) {
    words(at, {"sh", "-c"});
    yaml_.line(at, "- |");
    const auto number = first == 0 ? "\"$JOB_COMPLETION_INDEX\"" : fmt::format("$((JOB_COMPLETION_INDEX + {}))", first);
    const std::vector<std::string> lines = {
        "# A pod that Kubernetes ends has to start again elsewhere: it ends with 143, even if it has saved and left in order.",
        "trap 'left=143; kill -TERM $pid' TERM",
        fmt::format("env -u JOB_COMPLETION_INDEX {} run --node-rank {} \"$@\" &", shell_word(r_.shoal), number),
        "pid=$!",
        "wait $pid; code=$?",
        "while kill -0 $pid 2>/dev/null; do wait $pid; done",
        "if [ -n \"$left\" ]; then code=$left; fi",
        "exit $code",
    };
    for (const auto& text : lines) yaml_.line(at + 1, pod_word(text));
    words(at, {"sh"});  // $0 of the shell's command
  }

  void add_resources(int at) {
    if (r_.gpus == 0 && r_.cpus == 0 && r_.memory.empty()) return;
    yaml_.line(at, "resources:");
    if (r_.cpus > 0 || !r_.memory.empty()) yaml_.line(at + 1, "requests:");
    if (r_.cpus > 0) yaml_.line(at + 2, fmt::format("cpu: {}", r_.cpus));
    if (!r_.memory.empty()) yaml_.line(at + 2, "memory: " + yaml_text(r_.memory));
    if (r_.gpus > 0 || !r_.memory.empty()) yaml_.line(at + 1, "limits:");
    if (r_.gpus > 0) yaml_.line(at + 2, fmt::format("nvidia.com/gpu: {}", r_.gpus));
    if (!r_.memory.empty()) yaml_.line(at + 2, "memory: " + yaml_text(r_.memory));
  }

  void word(int at, const std::string& text) { yaml_.line(at, "- " + yaml_text(pod_word(text))); }
  void words(int at, const std::vector<std::string>& texts) {
    for (const auto& text : texts) word(at, text);
  }
  void variable(int at, const std::string& name, const std::string& value) {
    yaml_.line(at, "- name: " + name);
    yaml_.line(at + 1, "value: " + value);
  }
  void mount(int at, const std::string& name, const std::string& path, bool read_only) {
    yaml_.line(at, "- name: " + name);
    yaml_.line(at + 1, "mountPath: " + yaml_text(path));
    if (read_only) yaml_.line(at + 1, "readOnly: true");
  }

  const LaunchRequest& r_;
  Yaml yaml_;
};

// A character that YAML 1.1 or 1.2 does not take as it is, or takes for the end of a line.
bool has_to_be_escaped(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff;
}

std::uint32_t code_point(std::string_view c) {
  std::uint32_t out = static_cast<unsigned char>(c[0]);
  if (c.size() == 1) return out;
  out &= 0xffu >> (c.size() + 1);
  for (const char next : c.substr(1)) out = out << 6 | (static_cast<unsigned char>(next) & 0x3f);
  return out;
}

}  // namespace

std::string yaml_text(const std::string& text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const auto length = std::max<std::size_t>(1, utf8_character(std::string_view(text).substr(at)));
    const auto character = std::string_view(text).substr(at, length);
    const auto c = code_point(character);
    if (c == '"' || c == '\\') out += '\\';
    if (has_to_be_escaped(c)) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += character;
    }
    at += length;
  }
  return out + "\"";
}

std::string pod_word(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '$' ? "$$" : std::string(1, c);
  return out;
}

std::string job_set(const LaunchRequest& request) { return Objects(request).make(); }

}  // namespace shoal::scheduler::cli
