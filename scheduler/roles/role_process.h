// Shared by the roles' main functions: loop, clock, network and log of a process, its report and its end.
#pragma once

#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "actors/session/folder/folder.h"
#include "actors/session/folder/open_network.h"
#include "runtime/log/log.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/side_work.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/process/process.h"
#include "scheduler/head/head.h"
#include "scheduler/node/logs/log_files.h"
#include "scheduler/roles/roles.h"
#include "scheduler/web/exposition.h"
#include "scheduler/web/jobs_api.h"
#include "scheduler/web/metrics.h"
#include "scheduler/web/runs_api.h"

namespace shoal::scheduler {

// Writes one line to the starting process and closes `fd`; for a single use.
void report(int fd, const nlohmann::json& what);
nlohmann::json error_json(const Error& e);

constexpr std::size_t kKeptLogs = 6;  // logs of dead processes, per role

// A role's environment: built by its main function and passed down.
class RoleProcess {
 public:
  static Result<std::unique_ptr<RoleProcess>> make(const std::string& session, const std::string& role) {
    SHOAL_TRY(const auto folder, actors::SessionFolder::open(session));
    SHOAL_TRY(const actors::Credentials credentials, folder.credentials());
    SHOAL_TRY(runtime::Log log, runtime::make_file_log(role, folder.logs() + "/" + role + "-" + std::to_string(getpid()) + ".log"));
    SHOAL_OK(folder.enter(role, getpid()));
    if (folder.ending()) {
      folder.leave(role, getpid());
      return fail(unavailable("the cluster is being stopped").with_reason("Ending"));
    }
    std::set<pid_t> living{getpid()};
    for (const auto& process : folder.processes()) living.insert(process.pid);
    forget_role_logs(folder.logs(), role, living, kKeptLogs);
    return std::unique_ptr<RoleProcess>(new RoleProcess(folder, credentials, std::move(log), role));
  }
  ~RoleProcess() {
    if (!failed) folder.leave(role, getpid());
  }

  // SIGTERM and SIGINT end the role in order. A role that was started with SIGTERM ignored goes on ignoring it: its starter gets the same
  // signal, and decides what ends (`shoal run`).
  void on_signal(std::function<void()> fn) {
    signals.async_wait([fn = std::move(fn), this](std::error_code error, int number) {
      if (error) return;
      log->info("signal={}", number);
      fn();
    });
  }

  bool failed = false;  // the role ends with an error and stays in the session's list, so that HeadKeeper restarts it

  actors::SessionFolder folder;
  const actors::Credentials credentials;
  runtime::Log log;
  const std::string role;
  runtime::Loop loop;
  std::unique_ptr<runtime::Clock> clock = runtime::make_real_clock(loop);
  std::unique_ptr<runtime::Random> random = runtime::make_real_random();
  runtime::SocketNetwork network;
  runtime::SideWork side{loop}, writes{loop};  // two threads: reads do not wait for writes
  asio::signal_set signals;

 private:
  RoleProcess(actors::SessionFolder f, const actors::Credentials& c, runtime::Log l, std::string r)
      : folder(std::move(f)),
        credentials(c),
        log(std::move(l)),
        role(std::move(r)),
        network(loop, *clock, *random, c.token, actors::control_socket_options(c)),
        signals(loop.io(), SIGINT) {
    if (!runtime::is_ignored(SIGTERM)) signals.add(SIGTERM);
    std::signal(SIGPIPE, SIG_IGN);
    runtime::raise_descriptor_limit();
  }
};

runtime::Endpoint local_head(const actors::SessionFolder& folder);
Head::Options head_options(RoleProcess& process);

// A single head's store, in the session's folder. Its disk writes run in a side thread.
class State {
 public:
  static Result<std::unique_ptr<State>> open(RoleProcess& process, bool fsync);
  Store& store() { return *store_; }

 private:
  explicit State(RoleProcess& process) : side_(process.loop) {}
  std::unique_ptr<Store> store_;
  runtime::SideWork side_;  // destroyed first
};

// The HTTP interface: a client of the head, on the same loop. Side threads make the text of metrics, and read the folders of runs.
class Http {
 public:
  static Result<std::unique_ptr<Http>> start(RoleProcess& process, const HttpRole& role, const runtime::Endpoint& head);
  std::string address() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }

 private:
  Http(RoleProcess& process, const HttpRole& role, const runtime::Endpoint& head)
      : gateway_(*process.clock, process.network, {.head = head, .logs = process.folder.logs()}),
        api_(gateway_, role.around, process.folder.name()),
        metrics_(gateway_, *process.clock, {.aside = [this](auto work, auto then) { side_.run(std::move(work), std::move(then)); }}),
        runs_({.folders = runs_folders(process.folder.path(), role.runs),
               .cluster = true,
               .session = process.folder.name(),
               .now_us = [&process] { return process.clock->unix_millis() * 1000; },
               .aside = [this](auto work, auto then) { runs_side_.run(std::move(work), std::move(then)); }}),
        side_(process.loop),
        runs_side_(process.loop) {}
  // The runs of trainers are beside the sessions, in SHOAL_HOME.
  static std::vector<std::string> runs_folders(const std::string& session, std::vector<std::string> folders) {
    folders.push_back(std::filesystem::path(session).parent_path() / "runs");
    return folders;
  }
  void metrics(const web::HttpRequest& request, std::shared_ptr<web::HttpReply> reply);

  runtime::Token token_;
  web::Gateway gateway_;
  web::JobsApi api_;
  web::Metrics metrics_;
  web::RunsApi runs_;
  runtime::SideWork side_, runs_side_;       // two threads: a slow disk of runs holds up no scrape
  std::unique_ptr<web::HttpServer> server_;  // destroyed first
};

// Sends what is queued, then drains the network; runs the loop for at most a second.
void drain(RoleProcess& process);
void run_until(RoleProcess& process, const bool& over);

}  // namespace shoal::scheduler
