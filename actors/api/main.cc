#include "actors/api/main.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>

#include "actors/api/build_id.h"
#include "actors/api/worker/worker.h"
#include "actors/session/folder/folder.h"
#include "actors/session/folder/role.h"
#include "actors/session/session.h"
#include "runtime/process/cpu_limit.h"
#include "runtime/process/memory_limit.h"
#include "runtime/process/process.h"

extern char** environ;

namespace shoal::actors::api {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds kEndOfCluster{3};  // after this time the local cluster is killed

// All environment variables that this program reads.
struct Environment {
  std::string address, home, binary;       // SHOAL_ADDRESS, SHOAL_HOME, SHOAL_BINARY
  std::string session, node, worker, job;  // set by a node for its processes
  std::string name_space;                  // SHOAL_NAMESPACE: the namespace of actors that a worker names or finds
  std::map<std::string, std::string> set;  // set by a worker's launch (kEnvNames)
  std::uint32_t restarts = 0;              // SHOAL_RESTARTS: how often this worker's actor was restarted
  std::string retry_delay_ms;              // SHOAL_TASK_RETRY_DELAY_MS
  bool keeps_spec = false;                 // SHOAL_SELF_MADE: the head keeps the creation spec of this worker's actor
  std::string run_folder;                  // SHOAL_RUN_FOLDER; empty where SHOAL_RECORD is off
  std::optional<std::string> build_id;     // SHOAL_BUILD_ID: the build that a worker of this binary must have
  bool from_node() const { return !node.empty() && !worker.empty(); }
  bool native_worker() const { return from_node() && build_id; }
};

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_off(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return word == "0" || word == "false" || word == "off" || word == "no";
}

Environment read_environment() {
  Environment e;
  e.address = env("SHOAL_ADDRESS");
  e.home = env("SHOAL_HOME");
  e.binary = env("SHOAL_BINARY");
  e.session = env("SHOAL_SESSION");
  e.node = env("SHOAL_NODE");
  e.worker = env("SHOAL_WORKER_ID");
  e.job = env("SHOAL_JOB_ID");
  if (std::getenv("SHOAL_BUILD_ID") != nullptr) e.build_id = env("SHOAL_BUILD_ID");
  e.name_space = env("SHOAL_NAMESPACE");
  e.restarts = static_cast<std::uint32_t>(std::strtoul(env("SHOAL_RESTARTS").c_str(), nullptr, 10));
  e.keeps_spec = !env("SHOAL_SELF_MADE").empty();
  e.retry_delay_ms = env("SHOAL_TASK_RETRY_DELAY_MS");
  if (!is_off(env("SHOAL_RECORD"))) e.run_folder = env("SHOAL_RUN_FOLDER");
  std::istringstream names(env(kEnvNames));
  for (std::string name; std::getline(names, name, ':');) e.set[name] = env(name.c_str());
  // A child process must not inherit what makes this process a worker.
  for (const char* name : {"SHOAL_BUILD_ID", "SHOAL_RESTARTS", "SHOAL_SELF_MADE"}) unsetenv(name);
  return e;
}

// ---- opening a session ----

void set_retry_delay(const Environment& e, SessionOptions& o) {
  if (!e.retry_delay_ms.empty()) o.retry_delay = std::chrono::milliseconds(std::strtoul(e.retry_delay_ms.c_str(), nullptr, 10));
}

Result<std::unique_ptr<Session>> attach(const Environment& e) {
  SHOAL_TRY(const auto folder, SessionFolder::open(e.session));
  SessionOptions o;
  SHOAL_TRY(o.credentials, folder.credentials());
  o.node = e.node;
  o.worker = WorkerId{parse_hex(e.worker).value_or(0)};
  o.job = JobId{parse_hex(e.job).value_or(0)};
  o.role = "worker";
  o.print_logs = !e.build_id;  // not for workers, since the job's driver prints the head's warnings
  set_retry_delay(e, o);
  return Session::open(std::move(o));
}

Result<std::unique_ptr<Session>> open_driver(const Environment& e, const SessionFolder& folder, const std::string& head,
                                             const std::string& name, bool print_logs) {
  SessionOptions o;
  SHOAL_TRY(o.credentials, folder.credentials());
  if (const auto info = folder.info()) o.own_node = info->node;
  o.head = head;
  o.name = name;
  o.print_logs = print_logs;
  set_retry_delay(e, o);
  return Session::open(std::move(o));
}

// Connects to the running cluster at $SHOAL_ADDRESS.
Result<std::unique_ptr<Session>> connect(const Environment& e, const std::string& name, bool print_logs) {
  SHOAL_TRY(const std::string root, SessionFolder::root(e.home.c_str()));
  SHOAL_TRY(const auto folder, SessionFolder::at_address(root, e.address));
  SHOAL_TRY(const auto info, folder.info());
  return open_driver(e, folder, info.way(), name, print_logs);
}

// ---- a local cluster ----

std::vector<std::string> resource_words(const MainOptions& o) {
  std::map<std::string, double> amounts = o.resources;
  amounts["CPU"] = o.num_cpus >= 0 ? o.num_cpus : runtime::usable_cpus();
  if (o.num_gpus >= 0) amounts["GPU"] = o.num_gpus;  // if it is not given, the cluster counts the GPUs
  amounts["memory"] = o.memory >= 0 ? o.memory : static_cast<double>(runtime::machine_memory().total);
  std::vector<std::string> out;
  for (const auto& [name, amount] : amounts) out.push_back(fmt::format("--resource={}={}", name, amount));
  return out;
}

// LIB/libshoal.so of an installed package has the command in BIN beside LIB. Empty if this code is part of the program itself.
fs::path installed_command(const fs::path& program) {
  Dl_info image;
  if (dladdr(reinterpret_cast<const void*>(&print_error), &image) == 0 || image.dli_fname == nullptr) return {};
  std::error_code missing;
  const fs::path library = fs::canonical(image.dli_fname, missing);
  if (missing || library == program) return {};
  return library.parent_path().parent_path() / "bin" / "shoal";
}

// The shoal command where $SHOAL_BINARY is not set. It is beside the program, where libshoal.so was installed, in the Bazel output tree
// around the program, or on PATH.
fs::path find_command(const fs::path& program) {
  const auto runs = [](const fs::path& file) { return access(file.c_str(), X_OK) == 0; };
  if (const auto beside = program.parent_path() / "shoal"; runs(beside)) return beside;
  if (const auto installed = installed_command(program); runs(installed)) return installed;
  for (auto folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    // bazel-out/CONFIGURATION/bin
    if (folder.filename() != "bin" || folder.parent_path().parent_path().filename() != "bazel-out") continue;
    if (const auto built = folder / "scheduler" / "cli" / "shoal"; runs(built)) return built;
  }
  return "shoal";
}

Result<StartedRole> start_local(const Environment& e, const fs::path& program, const MainOptions& options) {
  RoleStart start;
  start.program = e.binary.empty() ? find_command(program).string() : e.binary;
  start.words = {"local", "--owner", std::to_string(getpid())};
  for (auto& w : resource_words(options)) start.words.push_back(std::move(w));
  for (char** entry = environ; *entry != nullptr; ++entry) start.env.emplace_back(*entry);
  start.cwd = "";  // keeps this process's folder, since SHOAL_HOME may be relative
  auto started = start_role(std::move(start));
  if (!started && started.error().code() == Code::kNotFound) {
    return fail(Error(started.error())
                    .with_hint("set SHOAL_BINARY to the shoal command (in this workspace `bazel build //scheduler:shoal` makes it), or "
                               "SHOAL_ADDRESS to the address of a running cluster"));
  }
  return started;
}

// A local cluster, which ends with this driver: in order, or killed after kEndOfCluster. If the driver dies, the cluster detects that
// itself.
class LocalCluster {
 public:
  explicit LocalCluster(StartedRole role) : role_(std::move(role)) {}
  ~LocalCluster() {
    if (runtime::wait_exit(role_.pid, kEndOfCluster)) return;
    ::kill(role_.pid, SIGKILL);
    (void)runtime::wait_exit(role_.pid, kEndOfCluster);
  }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  const StartedRole& role() const { return role_; }

