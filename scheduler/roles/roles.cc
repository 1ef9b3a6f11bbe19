#include "scheduler/roles/roles.h"

#include <sys/prctl.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/net/interfaces.h"
#include "runtime/process/cpu_limit.h"
#include "runtime/process/memory_limit.h"
#include "runtime/shm/spill_file.h"
#include "scheduler/node/metrics/machine.h"
#include "scheduler/node/node.h"
#include "scheduler/node/processes/posix_launcher.h"
#include "scheduler/roles/head_keeper.h"
#include "scheduler/roles/role_process.h"

namespace shoal::scheduler {

using actors::SessionInfo;
using runtime::Endpoint;

namespace {

// This host's GPU type as the driver reports it; "" without a GPU.
std::string detect_accelerator() {
  std::error_code ignored;
  for (const auto& gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::ifstream information(gpu.path() / "information");
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with("Model:")) return accelerator_type(line.substr(6));
    }
  }
  return "";
}

using Labels = std::map<std::string, std::string>;
constexpr const char* kObjectStoreMemory = "object_store_memory";  // Ray's name, also among the resources

// Ray's default: 30% of the memory.
std::uint64_t default_object_store() { return runtime::machine_memory().total / 10 * 3; }

std::string spill_folder(const std::string& reported, const std::string& session) {
  const std::array<std::string, 2> folders = {session, "/var/tmp"};
  return reported.empty() ? runtime::folder_on_disk(folders) : reported;
}

// Measures the machine in a side thread; requests that arrive meanwhile share the result.
class Measurement {
 public:
  explicit Measurement(runtime::Loop& loop) : side_(loop) {}
  void run(const std::string& folder, NodeReports::Measured measured) {
    waiting_.push_back(std::move(measured));
    if (waiting_.size() > 1) return;
    const auto seen = std::make_shared<Machine>();
    side_.run([seen, folder] { *seen = read_machine(folder); },
              [this, seen] {
                for (const auto& measured : std::exchange(waiting_, {})) measured(metrics_of(*seen));
              });
  }

 private:
  std::vector<NodeReports::Measured> waiting_;
  runtime::SideWork side_;
};

// Measures the memory of these processes in a side thread: it walks their page tables and waits for threads that change them.
void measure(runtime::SideWork& side, std::vector<pid_t> pids, MemoryMonitor::Options::Measured then) {
  const auto bytes = std::make_shared<std::vector<std::uint64_t>>();
  side.run(
      [bytes, pids = std::move(pids)] {
        for (const pid_t pid : pids) bytes->push_back(runtime::process_memory(pid));
      },
      [bytes, then = std::move(then)] { then(std::move(*bytes)); });
}

// Reads the states of these processes in a side thread: a thousand reads of /proc take tens of milliseconds.
void find_stopped(runtime::SideWork& side, std::vector<pid_t> pids, Workers::Options::FoundStopped then) {
  const auto stopped = std::make_shared<std::set<pid_t>>();
  side.run(
      [stopped, pids = std::move(pids)] {
        for (const pid_t pid : pids) {
          if (runtime::is_stopped(pid)) stopped->insert(pid);
        }
      },
      [stopped, then = std::move(then)] { then(*stopped); });
}

// The variables by which workers use the interface that `shoal start --interface` has chosen. Variables that this process has are kept.
Launcher::Env interface_variables(const actors::Credentials& credentials) {
  if (credentials.interface.empty()) return {};
  Launcher::Env out = {{"SHOAL_INTERFACE", credentials.interface}};
  const auto interface = runtime::find_interface(credentials.interface);
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    // NCCL takes a name for a prefix of names, unless it begins with '='.
    if (interface && std::getenv(name) == nullptr) out.emplace_back(name, (name[0] == 'N' ? "=" : "") + interface->name);
  }
  return out;
}

