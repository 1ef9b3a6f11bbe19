#include "scheduler/web/jobs_api.h"

#include <map>

#include "actors/protocol/cluster/function_worker.h"
#include "runtime/core/version.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::web {

using actors::ListReply;
using actors::ListRequest;
using actors::Method;
using actors::to_bytes;
using nlohmann::json;

namespace {

constexpr std::string_view kJobs = "/api/jobs/", kRows = "/api/v0/";

void not_allowed(const std::shared_ptr<HttpReply>& reply) {
  reply->send(405, error_body(invalid_argument("this path does not support that method")));
}

void no_such_path(const std::shared_ptr<HttpReply>& reply, const std::string& path) {
  reply->send(404, error_body(not_found("the HTTP interface serves nothing at " + path)));
}

}  // namespace

void JobsApi::handle(const HttpRequest& request, Reply reply) {
  const std::string& path = request.path;
  if (path == "/api/version") {
    if (request.method != "GET") return not_allowed(reply);
    return reply->send(200, {{"version", "1"}, {"shoal_version", kVersion}, {"session_name", session_}});
  }
  if (path == "/api/jobs" || path == kJobs) return jobs(request, std::move(reply));
  if (path.starts_with(kJobs)) {
    const std::string rest = path.substr(kJobs.size());
    const auto slash = rest.find('/');
    std::string what = slash == std::string::npos ? "" : rest.substr(slash + 1);
    if (what.ends_with('/')) what.pop_back();
    return job(rest.substr(0, slash), what, request, std::move(reply));
  }
  if (path.starts_with(kRows)) {
    if (request.method != "GET") return not_allowed(reply);
    return list(path.substr(kRows.size()), std::move(reply));
  }
  no_such_path(reply, path);
}

void JobsApi::jobs(const HttpRequest& request, Reply reply) {
  if (request.method == "POST") return submit(request, std::move(reply));
  if (request.method != "GET") return not_allowed(reply);
  gateway_.list(ListRequest::What::kJobs, {}, [reply](Result<ListReply> r) {
    if (!r) return reply->fail(r.error());
    json out = json::array();
    for (const auto& row : r->jobs) out.push_back(job_details(row));
    reply->send(200, out);
  });
}

void JobsApi::submit(const HttpRequest& request, Reply reply) {
  const auto wanted = parse_job_request(request.body);
  if (!wanted) return reply->fail(wanted.error());
  const auto spec = job_spec(*wanted, around_);
  if (!spec) return reply->fail(spec.error());
  gateway_.ask(Method::kSubmitJob, to_bytes(*spec), [reply, id = spec->submission.id](Result<runtime::Message> r) {
    if (!r) return reply->fail(r.error());
    const auto job = actors::from_bytes<actors::JobRef>(r->body);
    if (!job) return reply->fail(job.error());
    const std::string name = id.empty() ? to_string(job->job) : id;
    reply->send(200, {{"job_id", to_string(job->job)}, {"submission_id", name}});
  });
}

void JobsApi::job(const std::string& id, const std::string& what, const HttpRequest& request, Reply reply) {
  const std::map<std::string, std::string> methods = {{"", "GET DELETE"}, {"stop", "POST"}, {"logs", "GET"}, {"logs/tail", "GET"}};
  const auto allowed = methods.find(what);
  if (allowed == methods.end()) return no_such_path(reply, request.path);
  if (request.method.empty() || (" " + allowed->second + " ").find(" " + request.method + " ") == std::string::npos)
    return not_allowed(reply);
  gateway_.find_job(id, [this, what, method = request.method, reply](Result<actors::JobRow> row) {
    if (!row) return reply->fail(row.error());
    if (what == "stop") return stop(*row, reply);
    if (what == "logs/tail") return tail(*row, reply);
    if (what == "logs") {
      return gateway_.read_logs(row->id, [reply](Result<std::string> text) {
        if (!text) return reply->fail(text.error());
        reply->send(200, {{"logs", *text}});
      });
    }
    if (method == "GET") return reply->send(200, job_details(*row));
    gateway_.ask(Method::kDeleteJob, to_bytes(actors::JobRef{row->id}), [reply](Result<runtime::Message> r) {
      if (!r) return reply->fail(r.error());
      reply->send(200, {{"deleted", true}});
    });
  });
}

void JobsApi::stop(const actors::JobRow& row, Reply reply) {
  if (actors::ended(row.state)) return reply->send(200, {{"stopped", false}});
  gateway_.ask(Method::kStopJob, to_bytes(actors::StopJob{row.id, false}), [reply](Result<runtime::Message> r) {
    if (!r) return reply->fail(r.error());
    reply->send(200, {{"stopped", true}});
  });
}

void JobsApi::tail(const actors::JobRow& row, Reply reply) {
  class Reader final : public Gateway::Reader {
   public:
    explicit Reader(Reply reply) : reply_(std::move(reply)) { reply_->begin("text/plain; charset=utf-8"); }
    void lines(std::string_view text) override { reply_->write(text); }
    void end() override { reply_->end(); }
    bool gone() const override { return reply_->gone(); }

   private:
    const Reply reply_;
  };
  gateway_.follow_logs(row.id, std::make_shared<Reader>(std::move(reply)));
}

void JobsApi::list(const std::string& what, Reply reply) {
  const std::map<std::string, ListRequest::What> kinds = {{"actors", ListRequest::What::kActors},
                                                          {"nodes", ListRequest::What::kNodes},
                                                          {"workers", ListRequest::What::kWorkers},
                                                          {"jobs", ListRequest::What::kJobs},
                                                          {"placement_groups", ListRequest::What::kGroups}};
  const auto kind = kinds.find(what);
  if (kind == kinds.end()) return no_such_path(reply, std::string(kRows) + what);
  gateway_.list(kind->second, {}, [reply](Result<ListReply> r) {
    if (!r) return reply->fail(r.error());
    std::erase_if(r->actors, actors::is_function_worker);
    reply->send(200, {{"rows", rows_json(*r)}});
  });
}

}  // namespace shoal::scheduler::web
