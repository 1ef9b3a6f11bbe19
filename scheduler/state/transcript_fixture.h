// Fixture of the golden transcripts: stories of a cluster as text. An event stands at the margin. Below it stand an error that it returned
// (!), the rows that it changed (=), and its actions in order (>).
#pragma once

#include <functional>
#include <optional>

#include <fmt/format.h>

#include "runtime/core/golden.h"
#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {

using Amounts = std::map<std::string, double>;

class TranscriptTest : public testing::Test {
 protected:
  TranscriptTest() : state_(std::in_place, ClusterState::Options(), random_) { state().advance(now_, unix_ms_); }

  ClusterState& state() { return *state_; }
  void story(const std::string& title) { text_ += (text_.empty() ? "== " : "\n== ") + title + " ==\n"; }
  // Later lines show the name instead of the id.
  template <class Id>
  Id named(Id id, const std::string& name) {
    names_[to_string(id)] = name;
    return id;
  }
  // Writes the event's line, runs `effect`, and writes the error, changed rows and actions that follow. Workers are named in the order of
  // their starts: w1, w2, ...
  void event(const std::string& what, const std::function<Result<void>()>& effect) {
    write(what);
    if (const auto r = effect(); !r) {
      write(fmt::format("  ! {}: {}", r.error().reason().empty() ? "refused" : r.error().reason(), r.error().message()));
    }
    state().check_invariants();
    const auto changes = state().take_changes();
    const auto actions = state().take_actions();
    for (const auto& a : actions) {
      const auto* start = std::get_if<StartWorkerOn>(&a);
      if (start == nullptr || names_.contains(to_string(start->message.worker))) continue;
      const std::string name = fmt::format("w{}", started_.size() + 1);
      named(start->message.worker, name);
      started_[name] = *start;
    }
    for (const auto& r : changes) {
      if (r.table == TableName::kJobs && !names_.contains(hex(r.id))) named(JobId{r.id}, r.name);
    }
    for (const auto& r : changes) {
      const std::string row = fmt::format("  = {} {}", to_string(r.table), hex(r.id));
      write(row + (r.bytes.size() == 0 ? " deleted" : r.state.empty() ? "" : " " + r.state));
    }
    for (const auto& a : actions) write("  > " + to_string(a));
    store_->commit(changes, [](Result<void> r) { EXPECT_TRUE(r); });
  }
  void happens(const std::string& what, const std::function<void()>& effect) {
    event(what, [&]() -> Result<void> {
      effect();
      return {};
    });
  }
  // Writes the rows that users see.
  void rows() {
    using What = actors::ListRequest::What;
    const auto because = [](const std::string& reason) { return reason.empty() ? "" : ", " + reason; };
    write("rows:");
    for (const auto& n : state().list({What::kNodes, {}}).nodes) {
      write(fmt::format("  node {} {}, free {}", to_string(n.id), actors::state_text(n), n.available.to_string()));
    }
    for (const auto& a : state().list({What::kActors, {}}).actors) {
      write(fmt::format("  actor {} {}{}, {} restarts{}{}", to_string(a.id), actors::to_string(a.state),
                        a.node ? " on " + to_string(a.node) : "", a.num_restarts, because(a.pending_reason),
                        because(a.cause ? a.cause->message() : "")));
    }
    for (const auto& j : state().list({What::kJobs, {}}).jobs) {
      write(fmt::format("  job {} {}, exit {}{}{}", to_string(j.id), actors::to_string(j.state), j.exit_code, because(j.pending_reason),
                        because(j.cause ? j.cause->message() : "")));
    }
    for (const auto& g : state().list({What::kGroups, {}}).groups) {
      write(fmt::format("  group {} {}{}", to_string(g.id), actors::to_string(g.state), because(g.pending_reason)));
    }
    for (const auto& p : state().status().pending) write("  waits: " + p);
  }
  // Compares the text with testdata/`name`.
  void ends_as_in(const std::string& name) { expect_golden(text_, "scheduler/state/testdata/" + name); }