template <class Role>
Result<Node::Options> node_options(RoleProcess& process, const Role& role, std::vector<Endpoint> heads, bool beside_head) {
  const auto& [resources, labels, memory] = std::tie(role.resources, role.labels, role.memory);
  Node::Options o;
  o.resources = resources;
  const std::int64_t objects = resources.units(kObjectStoreMemory) / actors::Resources::kUnit;
  o.object_store_bytes = objects > 0 ? static_cast<std::uint64_t>(objects) : default_object_store();
  const std::int64_t gpus = resources.units("GPU") / actors::Resources::kUnit;
  SHOAL_TRY(o.workers.gpus, device_ids(gpus, std::getenv("CUDA_VISIBLE_DEVICES")));
  o.labels = labels;
  if (const auto type = gpus > 0 ? detect_accelerator() : ""; !type.empty()) {
    o.labels.try_emplace("shoal.io/accelerator-type", type);
    if (o.resources.units("accelerator_type:" + type) == 0) o.resources.set_units("accelerator_type:" + type, actors::Resources::kUnit);
  }
  o.pid = getpid();
  o.head.endpoints = std::move(heads);
  o.listen = process.credentials.endpoint("shoal-" + process.folder.name() + "-node-" + std::to_string(getpid()));
  if (!process.credentials.host.empty()) o.host = process.credentials.host;
  // Ray's names of resources by which programs place work on the node with an address.
  for (const std::string& name : {"node:" + o.host, std::string(beside_head ? actors::NodeRow::kBesideHead : "")}) {
    if (!name.empty() && o.resources.units(name) == 0) o.resources.set_units(name, actors::Resources::kUnit);
  }
  o.session = process.folder.path();
  o.memory.max_arenas = runtime::descriptor_limit() / 4;
  o.variables = interface_variables(process.credentials);
  o.objects.write_aside = [&writes = process.writes](auto work, auto then) { writes.run(std::move(work), std::move(then)); };
  o.logs.folder = process.folder.logs();
  o.workers.monitor = {
      .threshold = memory.threshold,
      .limit = memory.limit,
      .where = "node " + o.host,
      .machine = [] { return runtime::machine_memory(); },
      .measure = [side = std::make_shared<runtime::SideWork>(process.loop)](auto pids, auto then) { measure(*side, pids, then); },
      .kernel_kills = [] { return runtime::kernel_oom_kills(); }};
  o.workers.stopped.limit = role.stopped_limit;
  o.workers.find_stopped = [side = std::make_shared<runtime::SideWork>(process.loop)](auto pids, auto then) {
    find_stopped(*side, pids, then);
  };
  o.objects.parts.aside = [&side = process.side](auto work, auto then) { side.run(std::move(work), std::move(then)); };
  // A GPU driver may take long or hang: at most one measurement runs, in its own thread.
  o.measure = [measurement = std::make_shared<Measurement>(process.loop), folder = o.session](NodeReports::Measured measured) {
    measurement->run(folder, std::move(measured));
  };
  return o;
}

}  // namespace

actors::Resources detect_resources() {
  const auto memory = static_cast<double>(runtime::machine_memory().total);
  const auto gpus = static_cast<double>(count_devices("/dev", std::getenv("CUDA_VISIBLE_DEVICES")));
  return actors::Resources::from_amounts({{"CPU", runtime::usable_cpus()}, {"memory", memory}, {"GPU", gpus}})
      .value_or(actors::Resources());
}

