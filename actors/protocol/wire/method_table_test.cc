#include "actors/protocol/wire/method_table.h"

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;
using runtime::Message;
using runtime::Peer;

// A client that sends requests to a server, which answers them by its table.
class MethodTableTest : public testing::Test {
 protected:
  struct Caller {
    int num_requests = 0;
  };
  struct Server final : runtime::PeerHandler {
    void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
      auto answer = table.answer(static_cast<Method>(request.method), caller, request.message, responder);
      if (answer) responder.answer(*std::move(answer));
    }
    void on_notice(Peer&, runtime::Request notice) override {
      taken = table.take(static_cast<Method>(notice.method), caller, notice.message);
    }
    void on_closed(Peer&, const Error&) override {}
    MethodTable<Caller> table;
    Caller caller;
    std::optional<Result<void>> taken;
    std::unique_ptr<Peer> peer;
  };
  struct Client final : runtime::PeerHandler {
    void on_request(Peer&, runtime::Request, runtime::Responder) override {}
    void on_notice(Peer&, runtime::Request) override {}
    void on_closed(Peer&, const Error&) override {}
    std::unique_ptr<Peer> peer;
  };

  MethodTableTest() {
    const auto endpoint = runtime::Endpoint::tcp("server", 1);
    listener_ = server_network_
                    ->listen(endpoint,
                             [this](std::unique_ptr<runtime::Connection> c) {
                               server_.peer = std::make_unique<Peer>(std::move(c), world_.clock(), server_);
                             })
                    .value();
    client_network_->connect(endpoint, runtime::Role::kClient, 5s,
                             [this](auto c) { client_.peer = std::make_unique<Peer>(*std::move(c), world_.clock(), client_); });
    EXPECT_TRUE(world_.run_until([this] { return server_.peer && client_.peer; }, 5s));
  }
  ~MethodTableTest() override {
    server_network_->crash();
    client_network_->crash();
  }
  Result<Message> ask(Method method, Message message) {
    std::optional<Result<Message>> answer;
    client_.peer->call(number(method), std::move(message), 5s, [&](Result<Message> r) { answer = std::move(r); });
    EXPECT_TRUE(world_.run_until([&] { return answer.has_value(); }, 10s));
    return *std::move(answer);
  }
  Result<void> notify(Method method, Message message) {
    server_.taken.reset();
    (void)client_.peer->notify(number(method), std::move(message));
    EXPECT_TRUE(world_.run_until([&] { return server_.taken.has_value(); }, 5s));
    return *server_.taken;
  }

  runtime::SimWorld world_{{}};
  std::unique_ptr<runtime::SimNetwork> server_network_ = world_.fabric().attach("server", 1);
  std::unique_ptr<runtime::SimNetwork> client_network_ = world_.fabric().attach("client", 2);
  std::unique_ptr<runtime::Listener> listener_;
  Server server_;
  Client client_;
  MethodTable<Caller>& table_ = server_.table;
};

TEST_F(MethodTableTest, ARequestIsDecodedAndItsReplyEncoded) {
  table_.on<Method::kWatchJob>([](Caller& caller, const JobRef& ref) -> Result<JobRow> {
    ++caller.num_requests;
    if (ref.job != JobId{7}) return fail(not_found("no such job"));
    JobRow row;
    row.id = ref.job;
    return row;
  });
  EXPECT_EQ(from_bytes<JobRow>(ask(Method::kWatchJob, {to_bytes(JobRef{JobId{7}}), {}, {}}).value().body)->id, JobId{7});
  EXPECT_EQ(ask(Method::kWatchJob, {to_bytes(JobRef{JobId{8}}), {}, {}}).error().code(), Code::kNotFound);
  EXPECT_EQ(server_.caller.num_requests, 2);
}

