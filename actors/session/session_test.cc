#include "actors/session/session.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;
using runtime::Message;
using runtime::Peer;

constexpr ActorId kActor{7};
constexpr JobId kJob{3};

// A fake head and node, controlled by the test, on their own loop.
class FakeCluster final : public runtime::PeerHandler {
 public:
  FakeCluster() {
    loop_thread_.own([this] {
      network_.emplace(loop_, *clock_, *random_, token_, runtime::SocketOptions());
      host_.emplace(*clock_, *network_);
      ASSERT_TRUE(host_->listen(name("actors")));
    });
    start_head();
    start_node();
  }
  ~FakeCluster() {
    bool drained = false;
    loop_thread_.own([&] {
      stop(head_);
      stop(node_);
      host_.reset();
      network_->stop([&] { drained = true; });
    });
    loop_thread_.wait([&] { return drained; }, runtime::LoopThread::kForever);
  }

  std::unique_ptr<Session> open() {
    SessionOptions options;
    options.credentials.token = token_;
    options.head = name("head").to_string();
    options.print_logs = false;
    options.head_timeout = 10s;
    return Session::open(std::move(options)).value();
  }

  void start_head() {
    loop_thread_.own([this] { listen(head_, "head"); });
  }
  void start_node() {
    loop_thread_.own([this] { listen(node_, "node"); });
  }
  void stop_head() {
    loop_thread_.own([this] { stop(head_); });
  }
  void stop_node() {
    loop_thread_.own([this] { stop(node_); });
  }
  // Breaks the connections to the fake head, which goes on.
  void drop_head_connections() {
    loop_thread_.own([this] { head_.peers.clear(); });
  }
  void host(ActorId id, std::shared_ptr<Hosted> actor) {
    loop_thread_.own([&] { host_->add(id, "Echo", std::move(actor)); });
  }
  // Waits for the next published object.
  Message object() {
    loop_thread_.wait([this] { return object_.has_value(); }, std::chrono::steady_clock::now() + 60s);
    return loop_thread_.own([this] { return std::exchange(object_, {}).value_or(Message()); });
  }
  // Waits until the node has received a sum of `references` in the reported changes.
  bool has_counted(std::int64_t references) {
    return loop_thread_.wait([&] { return counted_ == references; }, std::chrono::steady_clock::now() + 60s) ==
           runtime::LoopThread::Woken::kReady;
  }
  // Waits until the head has received `removals` of placement groups in all.
  bool has_removed(int removals) {
    return loop_thread_.wait([&] { return removed_ == removals; }, std::chrono::steady_clock::now() + 60s) ==
           runtime::LoopThread::Woken::kReady;
  }
  // Sets an actor's state at the fake head, which reports it only when a process asks.
  void set(ActorId id, ActorState state) {
    loop_thread_.own([&] {
      ActorRow row;
      row.id = id;
      row.state = state;
      if (state == ActorState::kAlive) row.endpoint = host_->endpoint();
      rows_[id] = row;
    });
  }

 private:
  struct Door {
    std::unique_ptr<runtime::Listener> listener;
    std::map<std::uint64_t, std::unique_ptr<Peer>> peers;
  };

  runtime::Endpoint name(const std::string& what) const { return runtime::Endpoint::unix_at(prefix_ + what); }

  void listen(Door& door, const std::string& what) {
    door.listener = network_
                        ->listen(name(what),
                                 [this, &door](std::unique_ptr<runtime::Connection> c) {
                                   const auto number = next_peer_++;
                                   door.peers[number] = std::make_unique<Peer>(std::move(c), *clock_, *this, number);
                                 })
                        .value();
  }
  static void stop(Door& door) {
    door.listener.reset();
    door.peers.clear();
  }

  void on_request(Peer&, runtime::Request request, runtime::Responder responder) override {
    const auto reply = [&](Bytes bytes) { responder.reply({std::move(bytes), {}, {}}); };
    switch (static_cast<Method>(request.method)) {
      case Method::kRegisterDriver:
        return reply(to_bytes(RegisteredDriver{kJob, name("node").to_string(), ""}));
      case Method::kAttach:
        return reply(to_bytes(Attached{NodeId{1}, kJob, name("head").to_string(), "", "localhost", WorkerId{9}}));
      case Method::kWatchActor: {
        const auto row = rows_.find(from_bytes<ActorRef>(request.message.body)->actor);
        if (row == rows_.end()) return responder.fail(not_found("no such actor"));
        return reply(to_bytes(row->second));
      }
      case Method::kList:
        return reply(to_bytes(ListReply{}));
      default:
        return reply({});
    }
  }
  void on_notice(Peer&, runtime::Request notice) override {
    if (static_cast<Method>(notice.method) == Method::kPutObject) object_ = std::move(notice.message);
    if (static_cast<Method>(notice.method) == Method::kRemoveGroup) ++removed_;
    if (static_cast<Method>(notice.method) == Method::kCountObjects) {
      const auto counts = from_bytes<CountObjects>(notice.message.body).value();
      for (const auto& change : counts.changes) counted_ += change.by;
    }
  }
  void on_closed(Peer& peer, const Error&) override {
    for (Door* door : {&head_, &node_}) {
      if (const auto it = door->peers.find(peer.number()); it != door->peers.end() && it->second.get() == &peer) {
        const auto owned = door->peers.extract(it);
        return;
      }
    }
  }

