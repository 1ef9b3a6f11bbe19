// The HTTP interface of the cluster: Ray's job API, and rows of the cluster's state.
//
//   GET    /api/version
//   GET    /api/v0/{actors,nodes,workers,jobs,placement_groups}   a page: {rows, next, total}; limit, after (an id), state, contains, total
//   GET    /api/jobs/               all jobs
//   POST   /api/jobs/               {entrypoint, submission_id, runtime_env, metadata, entrypoint_num_cpus, ..}
//   GET    /api/jobs/ID
//   POST   /api/jobs/ID/stop
//   DELETE /api/jobs/ID
//   GET    /api/jobs/ID/logs
//   GET    /api/jobs/ID/logs/tail   text, in pieces, until the job ends
#pragma once

#include <memory>
#include <string>

#include "scheduler/web/entrypoint.h"
#include "scheduler/web/gateway.h"
#include "scheduler/web/http_server.h"

namespace shoal::scheduler::web {

class JobsApi {
 public:
  // Rows of one answer under /api/v0; Ray's state API has the same bounds.
  static constexpr std::size_t kDefaultRows = 100, kMaxRows = 10'000;

  // The gateway outlives this object.
  JobsApi(Gateway& gateway, Surroundings around, std::string session)
      : gateway_(gateway), around_(std::move(around)), session_(std::move(session)) {}

  void handle(const HttpRequest& request, std::shared_ptr<HttpReply> reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void jobs(const HttpRequest& request, Reply reply);
  void job(const std::string& id, const std::string& what, const HttpRequest& request, Reply reply);
  void list(const std::string& what, const HttpRequest& request, Reply reply);
  void submit(const HttpRequest& request, Reply reply);
  void stop(const actors::JobRow& row, Reply reply);
  void tail(const actors::JobRow& row, Reply reply);

  Gateway& gateway_;
  const Surroundings around_;
  const std::string session_;  // name of the session
};

}  // namespace shoal::scheduler::web
