#include "scheduler/cli/verbs/job.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/list.h"
#include "scheduler/cli/verbs/logs.h"
#include "scheduler/cli/verbs/submit.h"
#include "scheduler/cli/verbs/submitting.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/web/entrypoint.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::cli {

using actors::JobRow;
using actors::JobState;
using actors::Method;
using nlohmann::json;

namespace {

int by_outcome(JobState state) { return state == JobState::kFailed || state == JobState::kStopped ? kFailed : kOk; }

const std::string& name_of(const JobRow& row, const std::string& otherwise) {
  return row.submission.id.empty() ? otherwise : row.submission.id;
}

void print_job(const Common& common, const JobRow& row, const std::string& id) {
  if (common.json) {
    auto out = job_details(row);
    out["schema"] = "shoal.job/1";
    print_json(out);
    return;
  }
  print(stdout, "Job {} is {}.\n", name_of(row, id), to_string(row.state));
  if (!row.pending_reason.empty()) print(stdout, "{}\n", row.pending_reason);
  if (row.cause) print(stderr, "{}\n", Lines{row.cause->to_string()});
}

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_-./=:,@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Result<json> object_of(const std::string& text, const char* what) {
  auto out = json::parse(text.empty() ? "{}" : text, nullptr, false);
  if (!out.is_object()) return fail(invalid_argument(fmt::format("{} is a JSON object", what)));
  return out;
}

// `names_folder` is set when the caller named a working_dir.
Result<std::string> request_of(const Common& common, const JobOptions& o, bool& names_folder) {
  std::string env_text = o.runtime_env_json;
  if (!o.runtime_env_file.empty()) {
    std::ifstream file(o.runtime_env_file);
    if (!file) return fail(not_found("no file " + o.runtime_env_file));
    std::ostringstream text;
    text << file.rdbuf();
    env_text = text.str();
    // A file that is not JSON is taken as YAML, as in Ray, and Python converts it.
    if (!json::accept(env_text)) {
      SHOAL_TRY(env_text, run_python(common, {"yaml", o.runtime_env_file}));
    }
  }
  SHOAL_TRY(json env, object_of(env_text, "a runtime_env"));
  if (!o.working_dir.empty()) env["working_dir"] = o.working_dir;
  names_folder = env.contains("working_dir");
  if (!names_folder) env["working_dir"] = o.cwd;
  const auto& folder = env["working_dir"];
  if (folder.is_string() && folder.get<std::string>().find("://") == std::string::npos) {
    env["working_dir"] = (std::filesystem::path(o.cwd) / folder.get<std::string>()).lexically_normal().string();
  }
  // A single word is a whole command line for the shell. Several words are its arguments, each of which is quoted.
  std::string entrypoint = o.words.size() == 1 ? o.words[0] : "";
  for (std::size_t i = 0; o.words.size() > 1 && i < o.words.size(); ++i) entrypoint += (i ? " " : "") + quoted(o.words[i]);
  SHOAL_TRY(const json metadata, object_of(o.metadata_json, "--metadata-json"));
  SHOAL_TRY(const json resources, object_of(o.resources_json, "--entrypoint-resources"));
  const json request = {{"entrypoint", entrypoint},      {"submission_id", o.submission_id},  {"runtime_env", env},
                        {"metadata", metadata},          {"entrypoint_num_cpus", o.num_cpus}, {"entrypoint_num_gpus", o.num_gpus},
                        {"entrypoint_memory", o.memory}, {"entrypoint_resources", resources}};
  return request.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Prints the job's output until its end and returns the exit code.
int follow(const Common& common, ClusterConnection& cluster, const JobRow& job, const std::string& id) {
  const auto row = follow_job(common, *cluster.context, *cluster.head, job.id);
  if (!row) return failed(common, row.error());
  if (!*row) {
    print(stderr, "shoal: job {} goes on; see it with: shoal job logs -f {}\n", id, id);
    return 130;
  }
  print_job(common, **row, id);
  return by_outcome((*row)->state);
}

Result<JobId> named_job(const std::vector<JobRow>& jobs, const std::string& id) {
  std::vector<JobId> found;
  for (const JobRow& j : jobs) {
    if (is_job(j, id)) return j.id;
    if (to_string(j.id).starts_with(id)) found.push_back(j.id);
  }
  if (found.empty()) return fail(not_found("no job " + id).with_hint("see shoal job list"));
  if (found.size() > 1) return fail(invalid_argument(fmt::format("{} jobs have an id that begins with {}", found.size(), id)));
  return found.front();
}

}  // namespace

Result<JobRow> find_job(Client& head, const std::string& id) {
  SHOAL_TRY(const auto jobs, head.list(actors::ListRequest::What::kJobs));
  SHOAL_TRY(const auto found, named_job(jobs.jobs, id));
  return head.request_for<JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{found}));
}