  runtime::Loop loop_;
  std::unique_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::unique_ptr<runtime::Random> random_ = runtime::make_real_random();
  const runtime::Token token_ = runtime::Token::random(*random_);
  const std::string prefix_ = "shoal-test-" + to_string(random_->id<JobId>()) + "-";
  std::optional<runtime::SocketNetwork> network_;
  std::optional<ActorHost> host_;
  Door head_, node_;
  std::uint64_t next_peer_ = 1;
  std::map<ActorId, ActorRow> rows_;
  std::optional<Message> object_;
  std::int64_t counted_ = 0;
  int removed_ = 0;
  runtime::LoopThread loop_thread_{loop_};
};

class Echo final : public Hosted {
 public:
  void on_call(Incoming incoming) override { incoming.reply(incoming.call.args); }
  void on_kill(const Error&) override {}
};

class SessionTest : public testing::Test {
 protected:
  ValueFuture call(const std::string& method = "f") {
    Call call;
    call.actor = kActor;
    call.method = method;
    call.args = Value::make({std::as_bytes(std::span(method))}).value();
    return session_->calls().call(std::move(call), {});
  }
  // The outcome of a call: its error's code, "ok", or "pending" after 10 s.
  std::string outcome(const ValueFuture& f) {
    if (!session_->loop().wait([&] { return f.ready(); }, session_->loop().deadline_in(10s))) return "pending";
    return f.peek() ? "ok" : code_name(f.peek().error().code());
  }
  Result<std::optional<FoundActor>> create() {
    GangSpec spec;
    spec.id = GangId{5};
    spec.job = kJob;
    spec.actors.push_back({kActor, "Echo", {}});
    return session_->actors().create_gang(spec);
  }

  FakeCluster cluster_;
  std::unique_ptr<Session> session_ = cluster_.open();
};

TEST_F(SessionTest, AnActorIsWatchedAlsoAfterTheConnectionToTheHeadBroke) {
  ASSERT_TRUE(create());
  const auto f = call();
  cluster_.host(kActor, std::make_shared<Echo>());
  cluster_.stop_head();
  cluster_.set(kActor, ActorState::kAlive);  // the head sends no notice of this state
  cluster_.start_head();
  EXPECT_EQ(outcome(f), "ok");
}

TEST_F(SessionTest, AnActorThatTheHeadHasForgottenIsDead) {
  ASSERT_TRUE(create());
  const auto f = call();
  cluster_.drop_head_connections();
  EXPECT_EQ(outcome(f), "NotFound");
}

TEST_F(SessionTest, AGangIsNotTakenForLostByTheConnectionThatIsMadeForIt) {
  cluster_.stop_head();
  EXPECT_EQ(create().error().reason(), "HeadGone");
  cluster_.start_head();
  ASSERT_TRUE(create());
  cluster_.host(kActor, std::make_shared<Echo>());
  const auto f = call();
  cluster_.set(kActor, ActorState::kAlive);
  cluster_.drop_head_connections();
  EXPECT_EQ(outcome(f), "ok");
}

TEST_F(SessionTest, AnUnknownActorIsRefusedEachTime) {
  for (int i = 0; i < 2; ++i) {
    const auto known = session_->actors().know(kActor, "Echo");
    ASSERT_FALSE(known);
    EXPECT_EQ(known.error().code(), Code::kNotFound);
    EXPECT_EQ(outcome(call()), "NotFound");
  }
  cluster_.host(kActor, std::make_shared<Echo>());
  cluster_.set(kActor, ActorState::kAlive);
  ASSERT_TRUE(session_->actors().know(kActor, "Echo"));
  EXPECT_EQ(outcome(call()), "ok");
}

TEST_F(SessionTest, WithoutAHeadLookupsFailAndCallsToLiveActorsContinue) {
  cluster_.host(kActor, std::make_shared<Echo>());
  cluster_.set(kActor, ActorState::kAlive);
  ASSERT_TRUE(session_->actors().know(kActor, "Echo"));
  EXPECT_EQ(outcome(call()), "ok");
  cluster_.stop_head();
  EXPECT_EQ(session_->actors().know(ActorId{8}, "Echo").error().reason(), "HeadGone");
  cluster_.stop_node();
  EXPECT_EQ(outcome(call()), "ok");
}

