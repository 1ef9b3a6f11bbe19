#include "scheduler/web/runs_api.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/core/printable.h"
#include "runtime/core/version.h"
#include "scheduler/runs/run_list.h"
#include "scheduler/runs/verdict.h"
#include "scheduler/web/page_data.h"

namespace shoal::scheduler::web {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view kAbout = "/api/v1/about", kRuns = "/api/v1/runs";
constexpr std::string_view kPolicyBegin = "http-equiv=\"Content-Security-Policy\" content=\"", kSnapshotPlace = "<!--snapshot-->";

std::string text_of(const json& value) { return printable_json(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

// The state and speed of a run in a list, without its rows: reading all runs whole would take long.
json row_of(const runs::Run& run, const runs::Verdicts& verdicts, std::int64_t now_us) {
  const auto summary = runs::view_of(run, verdicts, {"summary"}, now_us);
  json row = {{"name", run.name}, {"state", runs::state_text(run.state)}, {"sentence", ""}};
  if (!summary) return row;
  for (const char* key : {"step", "world", "last"}) row[key] = (*summary)[key];
  if (!(*summary)["verdicts"].empty()) row["sentence"] = (*summary)["verdicts"][0].value("sentence", "");
  if (run.end && run.end->exit_code != 0) row["state"] = "failed";
  return row;
}

}  // namespace

std::string_view page_html() { return {kPageHtml, sizeof kPageHtml - 1}; }

std::string page_policy() {
  const std::string_view html = page_html();
  const auto begin = html.find(kPolicyBegin);
  if (begin == std::string_view::npos) return "default-src 'none'";
  const auto from = begin + kPolicyBegin.size();
  // A page cannot say this of itself.
  return std::string(html.substr(from, html.find('"', from) - from)) + "; frame-ancestors 'none'";
}

std::string page_with(const json& snapshot) {
  // Only ASCII, and no '<': no text of a run can end the element, whatever the file's encoding is taken for.
  std::string data;
  for (const char c : snapshot.dump(-1, ' ', true, json::error_handler_t::replace)) c == '<' ? data += "\\u003c" : data += c;
  std::string out(page_html());
  const auto at = out.find(kSnapshotPlace);
  return out.replace(at, kSnapshotPlace.size(), "<script id=\"snapshot\" type=\"application/json\">" + data + "</script>");
}

runs::Verdicts verdicts_of(const runs::Run& run, std::int64_t now_us) {
  json out = json::array();
  for (const auto& verdict : runs::diagnose(run, now_us)) out.push_back(runs::to_json(verdict));
  return out;
}

// --- folders, read beside the loop

class RunsApi::Folders {
 public:
  explicit Folders(const Options& options) : options_(options) {}

  json list(std::int64_t now_us) {
    json rows = json::array();
    std::map<std::string, Listed> listed;
    for (const auto& [name, path] : found()) {
      const auto before = listed_.find(name);
      Listed entry{changed(path)};
      // A run that has ended stays as it is; others are read again after a while.
      if (before != listed_.end() && before->second.changed == entry.changed &&
          (before->second.ended || (now_us >= before->second.read_us && now_us - before->second.read_us < options_.fresh_list_us))) {
        entry = before->second;
      } else {
        auto opened = runs::RunReader::open(path, small_reader());
        if (!opened) continue;
        opened->poll(now_us);
        entry.row = row_of(opened->run(), verdicts_of(opened->run(), now_us), now_us);
        entry.row["name"] = name;
        entry.ended = opened->run().state == runs::RunState::kEnded;
        entry.read_us = now_us;
      }
      rows.push_back(entry.row);
      listed.emplace(name, std::move(entry));
    }
    listed_ = std::move(listed);
    return {{"rows", rows}, {"total", rows.size()}};
  }

  Result<json> view(const std::string& name, const runs::ViewRequest& request, std::int64_t now_us) {
    SHOAL_TRY(Opened* const run, open(name));
    if (run->read_us == 0 || now_us - run->read_us >= options_.fresh_us || now_us < run->read_us) {
      run->reader.poll(now_us);
      run->verdicts = verdicts_of(run->reader.run(), now_us);
      run->read_us = now_us;
    }
    return runs::view_of(run->reader.run(), run->verdicts, request, now_us);
  }

 private:
  struct Opened {
    runs::RunReader reader;
    runs::Verdicts verdicts;
    std::int64_t read_us = 0;
    std::uint64_t used = 0;
  };

  struct Listed {
    std::pair<fs::file_time_type, fs::file_time_type> changed;
    json row = {};
    bool ended = false;
    std::int64_t read_us = 0;
  };
  // When the run's folder or that of its processes last got an entry.
  static std::pair<fs::file_time_type, fs::file_time_type> changed(const fs::path& run) {
    std::error_code gone;
    const auto folder = fs::last_write_time(run, gone), processes = fs::last_write_time(run / "processes", gone);
    return {folder, processes};
  }

  // A list needs a run's end only.
  static runs::ReaderOptions small_reader() {
    runs::ReaderOptions out;
    out.most_processes = 256;
    out.most_rows = 300;
    out.most_rows_together = 20'000;
    out.most_detailed = 1;
    return out;
  }

  // The runs by name, the newest first. It hides an older one of the same name.
  std::vector<std::pair<std::string, std::string>> found() const {
    if (!options_.run.empty()) return {{name_of(options_.run), options_.run}};
    std::vector<std::pair<std::string, std::string>> out;
    std::set<std::string> names;
    for (const auto& listed : runs::list_runs(options_.folders, options_.most_runs)) {
      if (names.insert(listed.name).second) out.emplace_back(listed.name, listed.path);
    }
    return out;
  }
  static std::string name_of(const std::string& path) {
    const fs::path whole = fs::weakly_canonical(path);
    return whole.filename().empty() ? whole.parent_path().filename() : whole.filename();
  }

  Result<Opened*> open(const std::string& name) {
    ++uses_;
    if (const auto at = open_.find(name); at != open_.end()) {
      at->second.used = uses_;
      return &at->second;
    }
    // Only the name of a run that is found: no other path can be read.
    const auto all = found();
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& run) { return run.first == name; });
    if (at == all.end()) return fail(not_found("there is no run '" + name + "'").with_hint("`shoal ls` lists the runs"));
    SHOAL_TRY(auto reader, runs::RunReader::open(at->second));
    if (open_.size() >= options_.most_open) {
      open_.erase(std::min_element(open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    return &open_.emplace(name, Opened{std::move(reader), json::array(), 0, uses_}).first->second;
  }

  const Options options_;
  std::map<std::string, Opened> open_;
  std::map<std::string, Listed> listed_;
  std::uint64_t uses_ = 0;
};

// --- HTTP

RunsApi::RunsApi(Options options) : options_(std::move(options)), folders_(std::make_shared<Folders>(options_)) {}
RunsApi::~RunsApi() = default;

bool RunsApi::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const std::string& path = request.path;
  const bool list = path == kRuns || path == std::string(kRuns) + "/";
  const bool view = !list && path.starts_with(std::string(kRuns) + "/");
  if (path != "/" && path != kAbout && !list && !view) return false;
  if (request.method != "GET") {
    reply->send(405, error_body(invalid_argument("this path does not support that method")));
    return true;
  }
  if (path == "/") {
    reply->send_text("text/html; charset=utf-8", std::string(page_html()), page_policy());
    return true;
  }
  if (path == kAbout) {
    reply->send(200, {{"cluster", options_.cluster}, {"version", kVersion}, {"session", options_.session}});
    return true;
  }
  // A run's name may contain any character but a slash.
  const std::string rest = view ? path.substr(kRuns.size() + 1) : "";
  const auto slash = rest.find('/');
  const std::string name = rest.substr(0, slash);
  const runs::ViewRequest wanted{slash == std::string::npos ? "summary" : rest.substr(slash + 1), request.query};
  struct Answer {
    Result<void> result;
    std::string text;
  };
  auto answer = std::make_shared<Answer>();
  const std::int64_t now_us = options_.now_us();
  const auto work = [folders = folders_, answer, list, name, wanted, now_us] {
    if (list) {
      answer->text = text_of(folders->list(now_us)) + "\n";
    } else if (auto found = folders->view(name, wanted, now_us)) {
      answer->text = text_of(*found) + "\n";
    } else {
      answer->result = fail(found.error());
    }
  };
  const auto then = [answer, reply] {
    answer->result ? reply->send_text("application/json", answer->text) : reply->fail(answer->result.error());
  };
  if (options_.aside) {
    options_.aside(work, then);
  } else {
    work();
    then();
  }
  return true;
}

}  // namespace shoal::scheduler::web