 private:
  const StartedRole role_;
};

// ---- worker and driver ----

Context::Options context_options(const fs::path& path, const Program& program, const std::string& name_space) {
  Context::Options o;
  o.program = path;
  o.build_id = own_build_id();
  for (const auto& [name, factory] : program.classes) o.class_names.insert(name);
  o.functions = program.functions;
  o.name_space = name_space;
  return o;
}

int run_worker(const Environment& e, const fs::path& path, const Program& program) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that the driver gets lines at once, even from a killed worker
  if (const auto refused = check_build_id(own_build_id(), *e.build_id, path); !refused) return print_error(refused.error());
  auto session = attach(e);
  if (!session) return print_error(session.error());
  auto options = context_options(path, program, e.name_space);
  options.caller = fmt::format("worker {}", e.worker);
  options.num_restarts = e.restarts;
  options.env = e.set;
  Context context(*std::move(session), std::move(options));
  return serve(context, program.classes, e.restarts > 0 || e.keeps_spec);
}

int run_driver(Result<std::unique_ptr<Session>> session, Context::Options options, const std::function<int(Context&)>& run,
               bool end_cluster) {
  if (!session) return print_error(session.error());
  Context context(*std::move(session), std::move(options));
  const int code = run(context);
  context.record().close(code);
  (void)context.session().logs().sync();  // an error is ignored: the node may be gone, with all lines that it has not sent
  if (end_cluster) (void)context.session().cluster().shutdown();  // an error is ignored: the cluster may be gone
  return code;
}

}  // namespace

int print_error(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  return 1;
}

Result<void> check_build_id(const std::string& own, const std::string& wanted, const std::string& program) {
  if (own == wanted && !own.empty()) return {};
  return fail(invalid_argument(fmt::format("{} was rebuilt while its driver runs: the driver is build {}, the file is build {}", program,
                                           wanted, own.empty() ? "(none)" : own))
                  .with_reason("BuildMismatch")
                  .with_hint("start the driver again"));
}

int run_main(int argc, char** argv, const Program& program, const std::function<int(Context&)>& run, const MainOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  const Environment e = read_environment();
  std::error_code unreadable;
  const fs::path path = fs::read_symlink("/proc/self/exe", unreadable);
  if (unreadable) return print_error(from_errno(unreadable.value(), "/proc/self/exe"));
  const std::string name = fs::path(argc > 0 ? argv[0] : path.c_str()).filename();

  if (e.native_worker()) return run_worker(e, path, program);
  auto driver = context_options(path, program, options.name_space);
  driver.env = options.env;
  driver.working_dir = options.working_dir;
  driver.run_folder = e.run_folder;
  if (e.from_node()) return run_driver(attach(e), driver, run, false);  // this program was submitted as a job
  if (!e.address.empty() && e.address != "local") return run_driver(connect(e, name, options.print_logs), driver, run, false);

  auto started = start_local(e, path, options);
  if (!started) return print_error(started.error());
  const LocalCluster cluster(*std::move(started));
  const auto folder = SessionFolder::open(cluster.role().session);
  if (!folder) return print_error(folder.error());
  return run_driver(open_driver(e, *folder, cluster.role().head_local, name, options.print_logs), driver, run, true);
}

}  // namespace shoal::actors::api
