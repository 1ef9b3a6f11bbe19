// doctor: checks this machine and prints a fix for each finding.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "runtime/device/device.h"
#include "runtime/device/kernels/device_kernels.h"
#include "runtime/shm/memory.h"
#include "runtime/transport/nccl/api/nccl_api.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/device_checks.h"
#include "scheduler/cli/verbs/joining.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/roles/head_report.h"
#include "scheduler/roles/roles.h"

namespace shoal::scheduler::cli {

using actors::SessionFolder;
using nlohmann::json;

namespace {

// The output of a short program; "" on failure.
std::string output_of(const std::string& command) {
  std::string out;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 512> text;
  while (std::fgets(text.data(), text.size(), pipe) != nullptr) out += text.data();
  const bool ok = pclose(pipe) == 0;
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return ok ? out : "";
}

Check kernel() {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (fd >= 0) close(fd);
  return fd >= 0 ? Check{"kernel", '+', "has pidfd", ""} : Check{"kernel", 'x', "has no pidfd_open", "Linux 5.3 or later"};
}

Check shared_memory() {
  const auto memory = runtime::make_memory("doctor", 1 << 20);
  return memory ? Check{"shared memory", '+', "memfd works", ""}
                : Check{"shared memory", 'x', memory.error().message(), "allow memfd_create (seccomp?)"};
}

Check descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = fmt::format("{} open files per process", limit.rlim_cur);
  return limit.rlim_cur >= 1024 ? Check{"descriptors", '+', found, ""} : Check{"descriptors", '!', found, "ulimit -n 65536"};
}

Check resources() { return {"resources", '+', detect_resources().to_string(), ""}; }

Check sessions(const std::string& root) {
  const auto running = SessionFolder::running(root);
  return {"sessions", '+', fmt::format("{} running under {}", running.size(), root), ""};
}

// Heads of this host that do not start, and stored rows that they could not use.
Check stored_state(const std::string& root) {
  std::string found, fix;
  for (const auto& session : SessionFolder::running(root)) {
    if (const auto failure = failed_head_start(session.path())) {
      return {"stored state", 'x', fmt::format("the head of {} does not start: {}", session.name(), failure->message()),
              failure->hint().empty() ? "see " + session.logs() : failure->hint()};
    }
    const std::size_t rows = num_set_aside(session.path());
    if (rows == 0) continue;
    found += fmt::format("{}{}: {} rows could not be used", found.empty() ? "" : "; ", session.name(), rows);
    fix = "what needed them has ended; `shoal status` and the head's log name them, their bytes are in " + set_aside_folder(session.path());
  }
  return found.empty() ? Check{"stored state", '+', "every head of this host could use its rows", ""}
                       : Check{"stored state", '!', found, fix};
}

Check python(const std::string& interpreter) {
  const std::string quoted = "'" + interpreter + "' -c ";
  const std::string version = output_of(quoted + "'import sys; print(sys.version.split()[0])' 2>/dev/null");
  if (version.empty()) return {"python", 'x', interpreter + " does not run", "install Python 3.10 or later, or name one with SHOAL_PYTHON"};
  const std::string shoal = output_of(quoted + "'import shoal; print(shoal.__version__)' 2>/dev/null");
  if (shoal.empty())
    return {"python", 'x', interpreter + " " + version + " cannot import shoal", "pip install shoal into that environment"};
  return {"python", '+', interpreter + " " + version + ", shoal " + shoal, ""};
}

Check torch(const std::string& interpreter) {
  const std::string found = output_of("'" + interpreter + "' -c 'import importlib.metadata as m; print(m.version(\"torch\"))' 2>/dev/null");
  return found.empty() ? Check{"torch", '!', "not installed: actors work, training does not", "pip install torch"}
                       : Check{"torch", '+', found, ""};
}

// Workers are forked from an interpreter that has imported torch, unless one of its imports starts CUDA.
Check forks(const std::string& interpreter) {
  const json found = json::parse(output_of("'" + interpreter + "' -m shoal._zygote check 2>/dev/null | tail -n 1"), nullptr, false);
  if (!found.is_object())
    return {"forks", '!', "not known, because the interpreter cannot import shoal and torch", "see python and torch above"};
  const auto started = found.value("cuda", "");
  if (started.empty()) return {"forks", '+', "workers are forked: no import of the interpreter starts CUDA", ""};
  return {"forks", '!', "each worker starts a fresh interpreter, which takes seconds: " + started + " starts CUDA's driver (cuInit)",
          "move what uses the GPU (torch.cuda, numba.cuda, cupy) from that import into a function"};
}

// The UCX that ranks load in this interpreter.
Check ucx(const std::string& interpreter) {
  const std::string program = "'" + interpreter + "' -c 'from shoal._core.ucx import report; print(report())' 2>/dev/null";
  const json found = json::parse(output_of(program), nullptr, false);
  if (!found.is_object()) return {"ucx", '!', "not known, because the interpreter cannot import shoal", "see python above"};
  const bool devices = found.value("devices", false);
  const std::string fix = std::string(devices ? "" : "nothing on Ethernet; for InfiniBand or RoCE, ") +
                          "install the system's UCX with its drivers (Debian: libucx0, ibverbs-providers)";
  if (found.contains("error")) return {"ucx", devices ? '!' : '+', "none: ranks on other hosts are reached by TCP", devices ? fix : ""};
  const std::string library = fmt::format("{}, version {}: {}", found.value("path", ""), found.value("version", ""),
                                          fmt::join(found.value("transports", std::vector<std::string>()), ", "));
  if (found.value("rdma", false)) return {"ucx", '+', library, ""};
  return {"ucx", '!', library + "; no RDMA in this UCX, so that ranks on other hosts are reached by TCP", fix};
}

// The networks of this host's clusters over several hosts.
Check data_network(const Common& common) {
  std::string found;
  for (const auto& session : SessionFolder::running(common.target.root)) {
    const auto credentials = session.credentials();
    if (!credentials || credentials->host.empty()) continue;
    found += (found.empty() ? "" : "; ") + session.name() + ": " + describe_network(*credentials);
    if (!credentials->data_tls) found += " (TCP, or UCX where every host has RDMA)";
  }
  if (found.empty()) found = "no cluster over several hosts runs here";
  for (const char* name : {"SHOAL_TRANSPORT", "SHOAL_INTERFACE"}) {
    if (const auto value = common.environment.get(name); !value.empty())
      found += fmt::format("; programs from here have {}={}", name, value);
  }
  return {"data network", '+', found, ""};
}

Check transports() {
  return {"transports", '+',
          "shared memory on one host, TCP, TLS or UCX between hosts, NCCL on CUDA meshes (tried on one GPU, not on several)", ""};
}

// Names what no GPU has run yet, so that a user does not take it for tried.
constexpr const char* kUnverified =
    "Shoal's own kernels, NCCL communicators, copies between processes and device memory: unverified on hardware";

Check devices() {
  const auto cuda = runtime::CudaApi::load();
  if (!cuda) return {"devices", '+', fmt::format("no CUDA driver: training runs on the CPU; {}", kUnverified), ""};
  const auto count = runtime::Device::count(**cuda);
  if (!count) return {"devices", '!', count.error().message(), "nvidia-smi shows the driver and its devices"};
  int version = 0;
  (void)(*cuda)->driver_version(&version);
  const auto nccl = runtime::NcclApi::load();
  std::string lacks;
  for (const auto feature :
       {runtime::NcclFeature::kSplit, runtime::NcclFeature::kShrink, runtime::NcclFeature::kWindows, runtime::NcclFeature::kZeroCtas}) {
    if (!nccl) break;
    if (const auto has = (*nccl)->require(feature); !has) lacks += "; " + has.error().message();
  }
  const bool kernels = runtime::DeviceKernels::embedded() != nullptr;
  const std::string found = fmt::format("{} CUDA devices, driver for CUDA {}.{}, {}, {}; {}{}", *count, version / 1000, version % 1000 / 10,
                                        nccl ? "NCCL " + runtime::nccl_version_text((*nccl)->version) : "no NCCL",
                                        kernels ? "kernels in this build" : "no kernels in this build", kUnverified, lacks);
  if (!nccl) return {"devices", '!', found, nccl.error().hint()};
  if (!kernels) return {"devices", '!', found, "build with CUDA 13's nvcc: pip install -r requirements-cuda.txt, then ./dev build"};
  return {"devices", '+', found, ""};
}

// A line per GPU of this machine, also if CUDA or torch cannot use it.
std::vector<Check> gpus(const Common& common) {
  const auto nvml = runtime::NvmlApi::load();
  const bool any = detect_resources().units("GPU") > 0;
  if (!nvml) return any ? std::vector{Check{"gpus", '!', nvml.error().message(), nvml.error().hint()}} : std::vector<Check>();
  const auto devices = runtime::read_devices(**nvml);
  if (!devices) return {{"gpus", '!', devices.error().message(), "nvidia-smi shows the driver and its devices"}};
  return device_checks(*devices, common.environment.get("CUDA_VISIBLE_DEVICES"), find_device_user);
}

int doctor(const Common& common) {
  std::vector<Check> checks = {kernel(),
                               shared_memory(),
                               descriptors(),
                               resources(),
                               sessions(common.target.root),
                               stored_state(common.target.root),
                               python(common.python),
                               torch(common.python),
                               transports(),
                               ucx(common.python),
                               data_network(common),
                               devices()};
  if (runtime::CudaApi::load()) checks.push_back(forks(common.python));  // slow, as it imports torch
  for (auto& gpu : gpus(common)) checks.push_back(std::move(gpu));
  bool broken = false;
  json rows = json::array();
  for (const auto& c : checks) {
    broken |= c.verdict == 'x';
    rows.push_back({{"name", c.name},
                    {"verdict", c.verdict == '+'   ? "ok"
                                : c.verdict == '!' ? "warning"
                                                   : "broken"},
                    {"found", c.found},
                    {"fix", c.fix}});
    if (!common.json) {
      print(stdout, "{} {:<14} {}\n", c.verdict == '+' ? "✓" : c.verdict == '!' ? "!" : "✗", c.name, c.found);
      if (!c.fix.empty()) print(stdout, "                 fix: {}\n", c.fix);
    }
  }
  if (common.json) print_json({{"schema", "shoal.doctor/1"}, {"ok", !broken}, {"checks", rows}});
  return broken ? kFailed : kOk;
}

}  // namespace

void add_doctor(CommandLine& line) {
  line.on_run(line.add_verb("doctor", "List what this machine lacks for Shoal, and how to mend it"), doctor);
}

}  // namespace shoal::scheduler::cli