int job_submit(const Common& common, const JobOptions& o) {
  bool names_folder = false;
  const auto text = request_of(common, o, names_folder);
  if (!text) return failed(common, text.error());
  const auto request = web::parse_job_request(*text);
  if (!request) return failed(common, request.error());
  auto spec = web::job_spec(*request, {common.python, common.environment.get("PATH"), common.environment.get("PYTHONPATH"), o.cwd});
  if (!spec) return failed(common, spec.error());
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  if (cluster->over_hosts && names_folder) {
    const std::string store = std::filesystem::path(cluster->logs).parent_path() / "files";
    const auto shipped = ship_folder(common, store, *cluster->head, request->submission.runtime_env, *spec);
    if (!shipped) return failed(common, shipped.error());
  }
  const auto job = cluster->head->request_for<actors::JobRef>(Method::kSubmitJob, to_bytes(*spec));
  if (!job) return failed(common, job.error());
  StdinWarning stdin_warning;
  stdin_warning.check();
  const std::string id = o.submission_id.empty() ? to_string(job->job) : o.submission_id;
  if (!o.wait) {
    if (common.json) {
      print_json({{"schema", "shoal.job/1"}, {"job_id", to_string(job->job)}, {"submission_id", id}});
    } else {
      print(stdout, "Job {} was submitted.\n", id);
    }
    return kOk;
  }
  print(stderr, "shoal: job {} was submitted\n", id);
  JobRow row;
  row.id = job->job;
  const int code = follow(common, *cluster, row, id);
  stdin_warning.check();
  return code;
}

int job_status(const Common& common, const JobOptions& o) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto row = find_job(*cluster->head, o.id);
  if (!row) return failed(common, row.error());
  print_job(common, *row, o.id);
  return by_outcome(row->state);
}

int job_logs(const Common& common, const JobOptions& o) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto row = find_job(*cluster->head, o.id);
  if (!row) return failed(common, row.error());
  if (o.follow && !actors::ended(row->state)) return follow(common, *cluster, *row, o.id);
  LogsOptions options;
  options.id = to_string(row->id);
  return logs(common, options);
}

int job_stop(const Common& common, const JobOptions& o) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  auto row = find_job(*cluster->head, o.id);
  if (!row) return failed(common, row.error());
  if (!actors::ended(row->state)) {
    auto stop = cluster->head->request(Method::kStopJob, to_bytes(actors::StopJob{row->id, false}));
    if (!stop && cluster->head->is_back()) stop = cluster->head->request(Method::kStopJob, to_bytes(actors::StopJob{row->id, false}));
    if (!stop) return failed(common, stop.error());
    const auto end = cluster->context->clock->now() + std::chrono::seconds(30);
    while (o.wait && row && !actors::ended(row->state) && cluster->context->clock->now() < end) {
      cluster->context->run_until([] { return false; }, std::chrono::milliseconds(20));
      row = find_job(*cluster->head, o.id);
      if (!row && cluster->head->is_back()) row = find_job(*cluster->head, o.id);
    }
    if (!row) return failed(common, row.error());
    if (o.wait && !actors::ended(row->state)) return failed(common, deadline_exceeded("job " + o.id + " does not end"));
  }
  print_job(common, *row, o.id);
  return kOk;
}

