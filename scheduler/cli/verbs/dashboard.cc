// dashboard: pages in a browser, of one run or of the running cluster; or a run as one HTML file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "runtime/core/fd.h"
#include "runtime/loop/side_work.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/runs/run_choice.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/runs/run_reader.h"
#include "scheduler/runs/views/views.h"
#include "scheduler/web/runs_api.h"

namespace shoal::scheduler::cli {

namespace {

struct DashboardOptions {
  std::string run, file;
  std::uint16_t port = 0;
};

std::string page_url(const std::string& address, const std::string& token) { return address + "/#token=" + token; }

void print_address(const Common& common, const std::string& url, const std::string& run) {
  if (common.json) return print_json({{"schema", "shoal.dashboard/1"}, {"url", url}, {"run", run}});
  print(stdout, "{}\n", url);
}

// A full disk leaves the earlier file as it is. The page shows a program's arguments, so that its owner alone reads it.
Result<void> write_page(const std::string& file, const std::string& html) {
  const auto refused = [&](int why) {
    return fail(from_errno(why, "the page cannot be written to " + file).with_hint("name a file of a folder that you may write"));
  };
  struct stat seen {};
  if (lstat(file.c_str(), &seen) == 0 && !S_ISREG(seen.st_mode))
    return fail(invalid_argument(file + " is a link or a folder, which the page does not replace").with_hint("name another file"));
  const std::string half = fmt::format("{}.{:016x}", file, runtime::make_real_random()->next());
  const Fd out(open(half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out) return refused(errno);
  int why = 0;
  for (std::size_t at = 0; at < html.size() && why == 0;) {
    const ssize_t size = write(out.get(), html.data() + at, html.size() - at);
    if (size >= 0) at += static_cast<std::size_t>(size);
    if (size < 0 && errno != EINTR) why = errno;
  }
  if (why == 0 && (fsync(out.get()) != 0 || rename(half.c_str(), file.c_str()) != 0)) why = errno;
  if (why == 0) return {};
  unlink(half.c_str());
  return refused(why);
}

int export_run(const Common& common, const DashboardOptions& o, const std::string& folder, Context& context) {
  const auto now_us = [&context] { return context.clock->unix_millis() * 1000; };
  auto reader = runs::RunReader::open(folder);
  if (!reader) return failed(common, reader.error());
  reader->poll(now_us());
  if (reader->run().state == runs::RunState::kRunning) {  // a second look shows what holds for longer than a moment
    context.run_until([] { return false; }, std::chrono::milliseconds(500));
    reader->poll(now_us());
  }
  const std::string html = web::page_with(runs::snapshot_of(reader->run(), web::verdicts_of(reader->run(), now_us()), now_us()));
  if (const auto written = write_page(o.file, html); !written) return failed(common, written.error());
  if (common.json) {
    print_json({{"schema", "shoal.dashboard/1"}, {"file", o.file}, {"run", reader->run().name}, {"bytes", html.size()}});
  } else {
    print(stdout, "{}: open it in a browser; it needs no server\n", o.file);
  }
  return kOk;
}

// Serves the run until Ctrl-C.
int serve_run(const Common& common, const DashboardOptions& o) {
  const auto token = runtime::Token::random(*runtime::make_real_random());
  actors::Credentials credentials;
  credentials.token = token;
  Context context(credentials);
  const auto folder = find_run(o.run, runs::list_runs(run_roots(common.target.root)));
  if (!folder) return failed(common, folder.error());
  if (!o.file.empty()) return export_run(common, o, *folder, context);
  if (const auto opened = runs::RunReader::open(*folder); !opened) return failed(common, opened.error());
  runtime::SideWork side(context.loop);
  web::RunsApi api({.run = *folder,
                    .now_us = [&context] { return context.clock->unix_millis() * 1000; },
                    .aside = [&side](auto work, auto then) { side.run(std::move(work), std::move(then)); }});
  web::HttpServer::Options http;
  http.port = o.port;
  http.open_paths = {"/"};
  const auto server = web::HttpServer::listen(context.loop, *context.clock, runtime::make_null_log(), token, http,
                                              [&api](const web::HttpRequest& request, std::shared_ptr<web::HttpReply> reply) {
                                                if (!api.handle(request, reply))
                                                  reply->fail(not_found("the dashboard serves nothing at " + request.path));
                                              });
  if (!server) return failed(common, Error(server.error()).with_hint("choose another --port, or none for any free one"));
  bool over = false;
  asio::signal_set signals(context.loop.io(), SIGINT, SIGTERM);
  signals.async_wait([&over](std::error_code error, int) { over = !error; });
  print_address(common, page_url(fmt::format("http://127.0.0.1:{}", (*server)->port()), web::http_token(token)), *folder);
  if (!common.json) print(stderr, "Open this in a browser of this host. Ctrl-C ends the dashboard, never the run.\n");
  std::fflush(stdout);
  while (!over) context.loop.run_one(std::chrono::hours(1));
  return kOk;
}

// The head of the running cluster serves the page itself.
int name_cluster(const Common& common) {
  const auto found = find_cluster(common.target, false);
  if (!found) {
    return failed(common, Error(found.error()).with_hint("`shoal dashboard --run RUN` shows a run from its folder, without a cluster"));
  }
  const auto info = found->folder ? found->folder->info() : Result<actors::SessionInfo>(fail(not_found("")));
  if (!info || info->http.empty()) {
    const Error none = not_found("this host has no HTTP interface of the cluster, which serves the dashboard");
    return failed(common,
                  Error(none).with_hint("run this on the head's host; the cluster has to be started with --include-dashboard true"));
  }
  std::ifstream file(found->folder->page_token_file());
  std::string token;
  if (!std::getline(file, token)) return failed(common, from_errno(errno, "the page's token in " + found->folder->page_token_file()));
  print_address(common, page_url(info->http, token), "");
  return kOk;
}

int dashboard(const Common& common, const DashboardOptions& o) {
  if (o.run.empty() && (o.port != 0 || !o.file.empty())) {
    throw CLI::ValidationError(o.port != 0 ? "--port needs --run: the cluster's head serves its own page (shoal start --dashboard-port)"
                                           : "--export needs --run: it writes the run of a folder");
  }
  return o.run.empty() ? name_cluster(common) : serve_run(common, o);
}

}  // namespace

void add_dashboard(CommandLine& line) {
  auto& options = line.own(DashboardOptions());
  auto* verb = line.add_verb("dashboard", "Show a run, or the running cluster, in a browser");
  verb->add_option("--run", options.run, "Name or folder of a run: serve its pages until Ctrl-C, without a cluster")->check(not_empty());
  verb->add_option("--export", options.file, "Write the run's pages as one HTML file, which needs no server")->check(not_empty());
  verb->add_option("--port", options.port, "Port of 127.0.0.1 for --run (default: any free one)");
  line.on_run(verb, [&options](const Common& common) { return dashboard(common, options); });
}

}  // namespace shoal::scheduler::cli
