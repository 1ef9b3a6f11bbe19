#include "scheduler/roles/roles.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include <nlohmann/json.hpp>

#include "actors/session/folder.h"
#include "actors/session/open_network.h"
#include "runtime/loop/loop.h"
#include "runtime/net/socket_network.h"
#include "scheduler/head/head.h"
#include "scheduler/node/node.h"
#include "scheduler/node/posix_launcher.h"
#include "scheduler/roles/head_keeper.h"
#include "scheduler/web/jobs_api.h"

namespace shoal::scheduler {

using actors::SessionFolder;
using actors::SessionInfo;
using nlohmann::json;
using runtime::Endpoint;

namespace {

void report(int fd, const json& what) {
  if (fd < 0) return;
  const std::string line = what.dump() + "\n";
  if (write(fd, line.data(), line.size()) < 0) return;  // whoever asked is gone
  close(fd);
}

json error_json(const Error& e) {
  return {{"error", {{"code", code_name(e.code())}, {"reason", e.reason()}, {"message", e.message()}, {"hint", e.hint()}}}};
}

// What every role needs: built by its main, passed down.
class World {
 public:
  static Result<std::unique_ptr<World>> make(const std::string& session, const std::string& role) {
    SHOAL_TRY(const SessionFolder folder, SessionFolder::open(session));
    SHOAL_TRY(const actors::Credentials credentials, folder.credentials());
    SHOAL_TRY(runtime::Log log, runtime::make_file_log(role, folder.logs() + "/" + role + "-" + std::to_string(getpid()) + ".log"));
    SHOAL_OK(folder.enter(role, getpid()));
    if (folder.ending()) {
      folder.leave(role, getpid());
      return fail(unavailable("the cluster is being stopped").with_reason("Ending"));
    }
    return std::unique_ptr<World>(new World(folder, credentials, std::move(log), role));
  }
  ~World() { folder.leave(role, getpid()); }

  // SIGTERM and SIGINT end it in order.
  void on_signal(std::function<void()> fn) {
    signals.async_wait([fn = std::move(fn), this](std::error_code error, int number) {
      if (error) return;
      log->info("signal={}", number);
      fn();
    });
  }

  SessionFolder folder;
  const actors::Credentials credentials;
  runtime::Log log;
  const std::string role;
  runtime::Loop loop;
  std::unique_ptr<runtime::Clock> clock = runtime::make_real_clock(loop);
  std::unique_ptr<runtime::Random> random = runtime::make_real_random();
  runtime::SocketNetwork network;
  asio::signal_set signals;

 private:
  World(SessionFolder f, const actors::Credentials& c, runtime::Log l, std::string r)
      : folder(std::move(f)),
        credentials(c),
        log(std::move(l)),
        role(std::move(r)),
        network(loop, *clock, *random, c.token, actors::socket_options(c)),
        signals(loop.io(), SIGTERM, SIGINT) {
    std::signal(SIGPIPE, SIG_IGN);
    runtime::raise_descriptor_limit();
  }
};

Endpoint local_head(const SessionFolder& folder) { return Endpoint::unix_at("shoal-" + folder.name() + "-head"); }

Head::Options head_options(World& world) {
  Head::Options o;
  o.session = world.folder.path();
  o.pid = getpid();
  o.watch_process = [&world](pid_t pid, std::function<void()> gone) -> std::shared_ptr<void> {
    return std::make_shared<runtime::ProcessWatch>(world.loop, pid, [gone = std::move(gone)](runtime::ExitStatus) { gone(); });
  };
  return o;
}

// The type of this host's GPUs, as its driver tells; "" where there is none.
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
constexpr const char* kObjectStoreMemory = "object_store_memory";  // as Ray calls it, also among the resources

// Of the machine's memory, as Ray takes by default.
std::uint64_t default_object_store() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) / 10 * 3 : 0;
}

