// Runs that do not go on: ranks that are gone, silent, or do not come to where the others wait.
#include <algorithm>
#include <csignal>
#include <limits>

#include <fmt/format.h>

#include "scheduler/runs/findings.h"
#include "scheduler/runs/statistics.h"

namespace shoal::scheduler::runs {

using runtime::Activity;
using runtime::StepRow;

namespace {

// A rank is stuck once an activity lasts this long, and this many times as long as in its longest step.
constexpr double kStuckUs = 650'000;  // a page shows an activity up to 250 ms later, with the next beat
constexpr double kTimesLongest = 5;
// Longer limits: evaluations run in the program between steps, an epoch's begin starts the loader's workers, and a save waits for the disk.
constexpr double kStoppedAfterUs = 120'000'000;
constexpr double kStuckElsewhereUs = 10'000'000, kStuckLoaderUs = 5'000'000, kStuckSaveUs = 30'000'000;
// The first steps, also those after a change of workers, compile, allocate and connect.
constexpr std::uint64_t kFirstSteps = 3;
constexpr double kStuckFirstUs = 120'000'000;
constexpr int kLeastPolls = 2;                // polls that have to agree, since a clock that jumps makes an activity look long for one poll
constexpr std::int64_t kStoppedUs = 900'000;  // without a beat on this host: a signal has stopped the process, or it gets no CPU
constexpr std::size_t kMostNames = 4;

const char* activity_text(Activity activity) {
  switch (activity) {
    case Activity::kElsewhere:
      return "in the program, outside of the training step";
    case Activity::kLoader:
      return "in the data loader";
    case Activity::kForward:
      return "in forward";
    case Activity::kBackward:
      return "in backward";
    case Activity::kOptimizer:
      return "in the optimizer";
    case Activity::kSave:
      return "in a checkpoint";
    case Activity::kGather:
      return "in the wait for parameters";
    case Activity::kReduce:
      return "in the wait for gradients";
    case Activity::kWindow:
      return "in the wait for readers of its parameters";
    case Activity::kSync:
      return "in a wait for the other ranks";
    case Activity::kEnded:
      break;
  }
  return "behind its end";
}

std::string where_text(const Process& p) {
  std::string out = activity_text(p.live->activity);
  const auto unit = p.unit_name(p.live->unit);
  return unit.empty() ? out : out + " of " + unit;
}

// The longest time that the process spent at the activity in one step, by its rows, without the first steps.
double longest_us(const Process& p, Activity activity) {
  double out = 0;
  for (const auto& row : p.steps.rows) {
    if (row.step <= kFirstSteps) continue;
    const auto us = is_wait(activity) ? row.exposed_us() : row.in(activity);
    // A row of several steps has only their sum; its longest step bounds the activity.
    out = std::max(out, static_cast<double>(row.steps == 1 ? us : std::min(us, row.longest_us)));
  }
  return out;
}

bool in_first_steps(const Process& p) {
  if (p.live->step < kFirstSteps) return true;
  const auto& rows = p.steps.rows;
  if (rows.empty()) return false;  // recording has stopped
  const auto& before = rows[rows.size() - std::min<std::size_t>(rows.size(), kFirstSteps)];
  return before.generation < p.live->generation;
}

double limit_us(const Process& p) {
  double least = kStuckUs;
  if (in_first_steps(p)) return kStuckFirstUs;
  if (p.live->activity == Activity::kElsewhere) least = kStuckElsewhereUs;
  if (p.live->activity == Activity::kLoader) least = kStuckLoaderUs;
  if (p.live->activity == Activity::kSave) least = kStuckSaveUs;
  return std::max(least, kTimesLongest * longest_us(p, p.live->activity));
}

bool is_alive(const Rank& r) { return r.process->life == Life::kAlive && r.process->live.has_value(); }
bool is_waiting(const Rank& r) { return is_alive(r) && is_wait(r.process->live->activity); }

// The longest wait of all ranks in one step: that of the rank which waited least.
double longest_wait_us(const StepTable& table) {
  double out = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    std::int64_t least = table.rows[0][i]->exposed_us();
    for (const auto& rows : table.rows) least = std::min(least, rows[i]->exposed_us());
    out = std::max(out, static_cast<double>(least));
  }
  return out;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < kMostNames; ++i) out += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kMostNames ? fmt::format("{} and {} more", out, names.size() - kMostNames) : out;
}

