#include "scheduler/roles/role_process.h"

#include "scheduler/node/metrics/machine.h"
#include "scheduler/roles/head_report.h"

namespace shoal::scheduler {

using nlohmann::json;

void report(int fd, const json& what) {
  if (fd < 0) return;
  const std::string line = what.dump() + "\n";
  if (write(fd, line.data(), line.size()) < 0) return;  // the starting process is gone
  close(fd);
}

json error_json(const Error& e) {
  return {{"error", {{"code", code_name(e.code())}, {"reason", e.reason()}, {"message", e.message()}, {"hint", e.hint()}}}};
}

int refuse_role(int ready_fd, const Error& error) {
  report(ready_fd, error_json(error));
  return 1;
}

runtime::Endpoint local_head(const actors::SessionFolder& folder) { return runtime::Endpoint::unix_at("shoal-" + folder.name() + "-head"); }

Head::Options head_options(RoleProcess& process) {
  Head::Options o;
  o.session = process.folder.path();
  o.packages.folder = process.folder.path() + "/packages";
  o.pid = getpid();
  o.measure = [] { return process_metrics(); };
  o.on_set_aside = [session = o.session](const std::vector<SetAside>& rows) { keep_set_aside(session, rows); };
  o.watch_process = [&process](pid_t pid, std::function<void()> gone) -> std::shared_ptr<void> {
    return std::make_shared<runtime::ProcessWatch>(process.loop, pid, [gone = std::move(gone)](runtime::ExitStatus) { gone(); });
  };
  return o;
}

Result<std::unique_ptr<State>> State::open(RoleProcess& process, bool fsync) {
  std::unique_ptr<State> out(new State(process));
  SqliteOptions options{.fsync = fsync};
  options.aside = [side = &out->side_](auto work, auto then) { side->run(std::move(work), std::move(then)); };
  SHOAL_TRY(out->store_, open_sqlite_store(process.folder.database(), options));
  return out;
}

void Http::metrics(const web::HttpRequest& request, std::shared_ptr<web::HttpReply> reply) {
  if (request.method != "GET") return reply->send(405, web::error_body(invalid_argument("this path does not support that method")));
  metrics_.collect([reply](const Result<std::shared_ptr<const web::Metrics::Scrape>>& all) {
    if (!all) return reply->fail(all.error());
    reply->send_text(web::kExpositionType, (*all)->text);
  });
}

Result<std::unique_ptr<Http>> Http::start(RoleProcess& process, const HttpRole& role, const runtime::Endpoint& head) {
  std::unique_ptr<Http> out(new Http(process, role, head));
  web::HttpServer::Options o;
  o.port = role.port;
  o.open_paths = {"/"};
  // A token of this server alone. A page that is still open may later send it to another process on this port, which cannot use it.
  o.page_token = runtime::Token::random(*process.random).hex();
  const auto listen = [&] {
    return web::HttpServer::listen(process.loop, *process.clock, process.log, out->token_, o,
                                   [http = out.get()](const web::HttpRequest& request, std::shared_ptr<web::HttpReply> reply) {
                                     if (request.path == "/metrics") return http->metrics(request, std::move(reply));
                                     if (http->runs_.handle(request, reply)) return;
                                     http->api_.handle(request, std::move(reply));
                                   });
  };
  SHOAL_TRY(out->token_, process.folder.token());
  SHOAL_OK(process.folder.write_http_token(web::http_token(out->token_)));
  SHOAL_OK(process.folder.write_page_token(o.page_token));
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
  SHOAL_OK(process.folder.write_metrics_target(out->address()));
  process.log->info("http={}", out->address());
  return out;
}

void drain(RoleProcess& process) {
  bool drained = false;
  process.network.stop([&] { drained = true; });
  const auto end = process.clock->now() + std::chrono::seconds(1);
  while (!drained && process.clock->now() < end) process.loop.run_one(std::chrono::milliseconds(20));
}

void run_until(RoleProcess& process, const bool& over) {
  while (!over) process.loop.run_one(std::chrono::hours(1), runtime::Loop::Idle::kSpin);
}

}  // namespace shoal::scheduler
