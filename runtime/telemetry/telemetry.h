// A process's part of its run's folder (docs/runs.md): its steps, samples, metrics and events.
//
// The training thread adds up times in memory. A thread of the telemetry writes files four times a second, the live page first. So a disk
// that is slow or full stops no step. A process that trains has one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/owner_process.h"
#include "runtime/core/result.h"
#include "runtime/loop/side_thread.h"
#include "runtime/telemetry/live_page.h"
#include "runtime/telemetry/rows.h"
#include "runtime/telemetry/segments.h"
#include "runtime/telemetry/step_meter.h"

namespace shoal::runtime {

struct ProcessFacts {
  std::string role;  // "rank" or "driver"
  int rank = 0, world = 1, local_rank = 0;
  std::string host;
  std::string device;
  std::vector<std::string> argv = {};
};

// The host in the name of a process's folder: letters, digits, '.' and '_'.
std::string name_of_host(std::string_view host);

class Telemetry {
 public:
  // Makes the process's folder below `run`/processes, and `run` itself, of this user alone.
  static Result<std::shared_ptr<Telemetry>> open(const std::string& run, ProcessFacts facts);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // ---- the training thread: StepMeter's methods. In a forked child they do nothing.
  void begin(Activity activity, int key = -1);
  void end(Activity activity, int key = -1);
  void end_optimizer(int key);
  void begin_batch();
  void unwind();
  void wait_begin(Activity wait, int unit);
  void wait_end();
  // While paused, no step is recorded: to measure the cost of recording. Call it between two steps.
  void set_paused(bool paused);

  // ---- any thread; nothing of this fails or waits for the disk, but close()
  // The rank's number from the next step on. `step`: the number of steps that have ended.
  void set_member(int rank, int world, int generation);
  void set_step(std::uint64_t step);
  std::uint64_t step() const;
  // Units of a model; returns the number of the first one. A model that replaces one whose units were dropped gets the same numbers.
  int add_units(const std::vector<std::string>& names);
  void drop_units(int first);
  void metrics(const std::vector<std::pair<std::string, double>>& values);
  // `fields`: a JSON object. Times that it lacks are set to now.
  void event(const std::string& kind, const std::string& fields = "{}");
  // Writes what there is, and ends. Further calls do nothing. `code`: of the process's exit, where it is known.
  void close(std::optional<int> code, const std::string& cause);
  // The process's folder.
  const std::string& folder() const { return path_; }

  static std::int64_t now_ns();

 private:
  // Rows that are not written yet. If the disk stays full, those beyond a bound are lost.
  struct Pending {
    std::vector<StepRow> steps = {};
    std::vector<SpansRow> spans = {};
    std::vector<MetricsRow> metrics = {};
    std::string events = {};
  };

  Telemetry(std::string path, Fd folder, ProcessFacts facts, std::int64_t start_us);
  bool silent() const;  // paused, closed, or in a forked child
  template <class F>
  void at_now(F&& change);
  void show();
  void collect(std::optional<StepMeter::Step> step);
  // Reads the time of day, and records an event if it has jumped.
  void check_clock(std::int64_t now);
  void add_event(const std::string& kind, const std::string& fields);
  std::string facts() const;
  std::uint64_t ended_steps() const { return steps_ + (meter_.ended() ? 1 : 0); }
  std::int64_t unix_us(std::int64_t ns) const { return ns / 1000 + offset_us_; }

  // ---- the telemetry's thread
  void run();
  // Reads the time of day, and brings the live page up to date.
  void beat();
  void flush();
  Result<void> write(Pending& rows, const std::string& samples);
  std::string kept_events(const std::string& lines);
  Result<void> write_facts(const std::string& text);
  std::string sample();

  const std::string path_;
  const Fd folder_;
  const OwnerProcess owner_;
  const int forks_;  // how often this process and its ancestors had forked
  const std::int64_t start_us_;

  mutable std::mutex mutex_;  // guards all that follows, up to the files
  ProcessFacts facts_;
  std::vector<std::string> units_;
  StepMeter meter_;
  std::int64_t offset_us_;  // time of day minus now_ns()
  int generation_ = 1;
  std::uint64_t steps_ = 0;
  std::int64_t last_event_ns_ = 0;  // the training thread's last call
  std::uint64_t detail_every_ = 1;  // one in so many steps is recorded in detail; a power of two
  static constexpr std::size_t kMostPending = 100'000, kMostPendingMetrics = 10'000, kMostEventBytes = 4u << 20;
  Pending pending_;
  bool facts_changed_ = true, closed_ = false;
  std::atomic<bool> silent_ = false;
  std::uint64_t dropped_events_ = 0;
  // Written to the file as a whole. A mapping of the file would end the process if the file shrinks, and a store would wait for the disk.
  LivePage page_ = {};
  Activity shown_ = Activity::kElsewhere;
  std::int64_t shown_since_us_;  // time of day at which shown_ began, the same at each beat
  int thread_id_;                // the training thread's, as of the last step
  struct Units {
    int first;
    std::size_t size;
    bool dropped;
  };
  std::vector<Units> models_;

  // ---- the telemetry's thread, and close()
  Segments step_file_, span_file_, sample_file_, metric_file_, event_file_;
  std::int64_t sampled_ns_ = 0;
  std::optional<std::int64_t> stopped_ns_;  // the time since which writes fail
  std::int64_t retry_ns_ = 0;
  std::uint64_t lost_ = 0;  // rows that could not be written
  bool events_left_out_ = false;
  Fd live_;

  std::condition_variable wake_;
  bool ends_ = false;
  std::unique_ptr<SideThread> thread_;
};

}  // namespace shoal::runtime