// "3 ranks wait (1, 2, 5)", with the times.
void add_waits(const std::vector<Rank>& ranks, std::vector<std::string>& evidence) {
  std::vector<std::string> names;
  double longest = 0;
  for (const auto& r : ranks) {
    if (!is_waiting(r)) continue;
    names.push_back(std::to_string(r.rank));
    longest = std::max(longest, held_us(*r.process));
  }
  if (names.size() == 1) evidence.push_back(fmt::format("rank {} waits, for {}", names[0], duration_text(longest)));
  if (names.size() > 1) evidence.push_back(fmt::format("ranks {} wait, for up to {}", joined(names), duration_text(longest)));
}

Verdict verdict_of(const Rank& r, const std::vector<Rank>& ranks, const char* code, Health state) {
  Verdict v;
  v.code = code, v.state = state;
  v.rank = r.rank, v.host = host_of(r);
  const bool trains = r.process->live || !r.process->steps.rows.empty();
  v.since_step = trains ? reached_step(r, ranks) + 1 : 0;
  return v;
}

// True if other ranks depended on this one: it was still alive when they began.
bool was_there(const Rank& r, const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const Rank& other) {
    if (other.rank == r.rank || !other.process->live) return false;
    return other.process->live->start_us <= newest_us(*r.process);
  });
}

// The name of the signal with which a user or scheduler has ended the run; "" for another end.
const char* ended_by(const Run& run) {
  const int code = run.end ? run.end->exit_code : 0;
  return code == 128 + SIGINT ? "SIGINT" : code == 128 + SIGTERM ? "SIGTERM" : code == 128 + SIGHUP ? "SIGHUP" : "";
}

// The last trouble that had stopped the run when it ended, as `shoal run` has recorded it; "": none.
std::string before_the_end(const Run& run) {
  const Event* last = nullptr;
  for (const auto& p : run.processes)
    for (const auto& e : p.events.rows)
      if (e.kind == "verdict" &&
          (e.fields.value("state", nlohmann::json()) == "stopped" || e.fields.value("code", nlohmann::json()) == "hang") &&
          (last == nullptr || e.t_us > last->t_us))
        last = &e;
  if (last == nullptr) return "";
  const auto sentence = last->fields.find("sentence");
  return sentence != last->fields.end() && sentence->is_string() ? sentence->get<std::string>() : "";
}

bool add_dead(const Run& run, const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  if (*ended_by(run) != '\0') return false;  // the signal ends the ranks, too
  // Reports the rank that died first, since it may have caused the other deaths.
  std::vector<Rank> dead;
  for (const auto& r : ranks)
    if (r.process->life == Life::kGone && was_there(r, ranks)) dead.push_back(r);
  if (dead.empty() || run.state == RunState::kLost) return false;
  const auto& first = *std::min_element(dead.begin(), dead.end(),
                                        [](const Rank& a, const Rank& b) { return newest_us(*a.process) < newest_us(*b.process); });
  // The run's record names another rank as the first to die: the cluster has ended this one afterwards.
  if (run.end && run.end->rank && run.end->rank != first.rank) return false;
  auto v = verdict_of(first, ranks, "dead_rank", run.state == RunState::kRunning ? Health::kStopped : Health::kFailed);
  v.since_us = newest_us(*first.process);
  v.sentence = fmt::format("{} is dead since step {}: its process {} is gone without an end", name_of(first, ranks), v.since_step,
                           first.process->live ? first.process->live->pid : first.process->facts.pid);
  v.evidence.push_back(fmt::format("last beat {} ago", duration_text(static_cast<double>(first.process->quiet_us))));
  if (first.process->live) v.evidence.push_back("it was " + where_text(*first.process));
  add_waits(ranks, v.evidence);
  if (dead.size() > 1) v.evidence.push_back(fmt::format("{} ranks are dead", dead.size()));
  if (run.end && !run.end->cause.empty()) v.evidence.push_back(run.end->cause);
  const auto host = host_of(first);
  v.next = fmt::format("journalctl -k --since -10min | grep -i 'killed process'{}",
                       first.process->on_this_host || host.empty() ? "" : "  # on host " + shell_word(host));
  out.push_back(std::move(v));
  return true;
}