TEST_F(SessionTest, WithoutHeadAndNodeAnActorThatIsNotConnectedIsDead) {
  for (const bool node_first : {true, false}) {
    ASSERT_TRUE(create());
    const auto f = call();
    node_first ? cluster_.stop_node() : cluster_.stop_head();
    EXPECT_FALSE(f.ready());
    node_first ? cluster_.stop_head() : cluster_.stop_node();
    EXPECT_EQ(outcome(f), "Unavailable");
    cluster_.start_head();
    cluster_.start_node();
    session_ = cluster_.open();
  }
}

TEST_F(SessionTest, TheEndOfAClusterThatThisSessionEndsDoesNotFailOpenCalls) {
  ASSERT_TRUE(create());
  const auto f = call();
  ASSERT_TRUE(session_->cluster().shutdown());
  cluster_.stop_head();
  cluster_.stop_node();
  const auto gone = [&] { return !session_->head().link().connected() && !session_->node().link().connected(); };
  ASSERT_TRUE(session_->loop().wait(gone, session_->loop().deadline_in(60s)));
  EXPECT_FALSE(f.ready());
  session_.reset();
  EXPECT_EQ(f.peek().error().code(), Code::kCancelled);
}

TEST_F(SessionTest, TheNextHeadGetsTheRemovalOfAGroupAgain) {
  ASSERT_TRUE(session_->groups().remove(GroupId{4}));
  ASSERT_TRUE(cluster_.has_removed(1));
  cluster_.drop_head_connections();
  EXPECT_TRUE(cluster_.has_removed(2));
}

TEST_F(SessionTest, AnObjectThatCannotBeSharedIsPutAsItsError) {
  const auto value = ready_future(Value::make({std::as_bytes(std::span("seven"))}).value());
  session_->objects().publish(ObjectId{1}, value);
  EXPECT_EQ(cluster_.object().fds.size(), 1u);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const Fd next(dup(0));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get());
  setrlimit(RLIMIT_NOFILE, &none);
  session_->objects().publish(ObjectId{2}, value);
  setrlimit(RLIMIT_NOFILE, &before);
  const Message failed = cluster_.object();
  EXPECT_TRUE(failed.fds.empty());
  EXPECT_EQ(runtime::decode_error(failed.payload).code(), Code::kResourceExhausted);
}

// Each thread dials only when it finds no connection, and so ends no connection of another thread.
TEST_F(SessionTest, ThreadsThatFindNoHeadMakeOneConnection) {
  for (int round = 0; round < 30; ++round) {
    cluster_.drop_head_connections();
    std::vector<std::thread> threads;
    std::array<std::string, 4> outcomes;
    for (auto& out : outcomes) {
      threads.emplace_back([&] {
        const auto r = session_->cluster().list(ListRequest::What::kActors);
        out = r ? "ok" : r.error().reason();
      });
    }
    for (auto& t : threads) t.join();
    for (const auto& out : outcomes) EXPECT_TRUE(out == "ok" || out == "HeadGone") << out;
  }
  EXPECT_TRUE(session_->cluster().list(ListRequest::What::kActors));
}

TEST_F(SessionTest, HoweverManyReferencesThereAreAllAreCounted) {
  std::vector<ObjectKey> objects;
  for (std::uint64_t k = 1; k <= 60'000; ++k) objects.push_back({kJob, ObjectId{k}});
  auto hold = session_->objects().references().hold(objects);
  EXPECT_TRUE(cluster_.has_counted(60'000));
  hold.reset();
  EXPECT_TRUE(cluster_.has_counted(0));
}

TEST_F(SessionTest, AWaiterForAnObjectBeyondTheSharedMemoryIsNotified) {
  std::vector<ObjectKey> objects;
  for (std::uint64_t k = 1; k <= 200'000; ++k) objects.push_back({kJob, ObjectId{k}});
  const std::string text = "references";
  Value value = Value::make({std::as_bytes(std::span(text))}).value();
  value.refer(std::move(objects), nullptr);
  session_->objects().give(ObjectId{7}, ready_future(std::move(value)));
  const Message put = cluster_.object();
  ASSERT_EQ(from_bytes<ObjectRef>(put.body).value().id, ObjectId{7});
  EXPECT_TRUE(put.fds.empty());
  ASSERT_GT(put.payload.size(), 0u);
  EXPECT_FALSE(runtime::decode_error(put.payload).message().empty());
}

}  // namespace
}  // namespace shoal::actors
