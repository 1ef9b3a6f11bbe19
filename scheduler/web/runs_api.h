// The dashboard over HTTP: its page, and views of runs (scheduler/runs/views/views.h) from their folders.
//
//   GET /                       the page; it contains no data, and needs no token
//   GET /api/v1/about           {cluster, version, session}
//   GET /api/v1/runs            {rows, total, offset}: the newest first; offset, limit
//   GET /api/v1/runs/NAME/VIEW  a view, with its query
//
// Loop thread only. Folders are read by `aside`, one request after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/runs/run_reader.h"
#include "scheduler/runs/views/views.h"
#include "scheduler/web/http_server.h"

namespace shoal::scheduler::web {

// The page as one HTML file, and the policy that its script has: Content-Security-Policy.
std::string_view page_html();
std::string page_policy();
// The page with a snapshot of a run inside (runs::snapshot_of), which it shows without a server.
std::string page_with(const nlohmann::json& snapshot);

// The verdicts on a run, as JSON.
runs::Verdicts verdicts_of(const runs::Run& run, std::int64_t now_us);

class RunsApi {
 public:
  struct Options {
    std::string run = {};                   // the folder of the only run; "": those in `folders`
    std::vector<std::string> folders = {};  // folders that contain folders of runs
    bool cluster = false;                   // the server has the cluster's lists, too
    std::string session = {};
    std::size_t most_runs = 10'000;          // the newest ones
    std::size_t most_open = 4;               // runs that are followed at a time
    std::int64_t fresh_us = 400'000;         // a run is read again after this time: many readers cost as much as one
    std::int64_t fresh_list_us = 4'000'000;  // the same for the order of runs, and for a run in their list
    std::function<std::int64_t()> now_us;
    // Runs `work` beside the loop, then `then` on it, in order. Empty: at once.
    std::function<void(std::function<void()> work, std::function<void()> then)> aside = {};
  };
  explicit RunsApi(Options options);
  ~RunsApi();

  // Returns false, without an answer, if the path is none of this API's.
  bool handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  class Folders;  // used by `aside` alone
  const Options options_;
  const std::shared_ptr<Folders> folders_;
};

}  // namespace shoal::scheduler::web
