// A run that is simulated, for tests of verdicts: ranks that wait for each other on a noisy machine, with or without a trouble.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

enum class Trouble {
  kNone,
  kSharedCpu,   // one rank computes longer, since it gets less CPU time
  kMoreWork,    // one rank computes longer, and uses more CPU time
  kSlowLoader,  // on all ranks
  kSlowLoaderOfOne,
  kExposed,
  kStuckInForward,
  kStuckInLoader,
  kCutLink,  // all ranks wait
  kDead,
  kSilent,
  kStopped,
  kSlowSave,
  kMemory,
  kFullDisk,
  kNotFinite,
  kLossSpike,
  kClockJump,
};

struct Simulated {
  std::uint32_t seed = 0;
  Trouble trouble = Trouble::kNone;
  double most_noise = 0.3;  // sigma of the logarithm of a step's computation
  double least_step_us = 5'000, most_step_us = 50'000;
};

class SimulatedRun {
 public:
  explicit SimulatedRun(const Simulated& how) : how_(how), random_(how.seed) {
    world_ = how.trouble == Trouble::kNone && chance(0.1) ? 1 : 2 + static_cast<int>(random_() % 4);
    two_hosts_ = how.trouble == Trouble::kCutLink || how.trouble == Trouble::kSilent || chance(0.4);
    base_us_ = std::exp(uniform(std::log(how.least_step_us), std::log(how.most_step_us)));
    sigma_ = uniform(0.02, how.most_noise);
    load_part_ = uniform(0.005, 0.1), out_part_ = uniform(0.002, 0.03), comm_part_ = uniform(0.02, 0.15);
    evaluate_every_ = chance(0.5) ? 50 + random_() % 200 : 0;
    save_every_ = how.trouble == Trouble::kSlowSave ? 40 : chance(0.5) ? 40 + random_() % 200 : 0;
    change_at_ = how.trouble == Trouble::kNone && world_ > 2 && chance(0.4) ? 60 + random_() % 200 : 0;
    for (int k = 0; k < 8; ++k) factor_.push_back(uniform(1.0, 1.1));
    next_sample_us_ = begin_us_ = now_us_ = 1'700'000'000'000'000 + static_cast<std::int64_t>(random_() % 1'000'000'000);
    trouble_step_ = 80 + random_() % 120;
    if (how.trouble == Trouble::kSlowSave) trouble_step_ = 120 + trouble_step_ / 80 * 40;
    trouble_rank_ = static_cast<int>(random_() % static_cast<unsigned>(world_));
    size_ = uniform(0.6, 1.5);
    for (int k = 0; k < world_; ++k) add_process(k);
    run_.state = RunState::kRunning;
    run_.path = "shoal-run/simulated";
    next_step();
  }

  // Advances by `us`, and makes the run what a reader would see.
  void advance(std::int64_t us) {
    now_us_ += us;
    while (!stands_ && now_us_ >= step_end_us_) {
      add_samples(step_end_us_);
      end_step();
      next_step();
    }
    add_samples(now_us_);
    write_live();
  }

  const Run& run() const { return run_; }
  std::int64_t now_us() const { return now_us_ + jumped_us_; }
  std::uint64_t trouble_step() const { return trouble_step_; }
  int trouble_rank() const { return trouble_rank_; }
  bool troubled() const { return trouble_us_ != 0; }
  // Since the trouble began.
  std::int64_t since_trouble_us() const { return now_us_ - trouble_us_; }
  double step_us() const { return base_us_; }
  int world() const { return world_; }

 private:
  struct Phase {
    runtime::Activity activity;
    int unit;
    double us;
  };

  double uniform(double a, double b) { return std::uniform_real_distribution<double>(a, b)(random_); }
  bool chance(double p) { return uniform(0, 1) < p; }
  double lognormal(double sigma) { return std::exp(std::normal_distribution<double>(0, sigma)(random_)); }
  std::string host_of(int rank) const { return two_hosts_ && rank >= (world_ + 1) / 2 ? "b" : "a"; }
  bool is(Trouble t) const { return how_.trouble == t && step_ >= trouble_step_; }

  void add_process(int rank) {
    Process p;
    p.folder = host_of(rank) + "-" + std::to_string(100 + rank) + "-1";
    p.facts.role = "rank", p.facts.rank = rank, p.facts.world = world_, p.facts.host = host_of(rank), p.facts.pid = 100 + rank;
    p.facts.start_us = now_us_, p.facts.device = "cpu", p.facts.units = {"", "layers.0", "layers.1"};
    p.on_this_host = host_of(rank) == "a";
    p.life = Life::kAlive;
    p.live.emplace();
    p.live->pid = 100 + rank, p.live->start_us = now_us_, p.live->rank = rank;
    p.events.rows.push_back({now_us_, "begin", {{"t", now_us_}, {"kind", "begin"}}});
    run_.processes.push_back(std::move(p));
    cpu_us_.push_back(0), runqueue_us_.push_back(0), rss_.push_back(uniform(1e9, 2e9)), drift_.push_back(0);
  }

  // The factors of this step's computation: related noise, tails, and bursts of the machine or of one rank.
  std::vector<double> computation() {
    if (now_us_ > machine_burst_end_us_ && chance(base_us_ / 8e6)) {
      machine_burst_end_us_ = step_begin_us_ + static_cast<std::int64_t>(uniform(5e4, 1e6));
      machine_burst_ = uniform(1.3, 2.5);
    }
    if (step_begin_us_ > rank_burst_end_us_ && chance(base_us_ / 10e6)) {
      rank_burst_end_us_ = step_begin_us_ + static_cast<std::int64_t>(uniform(2e4, 2.5e5));
      rank_burst_ = uniform(1.3, 3);
      burst_rank_ = static_cast<int>(random_() % static_cast<unsigned>(world_));
    }
    std::vector<double> out;
    for (int k = 0; k < world_; ++k) {
      const auto at = static_cast<std::size_t>(k);
      drift_[at] = 0.5 * drift_[at] + std::normal_distribution<double>(0, 0.3 * sigma_)(random_);
      double f = factor_[at] * lognormal(sigma_) * std::exp(drift_[at]);
      if (chance(0.01)) f *= std::min(std::pow(uniform(0.001, 1), -0.7), 20.0);
      if (step_begin_us_ < machine_burst_end_us_) f *= machine_burst_;
      if (step_begin_us_ < rank_burst_end_us_ && burst_rank_ == k) f *= rank_burst_;
      out.push_back(std::min(f, 10.0));  // a rank that stands for longer is a trouble
    }
    return out;
  }

  void next_step() {
    ++step_;
    ++of_generation_;
    if (how_.trouble == Trouble::kNone && change_at_ != 0 && step_ == change_at_) change_workers();
    step_begin_us_ = step_ == 1 ? now_us_ : step_end_us_ + pause_us_;
    pause_us_ = 0;
    if (step_ == trouble_step_ && how_.trouble != Trouble::kNone) trouble_us_ = step_begin_us_;
    const auto factors = computation();
    const double slow_start = of_generation_ <= 3 ? uniform(5, 30) : 1;
    std::vector<double> own;
    rows_.assign(static_cast<std::size_t>(world_), {});
    for (int k = 0; k < world_; ++k) {
      auto& row = rows_[static_cast<std::size_t>(k)];
      const bool mine = k == trouble_rank_;
      double compute = base_us_ * 0.8 * factors[static_cast<std::size_t>(k)] * slow_start;
      double cpu = compute * uniform(0.85, 0.99);
      if (mine && is(Trouble::kSharedCpu)) runqueue_us_[static_cast<std::size_t>(k)] += compute * size_, compute *= 1 + size_;
      if (mine && is(Trouble::kMoreWork)) compute *= 1 + size_, cpu *= 1 + size_;
      double load = base_us_ * load_part_ * lognormal(0.6), out = base_us_ * out_part_ * lognormal(0.4);
      if (chance(0.005)) load *= 10;  // an epoch begins
      if (is(Trouble::kSlowLoader) || (mine && is(Trouble::kSlowLoaderOfOne))) load += base_us_ * size_ * lognormal(0.2);
      if (evaluate_every_ != 0 && step_ % evaluate_every_ == 0 && trouble_us_ == 0 && (k == 0 || step_ / evaluate_every_ % 2 == 0))
        out += uniform(3e5, 4e6);
      double save = 0;
      if (save_every_ != 0 && step_ % save_every_ == 0) {
        save = uniform(6e4, 3e5);
        if (is(Trouble::kSlowSave) && mine) save *= 30;
      }
      set(row, runtime::Activity::kLoader, load), set(row, runtime::Activity::kElsewhere, out), set(row, runtime::Activity::kSave, save);
      set(row, runtime::Activity::kForward, compute * 0.3), set(row, runtime::Activity::kBackward, compute * 0.6);
      set(row, runtime::Activity::kOptimizer, compute * 0.1);
      row.cpu_us = static_cast<std::int64_t>(cpu);
      own.push_back(load + out + save + compute);
    }
    double comm = base_us_ * comm_part_ * lognormal(0.3);
    if (is(Trouble::kExposed)) comm += base_us_ * (0.5 + size_) * lognormal(0.1);
    if (world_ == 1) comm = 0;
    const double total = *std::max_element(own.begin(), own.end()) + comm;
    step_end_us_ = step_begin_us_ + static_cast<std::int64_t>(total);
    for (int k = 0; k < world_; ++k) {
      auto& row = rows_[static_cast<std::size_t>(k)];
      const double waits = total - own[static_cast<std::size_t>(k)];
      set(row, runtime::Activity::kGather, waits * 0.5), set(row, runtime::Activity::kReduce, waits * 0.4),
          set(row, runtime::Activity::kWindow, waits * 0.1);
      row.step = step_, row.rank = k, row.world = world_, row.generation = generation_;
      row.end_us = step_end_us_, row.total_us = row.longest_us = static_cast<std::int64_t>(total);
    }
    const bool stops = is(Trouble::kStuckInForward) || is(Trouble::kStuckInLoader) || is(Trouble::kCutLink) || is(Trouble::kDead) ||
                       is(Trouble::kSilent) || is(Trouble::kStopped);
    stands_ = stops;
  }

  static void set(runtime::StepRow& row, runtime::Activity activity, double us) { row.in(activity) = static_cast<std::int64_t>(us); }

  void change_workers() {
    ++generation_;
    of_generation_ = 1;
    pause_us_ = static_cast<std::int64_t>(uniform(3e5, 3e6));
    if (chance(0.5)) {
      auto& gone = run_.processes[static_cast<std::size_t>(--world_)];
      gone.life = Life::kEnded;
      gone.events.rows.push_back({now_us_, "end", {{"t", now_us_}, {"kind", "end"}, {"code", 0}}});
    } else {
      ++world_;
      add_process(world_ - 1);
    }
  }

  void end_step() {
    for (int k = 0; k < world_; ++k) {
      auto& p = run_.processes[static_cast<std::size_t>(k)];
      auto row = rows_[static_cast<std::size_t>(k)];
      row.end_us += jumped_us_;
      if (row.in(runtime::Activity::kSave) > 0) {
        p.events.rows.push_back(
            {row.end_us,
             "save",
             {{"t", row.end_us}, {"kind", "save"}, {"step", step_ - 1}, {"bytes", 100'000'000}, {"us", row.in(runtime::Activity::kSave)}}});
      }
      cpu_us_[static_cast<std::size_t>(k)] += static_cast<double>(row.cpu_us);
      runqueue_us_[static_cast<std::size_t>(k)] += 0.02 * static_cast<double>(row.total_us);
      p.steps.rows.push_back(row);
      ++p.steps.appended;
    }
    auto& first = run_.processes[0];
    double loss = 2 + 3 * std::exp(-static_cast<double>(step_) / 100) + std::normal_distribution<double>(0, 0.15)(random_);
    if (chance(0.01)) loss *= uniform(1, 2.5);  // a batch that is hard
    if (is(Trouble::kLossSpike)) loss *= 4;
    if (is(Trouble::kNotFinite)) {
      loss = std::nan("");
      auto& p = run_.processes[static_cast<std::size_t>(trouble_rank_)];
      if (step_ == trouble_step_)
        p.events.rows.push_back({now_us(), "not_finite", {{"t", now_us()}, {"kind", "not_finite"}, {"what", "loss"}, {"step", step_}}});
    }
    first.metrics.rows.push_back({step_end_us_ + jumped_us_, step_, {{"loss", loss}, {"best_loss", INFINITY}}});
    if (is(Trouble::kFullDisk) && step_ == trouble_step_) {
      auto& p = run_.processes[static_cast<std::size_t>(trouble_rank_)];
      p.events.rows.push_back({step_end_us_, "recording_stopped", {{"t", now_us()}, {"kind", "recording_stopped"}, {"cause", "no space"}}});
    }
    if (is(Trouble::kClockJump) && step_ == trouble_step_) {
      jumped_us_ = (chance(0.5) ? -1 : 1) * static_cast<std::int64_t>(uniform(2e6, 4e9));
      for (auto& p : run_.processes) p.events.rows.push_back({now_us(), "clock", {{"t", now_us()}, {"kind", "clock"}, {"us", jumped_us_}}});
    }
  }

  void add_samples(std::int64_t until_us) {
    for (; next_sample_us_ <= until_us; next_sample_us_ += 1'000'000) add_sample(next_sample_us_);
  }

  void add_sample(std::int64_t t_us) {
    if (is(Trouble::kMemory)) eaten_ += 1.5e9;
    for (int k = 0; k < world_; ++k) {
      auto& p = run_.processes[static_cast<std::size_t>(k)];
      if (p.life != Life::kAlive) continue;
      const auto at = static_cast<std::size_t>(k);
      rss_[at] *= uniform(0.995, 1.005);
      runtime::SampleRow s;
      s.t_us = t_us + jumped_us_, s.step = step_;
      s.rss = static_cast<std::int64_t>(rss_[at] + (k == trouble_rank_ ? eaten_ : 0) + std::min(step_, std::uint64_t{10}) * 5e7);
      s.cpu_us = static_cast<std::int64_t>(cpu_us_[at]), s.runqueue_us = static_cast<std::int64_t>(runqueue_us_[at]);
      s.host_total = 16'000'000'000;
      s.host_free =
          static_cast<std::int64_t>(std::max(6e9 - (host_of(k) == host_of(trouble_rank_) ? eaten_ : 0) + uniform(-3e8, 3e8), 1e8));
      s.disk_free = is(Trouble::kFullDisk) ? 4096 : 50'000'000'000;
      s.pressure_cpu = uniform(0, 15), s.pressure_io = is(Trouble::kSlowSave) ? uniform(20, 60) : uniform(0, 8);
      p.samples.rows.push_back(s);
    }
  }

  // Where rank k is in its step at the present time.
  LiveState activity(int k) {
    LiveState out = *run_.processes[static_cast<std::size_t>(k)].live;
    const auto& row = rows_[static_cast<std::size_t>(k)];
    using runtime::Activity;
    std::vector<Phase> phases = {
        {Activity::kSave, -1, 1.0 * row.in(Activity::kSave)},          {Activity::kElsewhere, -1, 1.0 * row.in(Activity::kElsewhere)},
        {Activity::kLoader, -1, 1.0 * row.in(Activity::kLoader)},      {Activity::kGather, 1, 1.0 * row.in(Activity::kGather)},
        {Activity::kForward, 1, 1.0 * row.in(Activity::kForward)},     {Activity::kBackward, 2, 1.0 * row.in(Activity::kBackward)},
        {Activity::kReduce, 1, 1.0 * row.in(Activity::kReduce)},       {Activity::kWindow, -1, 1.0 * row.in(Activity::kWindow)},
        {Activity::kOptimizer, -1, 1.0 * row.in(Activity::kOptimizer)}};
    const Activity stuck = is(Trouble::kStuckInLoader) ? Activity::kLoader : Activity::kForward;
    const Activity last = k == trouble_rank_ && how_.trouble != Trouble::kCutLink ? stuck
                          : how_.trouble == Trouble::kStuckInForward              ? Activity::kReduce
                                                                                  : Activity::kGather;
    double at = static_cast<double>(step_begin_us_);
    for (const auto& phase : phases) {
      out.since_us = static_cast<std::int64_t>(at) + jumped_us_;
      out.activity = phase.activity, out.unit = phase.unit;
      if ((stands_ && phase.activity == last) || at + phase.us > static_cast<double>(now_us_)) break;
      at += phase.us;
    }
    out.beat_us = now_us() - now_us() % 250'000;
    out.step = step_ - 1, out.world = world_, out.generation = generation_;
    return out;
  }

  void write_live() {
    for (int k = 0; k < world_; ++k) {
      auto& p = run_.processes[static_cast<std::size_t>(k)];
      if (p.life != Life::kAlive && p.life != Life::kSilent) continue;
      const bool mine = k == trouble_rank_;
      const bool first = step_ == trouble_step_ && p.live->step + 1 < trouble_step_;
      if (mine && first && (is(Trouble::kDead) || is(Trouble::kSilent) || is(Trouble::kStopped))) p.live = activity(k);
      if (mine && is(Trouble::kDead)) {
        p.quiet_us = since_trouble_us();
        if (p.quiet_us > kGoneAfterUs) p.life = Life::kGone;
        continue;
      }
      if (mine && (is(Trouble::kSilent) || is(Trouble::kStopped))) {
        p.on_this_host = is(Trouble::kStopped);
        p.quiet_us = since_trouble_us();
        if (p.quiet_us > kSilentAfterUs) p.life = Life::kSilent;
        continue;
      }
      const auto live = activity(k);
      const bool held = p.live->since_us == live.since_us && p.live->step == live.step && p.live->activity == live.activity;
      p.held_polls = held ? p.held_polls + 1 : 1;
      p.live = live;
    }
  }

  Simulated how_;
  std::mt19937 random_;
  Run run_;
  int world_ = 0, generation_ = 1, trouble_rank_ = 0, burst_rank_ = 0;
  bool two_hosts_ = false, stands_ = false;
  double base_us_ = 0, sigma_ = 0, load_part_ = 0, out_part_ = 0, comm_part_ = 0, size_ = 0, machine_burst_ = 1, rank_burst_ = 1,
         eaten_ = 0;
  std::uint64_t step_ = 0, of_generation_ = 0, evaluate_every_ = 0, save_every_ = 0, change_at_ = 0, trouble_step_ = 0;
  std::vector<double> factor_, cpu_us_, runqueue_us_, rss_, drift_;
  std::int64_t begin_us_ = 0, now_us_ = 0, step_begin_us_ = 0, step_end_us_ = 0, next_sample_us_ = 0, pause_us_ = 0, trouble_us_ = 0,
               jumped_us_ = 0;
  std::int64_t machine_burst_end_us_ = 0, rank_burst_end_us_ = 0;
  std::vector<runtime::StepRow> rows_;
};

}  // namespace shoal::scheduler::runs
