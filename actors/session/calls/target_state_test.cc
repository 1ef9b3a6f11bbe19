// Golden transcript: stories of one actor as its callers see it. An event stands at the margin; below it stand the change of the phase (=)
// and the actions in their order (>).
//
// After an intended change of behaviour, take the new text from the test's outputs
// (bazel-testlogs/actors/session/calls/target_state_test/test.outputs).
#include "actors/session/calls/target_state.h"
#include "runtime/core/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

using Phase = TargetState::Phase;

class TargetStateTest : public testing::Test {
 protected:
  static constexpr ActorId kActor{7};

  void story(const std::string& title) {
    text_ += (text_.empty() ? "== " : "\n== ") + title + " ==\n";
    state_ = TargetState(kActor, "Counter");
    facts_ = {};
  }
  void happens(const std::string& what, const TargetEvent& event) {
    const Phase before = state_.phase();
    const std::string was_at = state_.endpoint();
    text_ += what + "\n";
    const auto actions = state_.step(event, facts_);
    if (state_.phase() != before || state_.endpoint() != was_at) {
      text_ += fmt::format("  = {}{}\n", to_string(state_.phase()), state_.phase() == Phase::kPlaced ? " at " + state_.endpoint() : "");
    }
    for (const TargetAction& action : actions) {
      text_ += fmt::format("  > {}{}\n", to_string(action.kind), action.cause ? " " + written(*action.cause) : "");
    }
    const bool has_process = state_.phase() == Phase::kPlaced || state_.phase() == Phase::kEnding;
    EXPECT_TRUE(state_.phase() == Phase::kDead || has_process == !state_.endpoint().empty()) << text_;
    EXPECT_EQ(state_.phase() == Phase::kDead, state_.cause_of_death() != nullptr) << text_;
  }
  static std::string written(const Error& e) {
    return fmt::format("{}/{}: {}{}", code_name(e.code()), e.reason(), e.message(), e.hint().empty() ? "" : " (hint: " + e.hint() + ")");
  }

  // ---- events
  void head_reports(ActorState state, std::uint64_t process = 0, std::optional<Error> cause = {}) {
    ActorRow row;
    row.id = kActor;
    row.state = state;
    row.worker = WorkerId{process};
    row.max_restarts = restarts_;
    row.cause = cause;
    if (state == ActorState::kAlive) row.endpoint = fmt::format("p{}", process);
    happens(fmt::format("the head reports {}{}{}", to_string(state), process != 0 ? fmt::format(" in p{}", process) : "",
                        cause ? ", since " + cause->message() : ""),
            row);
  }
  void alive(std::uint64_t process) { head_reports(ActorState::kAlive, process); }
  void connected() {
    facts_.connected = true;
    text_ += "its process is connected\n";
  }
  void head_gone() {
    facts_.reports = Reports::kOfNodes;
    text_ += "the head is gone\n";
  }
  void made() { happens("its process has made it", Constructed()); }
  void node_reports(std::uint64_t process, const Error& cause) {
    happens(fmt::format("its node reports the end of p{}, since {}", process, cause.message()), ProcessGone{WorkerId{process}, cause});
  }
  void disconnected(bool all_read = true) {
    facts_.connected = false;
    happens(fmt::format("the connection ends{}", all_read ? "" : ", and messages may be lost"), ConnectionEnded{all_read});
  }
  void grace_over() { happens("the grace is over", GraceOver()); }
  void redial(bool unreachable = false) {
    happens(fmt::format("a reconnection is due{}", unreachable ? ", and it was broken for long" : ""),
            RedialDue{unavailable("refused").with_reason("Refused").with_hint("is it running?"), unreachable});
  }
  void placed(std::uint64_t process = 1) {
    alive(process);
    connected();
  }

  // Expects the text to equal the file testdata/`name`.
  void ends_as_in(const std::string& name) { expect_golden(text_, "actors/session/calls/testdata/" + name); }

  TargetState state_;
  TargetState::Facts facts_;
  int restarts_ = 0;
  std::string text_;
};