bool add_dead_driver(const Run& run, std::vector<Verdict>& out) {
  for (const auto& p : run.processes) {
    if (p.facts.role != "driver" || p.life != Life::kGone || run.state != RunState::kRunning) continue;
    const bool replaced = std::any_of(run.processes.begin(), run.processes.end(), [&](const Process& other) {
      return other.facts.role == "driver" && other.life != Life::kGone && newest_us(other) >= newest_us(p);
    });
    if (replaced) continue;
    Verdict v;
    v.code = "dead_driver", v.state = Health::kStopped, v.host = p.facts.host, v.since_us = newest_us(p);
    v.sentence = fmt::format("the driver's process {} is gone without an end", p.facts.pid);
    v.evidence.push_back(fmt::format("last sample {} ago", duration_text(static_cast<double>(p.quiet_us))));
    v.next = "shoal status";
    out.push_back(std::move(v));
    return true;
  }
  return false;
}

bool add_silent(const Run& run, const std::vector<Rank>& ranks, std::int64_t now_us, std::vector<Verdict>& out) {
  std::vector<Rank> silent;
  const bool others_wait = std::any_of(ranks.begin(), ranks.end(), [&](const Rank& r) {
    return is_waiting(r) && r.process->held_polls >= kLeastPolls && held_us(*r.process) >= kStuckUs;
  });
  for (const auto& r : ranks) {
    const bool stopped =
        r.process->on_this_host && r.process->life == Life::kAlive && r.process->live && r.process->quiet_us > kStoppedUs && others_wait;
    if (r.process->life == Life::kSilent || stopped) silent.push_back(r);
  }
  if (silent.empty() || run.state != RunState::kRunning) return false;
  const auto& first = *std::max_element(silent.begin(), silent.end(),
                                        [](const Rank& a, const Rank& b) { return a.process->quiet_us < b.process->quiet_us; });
  auto v = verdict_of(first, ranks, "silent_rank", Health::kStopped);
  v.since_us = now_us - first.process->quiet_us;
  v.sentence = fmt::format(
      "{} has been silent for {}, since step {}: {}", name_of(first, ranks), duration_text(static_cast<double>(first.process->quiet_us)),
      v.since_step,
      first.process->on_this_host ? "a signal has stopped its process, or it gets no CPU" : "its host or the network does not answer");
  v.evidence.push_back("it was " + where_text(*first.process));
  add_waits(ranks, v.evidence);
  std::vector<std::string> names;
  for (const auto& r : silent) names.push_back(std::to_string(r.rank));
  if (silent.size() > 1) v.evidence.push_back("silent ranks: " + joined(names));
  const auto host = host_of(first);
  if (silent.size() == ranks.size() && ranks.size() > 1 && !first.process->on_this_host) {
    v.rank.reset(), v.host.clear();
    v.sentence = fmt::format("all {} ranks have been silent for {}, since step {}: their hosts or the folder's file system do not answer",
                             ranks.size(), duration_text(static_cast<double>(first.process->quiet_us)), v.since_step);
  }
  v.next = first.process->on_this_host ? fmt::format("kill -CONT {}", first.process->live->pid) : "ssh " + shell_word(host) + " uptime";
  out.push_back(std::move(v));
  return true;
}

// Adds a note that the other ranks wait for `r`. It is not yet a trouble: an evaluation, an epoch's begin and a save hold them up, too.
void add_waiting(const Rank& r, const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  if (held_us(*r.process) < kStuckUs || in_first_steps(*r.process)) return;
  auto v = verdict_of(r, {r}, "waiting", Health::kOk);
  v.since_us = r.process->live->since_us;
  v.sentence = fmt::format("the other ranks wait for {}, which has been {} since step {}, for {}", name_of(r, ranks),
                           where_text(*r.process), v.since_step, duration_text(held_us(*r.process)));
  add_waits(ranks, v.evidence);
  v.next = stack_command(r);
  out.push_back(std::move(v));
}

