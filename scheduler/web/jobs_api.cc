#include "scheduler/web/jobs_api.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "runtime/core/printable.h"
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

// The rows of a list that a request wants: those of a state, and with a text in one of their values.
struct RowFilter {
  std::string state, contains;
  bool any() const { return !state.empty() || !contains.empty(); }
  bool wants(const json& row) const {
    const auto same = [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    if (!state.empty()) {
      const std::string actual = row.value("state", "");
      if (!std::equal(actual.begin(), actual.end(), state.begin(), state.end(), same)) return false;
    }
    return contains.empty() || has(row);
  }

 private:
  bool has(const json& value) const {
    if (value.is_string()) return value.get_ref<const std::string&>().find(contains) != std::string::npos;
    return value.is_structured() && std::any_of(value.begin(), value.end(), [this](const json& part) { return has(part); });
  }
};

// Sends rows as the head lists them. It asks for a page once the client has read the one before, and converts no more than a page at once:
// neither a long list nor a slow client holds up the head's loop or fills its memory.
class Listing final : public std::enable_shared_from_this<Listing> {
 public:
  // The form of the answer: the texts before and after the rows, and the function that turns a page's rows into a JSON array.
  struct Shape {
    std::string before;
    json (*rows)(const ListReply& page);
    std::string (*after)(const Listing& sent);
    RowFilter filter = {};
    bool counts = true;  // reads on to the last row, to count all rows
  };
  Listing(Gateway& gateway, ListRequest request, std::size_t limit, Shape shape, std::shared_ptr<HttpReply> reply)
      : gateway_(gateway), request_(request), first_(request.after), limit_(limit), shape_(std::move(shape)), reply_(std::move(reply)) {}

  void request_page() {
    gateway_.list_page(request_, [self = shared_from_this()](Result<ListReply> page) { self->take(std::move(page)); });
  }

  // True if rows follow the last one that was sent, whose id is last().
  bool more() const { return total() ? num_rows_ > num_sent_ : more_; }
  const std::string& last() const { return last_; }
  // The number of all rows; nullopt if the request began at a later row, or does not want the number.
  std::optional<std::size_t> total() const { return first_ == 0 && shape_.counts ? std::optional(num_rows_) : std::nullopt; }

 private:
  void take(Result<ListReply> page) {
    if (!page && !begun_) return reply_->fail(page.error());
    if (!page) return;  // the answer stays without its end, which shows that it is cut off
    std::erase_if(page->actors, actors::is_function_worker);
    if (!std::exchange(begun_, true)) {
      reply_->begin("application/json");
      reply_->write(shape_.before);
    }
    request_.after = page->last;
    send(*page);
    // A full answer reads on only to count the rows that it leaves out.
    if (page->last == 0 || (num_sent_ == limit_ && more_ && !total())) {
      reply_->write(shape_.after(*this) + "\n");
      return reply_->end();
    }
    reply_->when_sent([self = shared_from_this()] { self->request_page(); });
  }

  void send(const ListReply& page) {
    std::size_t size = page.actors.size() + page.nodes.size() + page.workers.size() + page.jobs.size() + page.groups.size();
    json rows;
    if (shape_.filter.any()) {
      rows = shape_.rows(page);
      std::erase_if(rows.get_ref<json::array_t&>(), [this](const json& row) { return !shape_.filter.wants(row); });
      size = rows.size();
    }
    num_rows_ += size;
    const std::size_t room = std::min(size, limit_ - num_sent_);
    more_ = more_ || room < size || (num_sent_ + room == limit_ && page.last != 0);
    if (room == 0) return;
    if (!shape_.filter.any()) rows = shape_.rows(page);
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(room), rows.end());
    const std::string text = printable_json(rows.dump(-1, ' ', false, json::error_handler_t::replace));
    reply_->write((num_sent_ > 0 ? "," : "") + text.substr(1, text.size() - 2));
    num_sent_ += room;
    if (const auto id = rows.back().find("id"); id != rows.back().end()) last_ = id->get<std::string>();
  }

  Gateway& gateway_;
  ListRequest request_;
  const std::uint64_t first_;
  const std::size_t limit_;
  const Shape shape_;
  const std::shared_ptr<HttpReply> reply_;
  std::size_t num_sent_ = 0, num_rows_ = 0;
  std::string last_;
  bool begun_ = false, more_ = false;
};

