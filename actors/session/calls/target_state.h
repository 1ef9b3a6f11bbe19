// The state of an actor as its callers see it: a pure machine that decides about their calls. No I/O, clock or thread.
//
// Reports of the head and of nodes, and the ends of connections, are its events. Its actions concern the calls that are sent, those that
// are queued, and the connection. A report of a process's end may overtake the process's last messages, so it is held until the connection
// ends or the grace is over. The folder testdata/ has transcripts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/protocol/cluster/rows.h"

namespace shoal::actors {

// The reports of processes' ends that this process can still receive.
enum class Reports {
  kAll,
  kOfNodes,  // the head is gone and restarts no actor; the node still reports ends
  kNone,
};

// ---- events

// A node reports that the process is gone, with its actors.
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
// The actor's process has sent kConstructed: the actor is made.
struct Constructed {};
// The connection to the process ended. Without `all_read` some of its messages may be lost, perhaps kConstructed among them.
struct ConnectionEnded {
  bool all_read = true;
};
// It is time to connect again, since no report has explained the end of the last connection.
struct RedialDue {
  Error why;
  bool unreachable = false;  // there was no connection for ActorCalls::Options::unreachable_after
};
struct GraceOver {};
// The events. ActorRow is the head's report on the actor.
using TargetEvent = std::variant<ActorRow, ProcessGone, Unknown, ReportsEnded, Constructed, ConnectionEnded, RedialDue, GraceOver>;

// ---- actions

struct TargetAction {
  enum class Kind : std::uint8_t {
    kConnect,              // connect to endpoint(), and send queued calls
    kStartGrace,           // send GraceOver after the grace, unless kStopGrace comes first
    kStopGrace,            // GraceOver does not follow any more
    kDropCopies,           // drop the copies of calls that may be sent again only if the actor was not made
    kRequeueUnbegun,       // sent calls did not begin: queue again those that have a copy, fail the others
    kRetryOnNextProcess,   // sent calls may have begun: after the delay queue again those with retries left, fail the others
    kRetryOnReconnection,  // as kRetryOnNextProcess, without the delay
    kFailCalls,            // fail sent and queued calls
    kDie,                  // fail sent and queued calls, and refuse later ones
  };
  Kind kind;
  std::optional<Error> cause = {};  // the error of the calls that fail
};
const char* to_string(TargetAction::Kind kind);
using TargetActions = std::vector<TargetAction>;

class TargetState {
 public:
  enum class Phase : std::uint8_t {
    kPending,    // the actor has no process: it is not placed yet, or it is restarted
    kPlaced,     // its process is at endpoint()
    kEnding,     // its process has ended; reports of this are held until the process's last messages are read
    kUndecided,  // its process is gone, and the head's report decides about the calls sent to it
    kDead,
  };
  struct Facts {
    bool connected = false;  // there is a connection to endpoint()
    Reports reports = Reports::kAll;
  };

  TargetState() = default;
  TargetState(ActorId id, std::string class_name) : id_(id), class_name_(std::move(class_name)) {}

  TargetActions step(const TargetEvent& event, Facts facts);

  Phase phase() const { return phase_; }
  const std::string& class_name() const { return class_name_; }
  // The actor's process and its node, as the head last reported them.
  WorkerId worker() const { return worker_; }
  NodeId node() const { return node_; }
  // Where the actor's process takes calls; empty without a process.
  const std::string& endpoint() const { return endpoint_; }
  // True if calls may be sent to endpoint().
  bool takes_calls() const { return phase_ == Phase::kPlaced; }
  // How often a lost call is sent again, unless the call has its own limit (Call::retries).
  std::int32_t retries() const { return retries_; }
  // True if calls that are lost with this process go to the next one, since this process has not made the actor yet.
  bool repeats_unbegun() const { return at_head_ != AtHead::kEndsWithProcess && !constructed_; }
  const Error* cause_of_death() const { return phase_ == Phase::kDead ? &*cause_ : nullptr; }

 private:
  // The head's intention for the end of the actor's process. kUnknown: the head does not have the actor, and will report nothing about it.
  enum class AtHead : std::uint8_t { kEndsWithProcess, kMayRestart, kUnknown };
  using Report = std::variant<ActorRow, ProcessGone>;

  void on(const ActorRow& row, Facts facts);
  void on(const ProcessGone& gone, Facts facts);
  void on(const Unknown& unknown, Facts facts);
  void on(const ReportsEnded& ended, Facts facts);
  void on(const Constructed&, Facts facts);
  void on(const ConnectionEnded& ended, Facts facts);
  void on(const RedialDue& due, Facts facts);
  void on(const GraceOver&, Facts facts);
  // Holds back a report of the process's end while messages of the process may be unread. Returns false if the report counts at once.
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
  bool constructed_ = false;  // kConstructed was received, or may be among lost messages, so sent calls may have begun
  std::int32_t retries_ = 0;
  WorkerId worker_;
  NodeId node_;
  std::string endpoint_;
  std::optional<Error> cause_;  // if dead, why; if undecided, why its process ended
  std::vector<Report> held_;    // in the order of arrival; only kEnding has any
  TargetActions actions_;       // actions of the step that is under way
};

const char* to_string(TargetState::Phase phase);

}  // namespace shoal::actors