TEST_F(TargetStateTest, Deaths) {
  story("An actor is placed and made, and dies with its process");
  head_reports(ActorState::kPending);
  placed();
  made();
  alive(1);
  disconnected();
  node_reports(1, unavailable("killed").with_reason("OutOfMemory").with_hint("use less"));
  alive(2);

  story("It dies before it is placed");
  head_reports(ActorState::kDead, 0, unavailable("no room").with_reason("Unschedulable"));

  story("The head reports no cause");
  head_reports(ActorState::kDead);

  story("A report of its process's end is held until the connection ends");
  placed();
  made();
  node_reports(1, unavailable("killed"));
  head_reports(ActorState::kDead, 1, unavailable("killed"));
  disconnected();

  story("A held report counts after the grace, although the connection does not end");
  placed();
  head_reports(ActorState::kDead, 1, unavailable("killed"));
  grace_over();

  story("Another process's end is another's matter");
  placed();
  node_reports(2, unavailable("killed"));
  ends_as_in("deaths.txt");
}

TEST_F(TargetStateTest, Restarts) {
  restarts_ = -1;
  story("It restarts before it was made: no call has begun");
  placed();
  head_reports(ActorState::kRestarting, 0, unavailable("killed"));
  disconnected();
  alive(2);

  story("It restarts after it was made: sent calls may have begun");
  placed();
  made();
  disconnected();
  head_reports(ActorState::kRestarting, 0, unavailable("killed"));
  alive(2);

  story("Over another host's connection, the message that it was made may be lost");
  placed();
  disconnected(false);
  head_reports(ActorState::kRestarting, 0, unavailable("killed"));

  story("That message may be unread when the grace is over");
  placed();
  head_reports(ActorState::kRestarting, 0, unavailable("killed"));
  grace_over();

  story("The node's report precedes the head's, which decides");
  placed();
  disconnected();
  node_reports(1, unavailable("killed"));
  head_reports(ActorState::kStarting, 2);
  alive(2);

  story("The head's decision is that it is dead");
  placed();
  disconnected();
  node_reports(1, unavailable("killed"));
  head_reports(ActorState::kDead, 1, unavailable("its last restart is used"));

  story("Without a decision of the head, calls are lost after the grace");
  placed();
  made();
  disconnected();
  node_reports(1, unavailable("killed"));
  grace_over();

  story("Without a head there is no restart");
  placed();
  disconnected();
  node_reports(1, unavailable("killed").with_hint("look at its log"));
  head_gone();
  grace_over();

  story("All reports are held in their order: its end, its restart, and its next process");
  placed();
  made();
  node_reports(1, unavailable("killed"));
  head_reports(ActorState::kRestarting, 0, unavailable("killed"));
  alive(2);
  disconnected();

  story("The report of the restart is missed");
  placed();
  made();
  disconnected();
  alive(2);
  ends_as_in("restarts.txt");
}

TEST_F(TargetStateTest, Connections) {
  story("A broken connection is no death: sent calls are lost, queued ones wait, and fail when it cannot be reached for long");
  placed();
  disconnected();
  redial();
  redial(true);
  connected();

  story("The head does not have it: it dies with its connection, for the connection's reason");
  placed();
  happens("the head does not have it", Unknown{not_found("no actor")});
  disconnected();
  redial();

  story("The head does not have it, and it has no connection");
  happens("the head does not have it", Unknown{not_found("no actor")});

  story("The head does not have it any more, so it cannot restart it");
  restarts_ = 1;
  placed();
  happens("the head does not have it", Unknown{not_found("no actor")});
  disconnected();
  node_reports(1, unavailable("killed"));

  story("No reports come any more: without a connection it is dead, for the reason why none come");
  const TargetEvent ended = ReportsEnded{unavailable("its node is gone").with_reason("NodeLost").with_hint("start it again")};
  happens("reports end", ended);

  story("No reports come any more: it lives as long as its connection");
  placed();
  facts_.reports = Reports::kNone;
  happens("reports end", ended);
  disconnected();
  happens("reports have ended", ended);
  ends_as_in("connections.txt");
}

}  // namespace
}  // namespace shoal::actors