Node::Options node_options(World& world, const actors::Resources& resources, const Labels& labels, const Endpoint& head) {
  Node::Options o;
  o.resources = resources;
  const std::int64_t objects = resources.units(kObjectStoreMemory) / actors::Resources::kUnit;
  o.object_store_bytes = objects > 0 ? static_cast<std::uint64_t>(objects) : default_object_store();
  const std::int64_t gpus = resources.units("GPU") / actors::Resources::kUnit;
  o.gpus = device_ids(gpus, std::getenv("CUDA_VISIBLE_DEVICES"));
  o.labels = labels;
  if (const auto type = gpus > 0 ? detect_accelerator() : ""; !type.empty()) {
    o.labels.try_emplace("shoal.io/accelerator-type", type);
    if (o.resources.units("accelerator_type:" + type) == 0) o.resources.set_units("accelerator_type:" + type, actors::Resources::kUnit);
  }
  o.pid = getpid();
  o.head = head;
  o.listen = world.credentials.endpoint("shoal-" + world.folder.name() + "-node-" + std::to_string(getpid()));
  if (!world.credentials.host.empty()) o.host = world.credentials.host;
  o.session = world.folder.path();
  o.logs.folder = world.folder.logs();
  return o;
}

// The HTTP interface: asks the head as any client does, on the same loop.
class Http {
 public:
  static Result<std::unique_ptr<Http>> start(World& world, const HttpRole& role, const Endpoint& head) {
    std::unique_ptr<Http> out(new Http(world, role, head));
    web::HttpServer::Options o;
    o.port = role.port;
    const auto listen = [&] {
      return web::HttpServer::listen(world.loop, *world.clock, world.log, out->token_, o,
                                     [api = &out->api_](const web::HttpRequest& request, std::shared_ptr<web::HttpReply> reply) {
                                       api->handle(request, std::move(reply));
                                     });
    };
    SHOAL_TRY(out->token_, world.folder.token());
    auto server = listen();
    if (!server && server.error().reason() == "AddressInUse" && role.or_any) {
      o.port = 0;
      server = listen();
    }
    if (!server && server.error().reason() == "AddressInUse") {
      return fail(Error(server.error()).with_hint("choose another with --dashboard-port, or 0 for any free one"));
    }
    if (!server) return fail(server.error());
    out->server_ = *std::move(server);
    world.log->info("http={}", out->address());
    return out;
  }
  std::string address() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }

 private:
  Http(World& world, const HttpRole& role, const Endpoint& head)
      : gateway_(*world.clock, world.network, {.head = head, .logs = world.folder.logs()}),
        api_(gateway_, role.around, world.folder.name()) {}

  runtime::Token token_;
  web::Gateway gateway_;
  web::JobsApi api_;
  std::unique_ptr<web::HttpServer> server_;  // ends first
};

// Lets what was sent go out, then drains the network. The loop runs until then.
void drain(World& world) {
  bool drained = false;
  world.network.stop([&] { drained = true; });
  const auto end = world.clock->now() + std::chrono::seconds(1);
  while (!drained && world.clock->now() < end) world.loop.run_one(std::chrono::milliseconds(20));
}

void run_until(World& world, const bool& over) {
  while (!over) world.loop.run_one(std::chrono::hours(1));
}

}  // namespace

int refuse_role(int ready_fd, const Error& error) {
  report(ready_fd, error_json(error));
  return 1;
}

actors::Resources detect_resources() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const double cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  double memory = 0;
  std::ifstream file("/proc/meminfo");
  std::string name;
  if (double kib = 0; file >> name >> kib) memory = kib * 1024;
  double gpus = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string device = entry.path().filename();
    gpus += device.starts_with("nvidia") && device.size() > 6 && device.find_first_not_of("0123456789", 6) == std::string::npos;
  }
  return actors::Resources::of({{"CPU", cpus}, {"memory", memory}, {"GPU", gpus}}).value_or(actors::Resources());
}