  // ---- events
  // The head ticks every half second at least; all nodes but `silent` send heartbeats.
  void time(runtime::Duration passes, NodeId silent = {}) {
    const auto ms = [](runtime::Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); };
    happens(fmt::format("{} ms pass{}", ms(passes), silent ? ", and " + to_string(silent) + " is silent" : ""), [&] {
      for (runtime::Duration rest = passes, by{}; rest > 0ms; rest -= by) {
        by = std::min<runtime::Duration>(rest, 500ms);
        now_ += by;
        unix_ms_ += ms(by);
        state().advance(now_, unix_ms_);
        for (const NodeId n : state().alive_nodes()) {
          if (n != silent) state().step(NodeBeat{n});
        }
        state().step(Tick{});
      }
    });
  }
  NodeId node(std::uint64_t number, const Amounts& has) {
    const NodeId id = named(NodeId{number}, fmt::format("n{}", number));
    event(fmt::format("n{} joins with {}", number, of(has).to_string()),
          [&] { return state().step(NodeJoined{{id, fmt::format("host{}", number), 1, "unix:@n", of(has), {}}}); });
    return id;
  }
  // A driver joins, and attaches to `node` if that is given.
  JobId joins(const std::string& name, NodeId node = {}, WorkerId process = {}) {
    JobId job;
    happens(name + "'s driver joins", [&] { job = named(state().step(DriverJoined{{name + ".py", 100, {}}}), name); });
    if (node) attaches(node, named(process, name + "'s driver"), job, "driver");
    return job;
  }
  void attaches(NodeId node, WorkerId process, JobId job, const std::string& role) {
    happens(fmt::format("{} attaches to {}", to_string(process), to_string(node)),
            [&] { state().step(WorkerUpdated{node, {process, WorkerState::kRunning, 100, "", 0, {}, job, role}}); });
  }
  void detaches(NodeId node, WorkerId process, int code) {
    happens(fmt::format("{} exits with {}", to_string(process), code), [&] {
      const auto cause = code == 0 ? std::nullopt : std::optional(unavailable("its process failed"));
      state().step(WorkerUpdated{node, {process, WorkerState::kExited, 100, "", code, cause, {}, {}}});
    });
  }
  GangSpec request(JobId job, const std::string& name, int count, const Amounts& each) {
    GangSpec g;
    g.id = named(GangId{next_id_++}, "gang of " + name);
    g.job = job;
    for (int i = 0; i < count; ++i) {
      g.actors.push_back({named(ActorId{next_id_++}, count == 1 ? name : fmt::format("{}{}", name, i)), "A", of(each)});
    }
    return g;
  }
  void asks(const GangSpec& g, const std::string& note = "") {
    const auto& each = g.actors[0].resources;
    event(fmt::format("{} asks for {} x {} with {}{}{}", to_string(g.job), g.actors.size(), to_string(g.actors[0].id),
                      each.empty() ? "nothing" : each.to_string(), note.empty() ? "" : ", ", note),
          [&]() -> Result<void> {
            SHOAL_TRY(const auto found, state().step(GangRequested{g}));
            if (found) write("  found " + to_string(found->row.id));
            return {};
          });
  }
  void runs(const std::string& worker, const std::string& note = "runs") {
    const auto& s = started_.at(worker);
    happens(fmt::format("{} {}", worker, note),
            [&] { state().step(WorkerUpdated{s.node, {s.message.worker, WorkerState::kRunning, 1000, "unix:@w", 0, {}, {}, {}}}); });
  }
  void exits(const std::string& worker, int code) { detaches(started_.at(worker).node, this->worker(worker), code); }
  WorkerId worker(const std::string& name) const { return started_.at(name).message.worker; }
  // Ends the head; the next one restores what was stored.
  void next_head() {
    write("the head ends, and the next one restores the rows");
    state_.emplace(ClusterState::Options(), random_);
    state().advance(now_, unix_ms_);
    state().restore(store_->load().value());
    ASSERT_TRUE(state().set_aside().empty());
    state().check_invariants();
  }

 private:
  void write(std::string line) {
    for (const auto& [id, name] : names_) {
      for (auto at = line.find(id); at != std::string::npos; at = line.find(id)) line.replace(at, id.size(), name);
    }
    text_ += line + "\n";
  }

  std::string text_;
  std::map<std::string, std::string> names_;  // by id in hex
  std::map<std::string, StartWorkerOn> started_;
  runtime::SeededRandom random_{1};
  std::optional<ClusterState> state_;
  runtime::TimePoint now_{};
  std::int64_t unix_ms_ = 0;
  std::uint64_t next_id_ = 100;
  const std::unique_ptr<Store> store_ = make_memory_store();
};

}  // namespace shoal::scheduler