TEST_F(MethodTableTest, AnUnreadableRequestDoesNotReachItsHandler) {
  table_.on<Method::kStopJob>([](Caller& caller, const StopJob&) { ++caller.num_requests; });
  EXPECT_EQ(ask(Method::kStopJob, {Bytes::copy_of("no words"), {}, {}}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(server_.caller.num_requests, 0);
}

TEST_F(MethodTableTest, AnEmptyBodyIsAnAbsentOption) {
  table_.on<Method::kStatus>([](Caller&, const std::optional<JobRef>& ref) {
    ClusterStatus status;
    status.store = ref ? to_string(ref->job) : "all";
    return status;
  });
  EXPECT_EQ(from_bytes<ClusterStatus>(ask(Method::kStatus, {}).value().body)->store, "all");
  EXPECT_EQ(from_bytes<ClusterStatus>(ask(Method::kStatus, {to_bytes(JobRef{JobId{7}}), {}, {}}).value().body)->store, to_string(JobId{7}));
}

TEST_F(MethodTableTest, AReplyInThePayloadLeavesTheBodyEmpty) {
  table_.on<Method::kReadLogFile>([](Caller&, const ReadLogFile& asked) { return "text of " + asked.name; });
  const auto answer = ask(Method::kReadLogFile, {to_bytes(ReadLogFile{"head", 0}), {}, {}});
  EXPECT_EQ(answer.value().payload.view(), "text of head");
  EXPECT_TRUE(answer->body.empty());
}

TEST_F(MethodTableTest, AHandlerThatTakesTheResponderAnswersLaterUnlessItFails) {
  std::optional<runtime::Responder> kept;
  runtime::Timer soon;
  table_.on<Method::kHostActor>([&](Caller&, const HostActor& hosted, runtime::Responder& responder) -> Result<void> {
    if (hosted.rank == 1) return fail(not_found("no such rank"));
    kept = std::move(responder);
    soon = world_.clock().after(1ms, [&] { kept->reply({to_bytes(HostedActor{{}, 3, {}}), {}, {}}); });
    return {};
  });
  HostActor hosted;
  hosted.world_size = 2;
  EXPECT_EQ(from_bytes<HostedActor>(ask(Method::kHostActor, {to_bytes(hosted), {}, {}}).value().body)->generation, 3u);
  hosted.rank = 1;
  EXPECT_EQ(ask(Method::kHostActor, {to_bytes(hosted), {}, {}}).error().code(), Code::kNotFound);
}

TEST_F(MethodTableTest, NoticesHaveHandlersOfTheirOwn) {
  table_.on<Method::kWorkerBlocked>([](Caller&, const WorkerBlocked&) {});
  EXPECT_FALSE(table_.contains_notice(Method::kWorkerBlocked));
  table_.on_notice<Method::kWorkerBlocked>([](Caller& caller, const WorkerBlocked& m) { caller.num_requests += m.blocked ? 1 : 100; });
  EXPECT_TRUE(notify(Method::kWorkerBlocked, {to_bytes(WorkerBlocked{{}, true}), {}, {}}));
  EXPECT_EQ(server_.caller.num_requests, 1);
  EXPECT_EQ(notify(Method::kWorkerBlocked, {Bytes::copy_of("no words"), {}, {}}).error().code(), Code::kInvalidArgument);
}

TEST_F(MethodTableTest, TheEffectOfARequestIsDeclared) {
  table_.on<Method::kStopJob>([](Caller&, const StopJob&) {});
  table_.on<Method::kList>([](Caller&, const ListRequest&) { return ListReply(); });
  EXPECT_EQ(table_.effect(Method::kStopJob), Effect::kChange);
  EXPECT_EQ(table_.effect(Method::kList), Effect::kNone);
  EXPECT_EQ(table_.effect(Method::kDeleteJob), Effect::kNone);  // the table has no handler for it
  EXPECT_FALSE(table_.contains(Method::kDeleteJob));
}

}  // namespace
}  // namespace shoal::actors