void add_hang(const Run& run, const std::vector<Rank>& ranks, const StepTable& table, std::vector<Verdict>& out) {
  std::vector<Rank> active;
  for (const auto& r : ranks)
    if (is_alive(r)) active.push_back(r);
  if (active.empty() || run.state != RunState::kRunning) return;
  for (const auto& r : active)
    if (r.process->held_polls < kLeastPolls) return;  // this rank's activity is new, so the run moves
  std::vector<Rank> moving, waiting;
  for (const auto& r : active) (is_waiting(r) ? waiting : moving).push_back(r);

  if (moving.empty()) {
    // All ranks wait, each for another one. The rank that has come least far may be the cause.
    double shortest = std::numeric_limits<double>::max();
    for (const auto& r : active) shortest = std::min(shortest, held_us(*r.process));
    const bool first = std::any_of(active.begin(), active.end(), [](const Rank& r) { return in_first_steps(*r.process); });
    if (shortest < std::max(first ? kStuckFirstUs : kStuckUs, kTimesLongest * longest_wait_us(table))) return;
    const auto behind = std::min_element(active.begin(), active.end(), [](const Rank& a, const Rank& b) {
      return std::make_pair(a.process->live->step, a.process->live->since_us) <
             std::make_pair(b.process->live->step, b.process->live->since_us);
    });
    const bool same = std::all_of(active.begin(), active.end(), [&](const Rank& r) {
      const auto &a = *r.process->live, &b = *behind->process->live;
      return a.step == b.step && a.activity == b.activity && a.unit == b.unit;
    });
    auto v = verdict_of(*behind, {*behind}, "hang", Health::kStopped);
    for (const auto& r : active) v.since_us = std::max(v.since_us, r.process->live->since_us);
    if (same) v.rank.reset(), v.host.clear();
    const auto world = static_cast<std::size_t>(std::max(behind->process->live->world, 1));
    const bool partly = active.size() < world;  // the rank that holds up these may be one of another host
    const bool hosts = partly || hosts_of(active).size() > 1;
    v.sentence = fmt::format(
        "{} since step {}, for {}: {}",
        partly ? fmt::format("the {} of {} ranks that this folder has wait", active.size(), world) : "all ranks wait for each other",
        v.since_step, duration_text(shortest),
        partly  ? "for a rank elsewhere, or a link between hosts is cut"
        : hosts ? "a link between hosts is cut, or the ranks diverge"
                : "the ranks diverge");
    for (std::size_t i = 0; i < active.size() && i < kMostNames; ++i) {
      v.evidence.push_back(fmt::format("rank {}: {}, step {}, for {}", active[i].rank, where_text(*active[i].process),
                                       active[i].process->live->step + 1, duration_text(held_us(*active[i].process))));
    }
    v.next = hosts ? "shoal doctor" : "shoal stack";
    out.push_back(std::move(v));
    return;
  }
  // The rank whose activity has lasted longest in proportion to the limit of that activity.
  const auto over = [&](const Rank& r) { return held_us(*r.process) / limit_us(*r.process); };
  const auto& worst = *std::max_element(moving.begin(), moving.end(), [&](const Rank& a, const Rank& b) { return over(a) < over(b); });
  // A wait of others shows that the run stands. Without it the program may compile, or evaluate between its steps.
  const bool others_wait = std::any_of(waiting.begin(), waiting.end(), [](const Rank& r) { return held_us(*r.process) >= kStuckUs; });
  if (over(worst) < 1) {
    if (others_wait) add_waiting(worst, ranks, out);
    return;
  }
  if (!others_wait && (worst.process->live->activity == Activity::kElsewhere || over(worst) < kTimesLongest)) return;
  // An evaluation, an upload or a large save ends by itself; until it has taken long, it only costs time.
  const auto activity = worst.process->live->activity;
  const bool may_end = activity == Activity::kElsewhere || activity == Activity::kLoader || activity == Activity::kSave;
  const bool stopped = !may_end || held_us(*worst.process) >= kStoppedAfterUs;
  auto v = verdict_of(worst, {worst}, "hang", stopped ? Health::kStopped : Health::kSlow);
  v.since_us = worst.process->live->since_us;
  v.sentence = fmt::format("{} {} {} since step {}, for {}", name_of(worst, ranks), stopped ? "is stuck" : "has been",
                           where_text(*worst.process), v.since_step, duration_text(held_us(*worst.process)));
  if (const auto usual = longest_us(*worst.process, worst.process->live->activity); usual > 0)
    v.evidence.push_back(fmt::format("the longest earlier time there: {}", duration_text(usual)));
  add_waits(ranks, v.evidence);
  if (moving.size() > 1) v.evidence.push_back(fmt::format("{} ranks do not wait", moving.size()));
  v.next = stack_command(worst);
  out.push_back(std::move(v));
}