int run_head(const HeadRole& role) {
  auto world = World::make(role.session, "head");
  if (!world) return refuse_role(role.ready_fd, world.error());
  World& w = **world;
  auto store = open_sqlite_store(w.folder.database());
  if (!store) return refuse_role(role.ready_fd, store.error());
  bool over = false;
  auto options = head_options(w);
  options.listen = {Endpoint::tcp(role.host, role.port), local_head(w.folder)};
  if (w.folder.has_tls()) {
    options.sign = [&w](const actors::SignCertificate& asked) -> Result<std::string> {
      SHOAL_TRY(const auto authority, w.folder.authority());
      const auto now = w.clock->unix_millis() / 1000;
      return runtime::sign_certificate(authority, asked.request, asked.host, runtime::valid_from(now, runtime::kCertificateSeconds));
    };
  }
  // A moment for the notices to the nodes to go out.
  runtime::Timer leaving;
  options.on_shutdown = [&] { leaving = w.clock->after(std::chrono::milliseconds(20), [&] { over = true; }); };
  {
    Head head(*w.clock, *w.random, w.network, **store, w.log, options);
    if (const auto started = head.start(); !started) {
      Error e = started.error();
      if (e.reason() == "AddressInUse") e = std::move(e).with_hint("choose another with --port, or 0 for any free one");
      drain(w);
      return refuse_role(role.ready_fd, e);
    }
    w.on_signal([&] { over = true; });
    SessionInfo info{head.endpoints()[0].to_string(), head.endpoints()[1].to_string(), w.clock->unix_millis(), ""};
    std::unique_ptr<Http> http;
    if (role.http.on) {
      auto started = Http::start(w, role.http, head.endpoints()[1]);
      if (!started) return refuse_role(role.ready_fd, started.error());
      http = *std::move(started);
      info.http = http->address();
    }
    if (const auto written = w.folder.write_info(info); !written) return refuse_role(role.ready_fd, written.error());
    report(role.ready_fd, {{"head", info.head}, {"head_local", info.head_local}});
    run_until(w, over);
  }
  w.log->info("head ended");
  drain(w);
  return 0;
}

int run_node(const NodeRole& role) {
  auto world = World::make(role.session, "node");
  if (!world) return refuse_role(role.ready_fd, world.error());
  World& w = **world;
  const auto head = runtime::parse_endpoint(role.head);
  if (!head) return refuse_role(role.ready_fd, head.error());
  bool over = false;
  auto launcher = make_posix_launcher(w.loop, *w.random, w.log, {role.python});
  std::unique_ptr<HeadKeeper> keeper;
  if (role.keeps_head) {
    auto made = HeadKeeper::make(w.loop, *w.clock, w.log, w.folder);
    if (!made) return refuse_role(role.ready_fd, made.error());
    keeper = *std::move(made);
  }
  auto options = node_options(w, role.resources, role.labels, *head);
  options.on_ending = [&] {
    if (keeper) keeper->stop();
  };
  options.on_end = [&](const std::string& why) {
    w.log->info("node ended: {}", why);
    over = true;
  };
  int ready_fd = role.ready_fd;
  Node* self = nullptr;
  // Ready means: the head knows it, and can place something there.
  options.on_registered = [&] {
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
  auto world = World::make(role.session, "local");
  if (!world) return refuse_role(role.ready_fd, world.error());
  World& w = **world;
  auto store = open_sqlite_store(w.folder.database());
  if (!store) return refuse_role(role.ready_fd, store.error());
  bool over = false;
  auto launcher = make_posix_launcher(w.loop, *w.random, w.log, {role.python});
  {
    auto head_opts = head_options(w);
    head_opts.listen = {local_head(w.folder)};
    Head head(*w.clock, *w.random, w.network, **store, w.log, head_opts);
    if (const auto started = head.start(); !started) return refuse_role(role.ready_fd, started.error());
    SessionInfo info{"", head.endpoints()[0].to_string(), w.clock->unix_millis(), ""};
    std::unique_ptr<Http> http;
    if (role.http.on) {
      auto started = Http::start(w, role.http, head.endpoints()[0]);
      if (!started) return refuse_role(role.ready_fd, started.error());
      http = *std::move(started);
      info.http = http->address();
    }
    if (const auto written = w.folder.write_info(info); !written) return refuse_role(role.ready_fd, written.error());

    auto node_opts = node_options(w, role.resources, role.labels, head.endpoints()[0]);
    node_opts.ends_with_owner = role.owner != 0;
    node_opts.owner = role.owner;
    node_opts.stop_grace = std::chrono::milliseconds(500);
    node_opts.on_end = [&](const std::string& why) {
      w.log->info("local cluster ended: {}", why);
      over = true;
    };
    int ready_fd = role.ready_fd;
    Node* self = nullptr;
    node_opts.on_registered = [&] {
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
