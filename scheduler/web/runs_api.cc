#include "scheduler/web/runs_api.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>

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

constexpr std::size_t kRows = 100, kMostRows = 10'000;  // rows of a list of runs: the default, and the most

Result<std::size_t> number_of(const HttpRequest& request, const char* name, std::size_t otherwise, std::size_t most) {
  const auto at = request.query.find(name);
  if (at == request.query.end()) return otherwise;
  std::size_t out = 0;
  const auto [end, error] = std::from_chars(at->second.data(), at->second.data() + at->second.size(), out);
  if (error == std::errc() && end == at->second.data() + at->second.size() && out <= most) return out;
  return fail(invalid_argument(fmt::format("{} is a number from 0 to {}, not '{}'", name, most, at->second)));
}

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
  // Browsers ignore frame-ancestors in the page's own policy, so the header adds it.
  return std::string(html.substr(from, html.find('"', from) - from)) + "; frame-ancestors 'none'";
}

std::string page_with(const json& snapshot) {
  // Only ASCII, and no '<'. So no text of a run can end the page's data element, even if a browser assumes another encoding.
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

  // The runs from `offset` on. Only these are read.
  json list(std::size_t offset, std::size_t limit, std::int64_t now_us) {
    json rows = json::array();
    const auto& all = found(now_us);
    for (std::size_t i = std::min(offset, all.size()); i < all.size() && rows.size() < limit; ++i) {
      if (const Listed* const run = listed(all[i].name, all[i].path, now_us)) rows.push_back(run->row);
    }
    if (listed_.size() > 2 * options_.most_runs) listed_.clear();  // drops the rows of runs that have disappeared
    return {{"rows", std::move(rows)}, {"total", all.size()}, {"offset", offset}};
  }

  Result<json> view(const std::string& name, runs::ViewRequest request, std::int64_t now_us) {
    SHOAL_TRY(Opened* const run, open(name, now_us));
    if (run->read_us == 0 || now_us - run->read_us >= options_.fresh_us || now_us < run->read_us) {
      run->reader.poll(now_us);
      run->verdicts = verdicts_of(run->reader.run(), now_us);
      run->read_us = now_us;
    }
    // A cursor of another reading, such as of a folder that was made again, gets everything.
    if (const auto cursor = request.query.find("cursor"); cursor != request.query.end()) {
      cursor->second = cursor->second.starts_with(run->reading) ? cursor->second.substr(run->reading.size()) : "";
    }
    auto out = runs::view_of(run->reader.run(), run->verdicts, request, now_us);
    if (out) {
      if (const auto cursor = out->find("cursor"); cursor != out->end() && *cursor != "")
        *cursor = run->reading + cursor->get<std::string>();
    }
    return out;
  }

 private:
  // A folder's identity, which another one at the same path does not have.
  using Identity = std::pair<dev_t, ino_t>;
  static Identity identity_of(const std::string& path) {
    struct stat seen {};
    return stat(path.c_str(), &seen) == 0 ? Identity(seen.st_dev, seen.st_ino) : Identity();
  }
  static std::int64_t changed_ns(const std::string& path) {
    struct stat seen {};
    return stat(path.c_str(), &seen) == 0 ? seen.st_mtim.tv_sec * std::int64_t{1'000'000'000} + seen.st_mtim.tv_nsec : 0;
  }

  struct Opened {
    runs::RunReader reader;
    std::string path, reading;
    Identity identity;
    runs::Verdicts verdicts = json::array();
    std::int64_t read_us = 0;
    std::uint64_t used = 0;
  };

  // A row of the list, and what it was read from.
  struct Listed {
    Identity identity;
    std::int64_t changed_ns = 0, processes_ns = 0;  // times at which entries came or went, such as exit.json
    std::int64_t beat_ns = 0;                       // the latest beat of any process
    json row = {};
    runs::RunState state = runs::RunState::kRunning;
    std::int64_t checked_us = 0;
  };
  // The run's row in the list. An unchanged folder is read again only after fresh_list_us, if the run goes on or has a new beat. Null if
  // the run has disappeared.
  const Listed* listed(const std::string& name, const std::string& path, std::int64_t now_us) {
    Listed& known = listed_[name];
    const auto identity = identity_of(path);
    const auto changed = changed_ns(path), processes = changed_ns(path + "/processes");
    const bool same = known.checked_us != 0 && known.identity == identity && known.changed_ns == changed && known.processes_ns == processes;
    const bool fresh = now_us >= known.checked_us && now_us - known.checked_us < options_.fresh_list_us;
    if (same && (fresh || known.state == runs::RunState::kEnded)) return &known;
    const auto beat = newest_beat_ns(path);
    const bool beats = known.state == runs::RunState::kRunning || known.beat_ns != beat;
    known.checked_us = now_us;
    if (same && !beats) return &known;
    auto opened = runs::RunReader::open(path, small_reader());
    if (!opened) {
      listed_.erase(name);
      return nullptr;
    }
    opened->poll(now_us);
    const auto& run = opened->run();
    known = {identity, changed, processes, beat, row_of(run, verdicts_of(run, now_us), now_us), run.state, now_us};
    known.row["name"] = name;
    return &known;
  }
  // When a process of the run last wrote its live page.
  static std::int64_t newest_beat_ns(const std::string& path) {
    std::int64_t newest = 0;
    std::size_t left = small_reader().most_processes;
    std::error_code gone;
    for (const auto& process : fs::directory_iterator(path + "/processes", gone)) {
      if (left-- == 0) break;
      newest = std::max(newest, changed_ns(process.path().string() + "/live"));
    }
    return newest;
  }

  // For a list, which needs only the last rows of a run.
  static runs::ReaderOptions small_reader() {
    runs::ReaderOptions out;
    out.most_processes = 256;
    out.most_rows = 300;
    out.most_rows_together = 20'000;
    out.most_detailed = 1;
    out.tail_bytes = 128 << 10;
    return out;
  }

  // The newest first. A run hides an older one of the same name.
  const std::vector<runs::ListedRun>& found(std::int64_t now_us) {
    if (!options_.run.empty()) {
      if (found_.empty()) found_.push_back({name_of(options_.run), options_.run});
      return found_;
    }
    std::vector<std::int64_t> changed;  // so that a run that came or went is seen at once
    for (const auto& folder : options_.folders) changed.push_back(changed_ns(folder));
    if (changed == folders_ns_ && now_us >= found_us_ && now_us - found_us_ < options_.fresh_list_us) return found_;
    found_ = runs::list_runs(options_.folders, options_.most_runs);
    std::set<std::string> names;
    std::erase_if(found_, [&](const runs::ListedRun& run) { return !names.insert(run.name).second; });
    folders_ns_ = std::move(changed);
    found_us_ = now_us;
    return found_;
  }
  static std::string name_of(const std::string& path) {
    const fs::path whole = fs::weakly_canonical(path);
    return whole.filename().empty() ? whole.parent_path().filename() : whole.filename();
  }

  Result<Opened*> open(const std::string& name, std::int64_t now_us) {
    ++uses_;
    if (const auto at = open_.find(name); at != open_.end()) {
      if (at->second.identity == identity_of(at->second.path)) {
        at->second.used = uses_;
        return &at->second;
      }
      open_.erase(at);
    }
    // Accepts only the name of a listed run, so that a request can read no other path.
    const auto& all = found(now_us);
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& run) { return run.name == name; });
    if (at == all.end()) return fail(not_found("there is no run '" + name + "'").with_hint("`shoal ls` lists the runs"));
    const auto identity = identity_of(at->path);
    SHOAL_TRY(auto reader, runs::RunReader::open(at->path));
    if (open_.size() >= options_.most_open) {
      open_.erase(std::min_element(open_.begin(), open_.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    }
    Opened opened{std::move(reader), at->path, std::to_string(now_us) + "-", identity};
    opened.used = uses_;
    return &open_.emplace(name, std::move(opened)).first->second;
  }

  const Options options_;
  std::map<std::string, Opened> open_;
  std::map<std::string, Listed> listed_;
  std::vector<runs::ListedRun> found_;
  std::vector<std::int64_t> folders_ns_;
  std::int64_t found_us_ = 0;
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
  const auto offset = number_of(request, "offset", 0, kMostRows), limit = number_of(request, "limit", kRows, kMostRows);
  if (list && (!offset || !limit)) {
    reply->fail((offset ? limit : offset).error());
    return true;
  }
  struct Answer {
    Result<void> result;
    std::string text;
  };
  auto answer = std::make_shared<Answer>();
  const std::int64_t now_us = options_.now_us();
  const auto work = [folders = folders_, answer, list, name, wanted, offset, limit, now_us] {
    if (list) {
      answer->text = text_of(folders->list(*offset, *limit, now_us)) + "\n";
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