// The page of rows that a request asks for.
struct Page {
  std::size_t limit = JobsApi::kDefaultRows;
  std::uint64_t after = 0;  // id of the last row of the page before
  RowFilter filter = {};
  bool counts = true;
};
Result<Page> page_of(const HttpRequest& request) {
  Page out;
  for (const auto& [name, value] : request.query) {
    if (name == "limit") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.limit);
      if (error != std::errc() || end != value.data() + value.size() || out.limit == 0 || out.limit > JobsApi::kMaxRows)
        return fail(invalid_argument(fmt::format("limit is a number from 1 to {}, not '{}'", JobsApi::kMaxRows, value)));
    } else if (name == "after") {
      const auto id = parse_hex(value);
      if (!id) return fail(invalid_argument("after is the id in `next` of the page before, not '" + value + "'"));
      out.after = *id;
    } else if (name == "state" || name == "contains") {
      (name == "state" ? out.filter.state : out.filter.contains) = value;
    } else if (name == "total") {
      out.counts = value != "0";
    } else {
      return fail(invalid_argument("a list takes limit, after, state, contains and total, not '" + name + "'"));
    }
  }
  return out;
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
    return list(path.substr(kRows.size()), request, std::move(reply));
  }
  no_such_path(reply, path);
}

void JobsApi::jobs(const HttpRequest& request, Reply reply) {
  if (request.method == "POST") return submit(request, std::move(reply));
  if (request.method != "GET") return not_allowed(reply);
  const auto rows = [](const ListReply& page) {
    json out = json::array();
    for (const auto& row : page.jobs) out.push_back(job_details(row));
    return out;
  };
  const Listing::Shape shape = {"[", rows, [](const Listing&) { return std::string("]"); }};
  std::make_shared<Listing>(gateway_, ListRequest{ListRequest::What::kJobs, {}, 0}, SIZE_MAX, shape, std::move(reply))->request_page();
}

void JobsApi::submit(const HttpRequest& request, Reply reply) {
  const auto wanted = parse_job_request(request.body);
  if (!wanted) return reply->fail(wanted.error());
  const auto spec = job_spec(*wanted, around_);
  if (!spec) return reply->fail(spec.error());
  gateway_.call_head(Method::kSubmitJob, to_bytes(*spec), [reply, id = spec->submission.id](Result<runtime::Message> r) {
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
    gateway_.call_head(Method::kDeleteJob, to_bytes(actors::JobRef{row->id}), [reply](Result<runtime::Message> r) {
      if (!r) return reply->fail(r.error());
      reply->send(200, {{"deleted", true}});
    });
  });
}

void JobsApi::stop(const actors::JobRow& row, Reply reply) {
  if (actors::ended(row.state)) return reply->send(200, {{"stopped", false}});
  gateway_.call_head(Method::kStopJob, to_bytes(actors::StopJob{row.id, false}), [reply](Result<runtime::Message> r) {
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

void JobsApi::list(const std::string& what, const HttpRequest& request, Reply reply) {
  const std::map<std::string, ListRequest::What> kinds = {{"actors", ListRequest::What::kActors},
                                                          {"nodes", ListRequest::What::kNodes},
                                                          {"workers", ListRequest::What::kWorkers},
                                                          {"jobs", ListRequest::What::kJobs},
                                                          {"placement_groups", ListRequest::What::kGroups}};
  const auto kind = kinds.find(what);
  if (kind == kinds.end()) return no_such_path(reply, std::string(kRows) + what);
  const auto page = page_of(request);
  if (!page) return reply->fail(page.error());
  const auto rest = [](const Listing& sent) {
    const auto total = sent.total();
    const json next = sent.more() ? json(sent.last()) : json(), all = total ? json(*total) : json();
    return "],\"next\":" + next.dump() + ",\"total\":" + all.dump() + "}";
  };
  std::make_shared<Listing>(gateway_, ListRequest{kind->second, {}, page->after}, page->limit,
                            Listing::Shape{"{\"rows\":[", rows_json, rest, page->filter, page->counts}, std::move(reply))
      ->request_page();
}

}  // namespace shoal::scheduler::web