// The end of a run that failed, or of which nothing is left.
void add_end(const Run& run, const std::vector<Rank>& ranks, std::vector<Verdict>& out) {
  if (run.state == RunState::kRunning) return;
  if (run.state == RunState::kLost) {
    if (run.processes.empty() && !run.end) return;
    Verdict v;
    v.code = "lost", v.state = Health::kFailed;
    const auto first = std::min_element(ranks.begin(), ranks.end(),
                                        [](const Rank& a, const Rank& b) { return newest_us(*a.process) < newest_us(*b.process); });
    v.sentence = "the run is lost: its processes are gone, and none has written an end";
    if (first != ranks.end()) {
      const auto& p = *first->process;
      v.rank = first->rank, v.host = host_of(*first), v.since_us = newest_us(p);
      v.since_step = reached_step(*first, ranks) + 1;
      v.evidence.push_back(fmt::format("{} was the first without a sign of life, in step {}", name_of(*first, ranks), v.since_step));
      if (p.live) v.evidence.push_back("it was " + where_text(p));
    }
    v.next = "journalctl -k --since -1h | grep -i 'killed process'";
    out.push_back(std::move(v));
    return;
  }
  // The first process of the present attempt that failed, and the record of the run's end. An attempt ends with its driver.
  const Process* failed = nullptr;
  const Event* how = nullptr;
  const Process* driver = nullptr;
  for (const auto& p : run.processes)
    if (p.facts.role == "driver" && (driver == nullptr || newest_us(p) > newest_us(*driver))) driver = &p;
  const auto note = [&](const Process& p) {
    for (const auto& e : p.events.rows) {
      const auto code = e.fields.find("code");
      const bool fails = e.kind == "end" && code != e.fields.end() && code->is_number_integer() && *code != 0;
      if (fails && (how == nullptr || e.t_us < how->t_us)) failed = &p, how = &e;
    }
  };
  if (driver != nullptr) note(*driver);
  if (driver == nullptr || how != nullptr) {
    for (const auto& r : ranks) note(*r.process);
  }
  const int code = run.end ? run.end->exit_code : how != nullptr ? how->fields["code"].get<int>() : 0;
  if (code == 0) return;
  Verdict v;
  v.code = "failed", v.state = Health::kFailed;
  if (const std::string signal = ended_by(run); !signal.empty()) {
    v.sentence = "the run was ended by " + signal;
    if (const auto before = before_the_end(run); !before.empty()) v.evidence.push_back("before that: " + before);
    if (!run.checkpoint.empty()) v.evidence.push_back("newest checkpoint: " + run.checkpoint);
    out.push_back(std::move(v));
    return;
  }
  std::string cause = run.end ? run.end->cause : "";
  if (how != nullptr) {
    v.rank = failed->rank() < 0 ? std::nullopt : std::optional(failed->rank());
    v.host = failed->facts.host, v.since_us = how->t_us;
    const auto said = how->fields.find("cause");
    if (cause.empty() && said != how->fields.end() && said->is_string()) cause = said->get<std::string>();
  }
  if (run.end && run.end->rank) v.rank = run.end->rank;
  for (const auto& r : ranks) {
    if (v.rank != r.rank) continue;
    v.host = host_of(r);
    v.since_step = r.process->live || !r.process->steps.rows.empty() ? reached_step(r, ranks) + 1 : 0;
  }
  const auto line = cause.substr(0, std::min(cause.find('\n'), std::size_t{300}));
  v.sentence = fmt::format("the run failed with exit code {}{}", code, line.empty() ? "" : ": " + line);
  if (v.rank)
    v.evidence.push_back(fmt::format("rank {} failed first{}", *v.rank, v.since_step > 0 ? fmt::format(", in step {}", v.since_step) : ""));
  const auto& checkpoint = run.end && !run.end->checkpoint.empty() ? run.end->checkpoint : run.checkpoint;
  if (!checkpoint.empty()) v.evidence.push_back("newest checkpoint: " + checkpoint);
  if (run.end && run.end->retryable) v.next = "run the same command again: it may succeed at another time";
  out.push_back(std::move(v));
}

}  // namespace

void find_stuck(const Run& run, const std::vector<Rank>& ranks, const StepTable& table, std::int64_t now_us, std::vector<Verdict>& out) {
  const bool dead = add_dead(run, ranks, out);
  add_end(run, ranks, out);
  if (dead || add_dead_driver(run, out)) return;
  if (!add_silent(run, ranks, now_us, out)) add_hang(run, ranks, table, out);
}

}  // namespace shoal::scheduler::runs
