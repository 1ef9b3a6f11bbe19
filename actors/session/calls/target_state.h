// The state of an actor as its callers see it: a pure machine that decides what becomes of their calls. No I/O, clock or thread.
//
// Reports of the head and of nodes, and the ends of connections, are its events. Its actions concern the calls that are sent, those that
// are queued, and the connection. A report of a process's end may overtake the process's last messages, so it is held until the
// connection ends, or until the grace is over. testdata/ has transcripts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/cluster/rows.h"

namespace shoal::actors {

// Which reports of ends are to come.
enum class Reports {
  kAll,
  kOfNodes,  // the head is gone: it restarts no actor
  kNone,
};

// ---- events

// A report of a node: the process is gone, with its actors.
struct ProcessGone {
  WorkerId worker;
  Error cause;
};
// The head does not have this actor.
struct Unknown {
  Error cause;
};
// This process has lost its head and its node, so no report of an end will come.
struct ReportsEnded {
  Error cause;
};
// The process has sent kMade.
struct Made {};
// The connection to the process ended. Without `all_read`, kMade may be lost with it.
struct ConnectionEnded {
  bool all_read = true;
};
// A new connection is due, since no report explained the end of the last one.
struct RedialDue {
  Error why;
  bool unreachable = false;  // for long
};
struct GraceOver {};
// The head's report is an ActorRow.
using TargetEvent = std::variant<ActorRow, ProcessGone, Unknown, ReportsEnded, Made, ConnectionEnded, RedialDue, GraceOver>;

// ---- actions

struct TargetAction {
  enum class Kind : std::uint8_t {
    kConnect,              // to endpoint(), and send queued calls
    kStartGrace,           // GraceOver follows after the grace, unless kStopGrace precedes it
    kStopGrace,            //
    kDropCopies,           // those of sent calls that are repeated only if they did not begin
    kRequeueUnbegun,       // sent calls did not begin: those with a copy are queued again, the others fail
    kRetryOnNextProcess,   // sent calls may have begun: those with retries left are queued again after the delay, the others fail
    kRetryOnReconnection,  // the same without a delay
    kFailCalls,            // sent and queued ones
    kDie,                  // likewise, and so do later calls
  };
  Kind kind;
  std::optional<Error> cause = {};  // why calls fail
};
const char* to_string(TargetAction::Kind kind);
using TargetActions = std::vector<TargetAction>;

class TargetState {
 public:
  enum class Phase : std::uint8_t {
    kPending,    // it has no process: it is not placed yet, or it is restarted
    kPlaced,     // its process is at endpoint()
    kEnding,     // the same, and reports of the process's end are held until the last messages are read
    kUndecided,  // its process is gone, and the head's report decides about the calls sent to it
    kDead,
  };
  struct Facts {
    bool connected = false;  // to endpoint()
    Reports reports = Reports::kAll;
  };

  TargetState() = default;
  TargetState(ActorId id, std::string class_name) : id_(id), class_name_(std::move(class_name)) {}

  TargetActions step(const TargetEvent& event, Facts facts);

  Phase phase() const { return phase_; }
  const std::string& class_name() const { return class_name_; }
  // The reported process and node.
  WorkerId worker() const { return worker_; }
  NodeId node() const { return node_; }
  // Empty without a process.
  const std::string& endpoint() const { return endpoint_; }
  // True if calls may be sent to endpoint().
  bool takes_calls() const { return phase_ == Phase::kPlaced; }
  // Retries of a call that does not set its own number.
  std::int32_t retries() const { return retries_; }
  // True if a call that is lost with this process goes to the next one, since the actor is not made yet.
  bool repeats_unbegun() const { return at_head_ != AtHead::kEndsWithProcess && !made_; }
  const Error* cause_of_death() const { return phase_ == Phase::kDead ? &*cause_ : nullptr; }

 private:
  // kUnknown: the head will not report its death.
  enum class AtHead : std::uint8_t { kEndsWithProcess, kMayRestart, kUnknown };
  using Report = std::variant<ActorRow, ProcessGone>;

  void on(const ActorRow& row, Facts facts);
  void on(const ProcessGone& gone, Facts facts);
  void on(const Unknown& unknown, Facts facts);
  void on(const ReportsEnded& ended, Facts facts);
  void on(const Made&, Facts facts);
  void on(const ConnectionEnded& ended, Facts facts);
  void on(const RedialDue& due, Facts facts);
  void on(const GraceOver&, Facts facts);
  // Holds a report of the process's end while its messages may be unread; false: it counts at once.
  bool holds(Report report, Facts facts);
  void release_held(Facts facts);
  void take(const ActorRow& row, Facts facts);
  void take(const ProcessGone& gone, Facts facts);
  void process_lost(const Error& cause);
  void die(const Error& cause);
  void act(TargetAction::Kind kind, std::optional<Error> cause = {}) { actions_.push_back({kind, std::move(cause)}); }
  std::string frame() const;
  Error died_of(const Error& why) const;

  ActorId id_;
  std::string class_name_;
  Phase phase_ = Phase::kPending;
  AtHead at_head_ = AtHead::kEndsWithProcess;
  bool made_ = false;  // kMade was received, or may be unread: sent calls may have begun
  std::int32_t retries_ = 0;
  WorkerId worker_;
  NodeId node_;
  std::string endpoint_;
  std::optional<Error> cause_;  // why it is dead; while undecided, why its process ended
  std::vector<Report> held_;    // in the order of arrival; not empty exactly in kEnding
  TargetActions actions_;       // the present step's
};

const char* to_string(TargetState::Phase phase);

}  // namespace shoal::actors