int job_delete(const Common& common, const JobOptions& o) {
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto row = find_job(*cluster->head, o.id);
  if (!row) return failed(common, row.error());
  const auto gone = cluster->head->request(Method::kDeleteJob, to_bytes(actors::JobRef{row->id}));
  if (!gone) return failed(common, gone.error());
  if (common.json) {
    print_json({{"schema", "shoal.job/1"}, {"submission_id", o.id}, {"deleted", true}});
  } else {
    print(stdout, "Job {} is forgotten.\n", o.id);
  }
  return kOk;
}

namespace {

void add_job_submit(CommandLine& line, CLI::App* group) {
  auto& options = line.own<JobOptions>();
  auto* verb = line.add_verb("submit", "Run a shell command line (-- CMD) as a job, and show its output", group);
  line.takes_command(verb);
  verb->add_option("--submission-id", options.submission_id, "The job's submission id (default: a new one)");
  verb->add_option("--working-dir", options.working_dir, "Folder in which the job runs (default: the current one)");
  verb->add_option("--runtime-env", options.runtime_env_file, "YAML or JSON file with env_vars, working_dir, pip, py_modules and excludes");
  verb->add_option("--runtime-env-json", options.runtime_env_json, "The same as --runtime-env, as JSON text");
  verb->add_option("--metadata-json", options.metadata_json, "JSON object of texts by name, which lists show with the job");
  verb->add_option("--entrypoint-num-cpus", options.num_cpus, "CPUs of the job's process (default: 0)")->check(amount());
  verb->add_option("--entrypoint-num-gpus", options.num_gpus, "GPUs of the job's process")->check(amount());
  verb->add_option("--entrypoint-memory", options.memory, "Bytes of memory of the job's process")->check(amount());
  verb->add_option("--entrypoint-resources", options.resources_json,
                   "JSON object of other resources of the job's process: amounts by name");
  verb->add_flag_callback("--no-wait", [&options] { options.wait = false; }, "Do not wait for the job's end");
  line.on_run(verb, [&line, &options](const Common& common) {
    if (line.command().empty()) throw CLI::ValidationError("say what to run: shoal job submit [OPTIONS] -- CMD");
    options.words = line.command();
    options.cwd = std::filesystem::current_path();
    return job_submit(common, options);
  });
}

using JobAction = int (*)(const Common&, const JobOptions&);

// Adds a verb for one job.
CLI::App* add_job_verb(CommandLine& line, CLI::App* group, const char* name, const char* about, JobOptions& options, JobAction action) {
  auto* verb = line.add_verb(name, about, group);
  verb->add_option("id", options.id, "The job's submission id or id; `shoal list jobs` shows both")->required()->check(not_empty());
  line.on_run(verb, [&options, action](const Common& common) { return action(common, options); });
  return verb;
}

}  // namespace

void add_job(CommandLine& line) {
  auto* group = line.add_group("job", "Commands for jobs: submit, status, logs, stop, list, delete");
  add_job_submit(line, group);
  auto& options = line.own<JobOptions>();
  add_job_verb(line, group, "status", "Show the state of a job; exits with 1 if it failed or was stopped", options, job_status);
  add_job_verb(line, group, "logs", "Show the output of a job", options, job_logs)
      ->add_flag("-f,--follow", options.follow, "Also show later output, as it is printed");
  add_job_verb(line, group, "stop", "Stop a job", options, job_stop)
      ->add_flag_callback("--no-wait", [&options] { options.wait = false; }, "Do not wait for the job's end");
  add_job_verb(line, group, "delete", "Delete the record of a job that has ended", options, job_delete);
  line.on_run(line.add_verb("list", "List all jobs that the cluster remembers", group), [](const Common& common) {
    ListOptions jobs;
    jobs.what = "jobs";
    return list(common, jobs);
  });
}

}  // namespace shoal::scheduler::cli