int run_node(const NodeRole& role) {
  auto process = RoleProcess::make(role.session, "node");
  if (!process) return refuse_role(role.ready_fd, process.error());
  RoleProcess& w = **process;
  auto heads = runtime::parse_endpoints(role.head);
  if (!heads) return refuse_role(role.ready_fd, heads.error());
  bool over = false;
  auto launcher = make_posix_launcher(w.loop, *w.random, w.log, {role.python});
  std::unique_ptr<HeadKeeper> keeper;
  if (role.keeps_head) {
    auto keeping = HeadKeeper::make(w.loop, *w.clock, w.log, w.folder);
    if (!keeping) return refuse_role(role.ready_fd, keeping.error());
    keeper = *std::move(keeping);
  }
  auto opts = node_options(w, role, *std::move(heads), role.keeps_head);
  if (!opts) return refuse_role(role.ready_fd, opts.error());
  Node::Options& options = *opts;
  options.objects.spill_folder = spill_folder(role.spill_folder, w.folder.path());
  options.order = role.order;
  if (!role.keeps_head && role.head_absence_limit.count() > 0) options.head.absence.unreached = role.head_absence_limit;
  options.events.on_orphaned = [&](const std::string& why) {
    (void)actors::write_orphaned(w.folder, why);
  };  // best effort, since the reason is logged as well
  options.events.on_ending = [&] {
    if (keeper) keeper->stop();
  };
  options.events.on_end = [&](const std::string& why) {
    w.log->info("node ended: {}", why);
    over = true;
  };
  int ready_fd = role.ready_fd;
  Node* self = nullptr;
  // Ready means that the head has registered this node and can place work there.
  options.events.on_registered = [&] {
    report(std::exchange(ready_fd, -1), {{"node", self->endpoint().to_string()}, {"id", to_string(self->id())}});
  };
  {
    Node node(*w.clock, *w.random, w.network, *launcher, w.log, options);
    self = &node;
    if (const auto started = node.start(); !started) return refuse_role(role.ready_fd, started.error());
    w.on_signal([&] { node.end("a signal"); });
    run_until(w, over);
  }
  launcher.reset();
  drain(w);
  return 0;
}

int run_local(const LocalRole& role) {
  auto process = RoleProcess::make(role.session, "local");
  if (!process) return refuse_role(role.ready_fd, process.error());
  RoleProcess& w = **process;
  auto state = State::open(w, false);
  if (!state) return refuse_role(role.ready_fd, state.error());
  bool over = false;
  auto launcher = make_posix_launcher(w.loop, *w.random, w.log, {role.python});
  {
    auto head_opts = head_options(w);
    head_opts.listen = {local_head(w.folder)};
    Head head(*w.clock, *w.random, w.network, (*state)->store(), w.log, head_opts);
    if (const auto started = head.start(); !started) return refuse_role(role.ready_fd, started.error());
    SessionInfo info{"", head.endpoints()[0].to_string(), w.clock->unix_millis(), "", "", {}};
    std::unique_ptr<Http> http;
    if (role.http.on) {
      auto started = Http::start(w, role.http, head.endpoints()[0]);
      if (!started) return refuse_role(role.ready_fd, started.error());
      http = *std::move(started);
      info.http = http->address();
    }
    if (const auto written = w.folder.write_info(info); !written) return refuse_role(role.ready_fd, written.error());

    auto opts = node_options(w, role, {head.endpoints()[0]}, true);
    if (!opts) return refuse_role(role.ready_fd, opts.error());
    Node::Options& node_opts = *opts;
    node_opts.objects.spill_folder = spill_folder(role.spill_folder, w.folder.path());
    if (role.owner != 0) node_opts.owner = role.owner;
    node_opts.workers.stop_grace = std::chrono::milliseconds(500);
    node_opts.events.on_end = [&](const std::string& why) {
      w.log->info("local cluster ended: {}", why);
      over = true;
    };
    int ready_fd = role.ready_fd;
    Node* self = nullptr;
    node_opts.events.on_registered = [&] {
      report(std::exchange(ready_fd, -1),
             {{"session", w.folder.path()}, {"head_local", info.head_local}, {"node", self->endpoint().to_string()}});
    };
    Node node(*w.clock, *w.random, w.network, *launcher, w.log, node_opts);
    self = &node;
    if (const auto started = node.start(); !started) return refuse_role(role.ready_fd, started.error());
    w.on_signal([&] { node.end("a signal"); });
    run_until(w, over);
  }
  launcher.reset();
  drain(w);
  if (role.remove_folder) w.folder.remove();
  return 0;
}

}  // namespace shoal::scheduler
