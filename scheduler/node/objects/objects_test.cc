#include "scheduler/node/objects/objects.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/shm/memory.h"
#include "runtime/shm/spill_file.h"
#include "runtime/sim/sim_world.h"
#include "scheduler/node/objects/fake_head.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using actors::CountObjects;
using actors::from_bytes;
using actors::Method;
using actors::number;
using actors::ObjectKey;
using actors::ObjectRef;
using actors::to_bytes;
using runtime::Endpoint;
using runtime::Message;
using runtime::Peer;

constexpr JobId kJob{1};
constexpr std::size_t kMaxReferences = 1000;

// The part of a node that handles objects, with a process of that node.
class Side final : public runtime::PeerHandler {
  runtime::SimWorld& world_;
  FakeHead& head_;
  const std::string host_;
  std::unique_ptr<runtime::SimNetwork> network_;

 public:
  Side(runtime::SimWorld& world, FakeHead& head, const std::string& host, NodeId id)
      : world_(world), head_(head), host_(host), network_(world.fabric().attach(host, 100 + static_cast<pid_t>(id.value))) {
    const auto accept = [this](std::unique_ptr<runtime::Connection> c) {
      clients_.emplace(clients_.size(), Client{std::make_unique<Peer>(std::move(c), world_.clock(), *this, clients_.size()), {}});
    };
    far_ = *network_->listen(Endpoint::tcp(host, 0), accept);
    near_ = *network_->listen(Endpoint::unix_at(host), accept);
    start_as(id);
    network_->connect(near_->endpoint(), runtime::Role::kClient, 5s,
                      [this](auto c) { process_ = std::make_unique<Peer>(*std::move(c), world_.clock(), *this); });
    meet_head();
  }
  void meet_head() {
    network_->connect(head_.endpoint(), runtime::Role::kNode, 5s, [this](auto c) {
      to_head_ = std::make_unique<Peer>(*std::move(c), world_.clock(), *this);
      objects.peer_nodes().head_registered();
    });
  }
  bool ready() const { return process_ && to_head_; }
  void start_as(NodeId id) {
    self = id;
    objects.start_as(id);
    head_.rows[id] = {id, host_, 1, actors::NodeState::kAlive, far_->endpoint().to_string(), {}, {}, {}};
  }

  // ---- calls of the processes of this node
  ObjectKey put(ObjectId id, std::uint64_t bytes, const std::vector<ObjectKey>& contains = {}) {
    auto memory = *runtime::make_memory("test", bytes);
    EXPECT_TRUE(runtime::write_at(memory, bytes - 1, Bytes::copy_of("x").span()));
    objects.put(kJob, {}, ObjectRef{id, kJob, 0, {}, contains, self}, std::move(memory));
    return {kJob, id, self};
  }
  void count(WorkerId by, const ObjectKey& object, WorkerId holder, NodeId node, std::int64_t change) {
    objects.count(by, CountObjects{{{object, holder, change, node}}, 0});
  }
  void get(WorkerId by, const ObjectKey& object, std::function<void(Result<Message>)> got) {
    Message m = body(to_bytes(ObjectRef{object.id, object.job, 0, {}, {}, object.home}));
    m.payload = Bytes::copy_of(std::to_string(by.value));
    process_->call(number(Method::kGetObject), std::move(m), Peer::kNoTimeout, std::move(got));
  }
  void dies(WorkerId worker) {
    workers.erase(worker);
    objects.worker_gone(worker, "a test");
  }

  bool in_memory(const ObjectKey& object) {
    Result<Fd> out = fail(internal("it is not there"));
    memory.get(object.job, object.id, {}, [&](Result<Fd> r) { out = std::move(r); });
    return runtime::is_memory(out.value());
  }
  // Performs the first of the pending `writes`.
  void write() {
    const auto [work, then] = std::move(writes.front());
    writes.pop_front();
    work();
    then();
  }

  std::set<WorkerId> workers;
  NodeId self;
  std::deque<std::pair<std::function<void()>, std::function<void()>>> writes;  // pending writes of objects into files
  std::optional<runtime::UsageBoard> usage_board;
  storage::MemoryTable memory{[] {
    storage::MemoryTable::Options o;
    o.spare_bytes = 0;
    return o;
  }()};
  // The connection to the head is in use until on_closed(), even while it closes, as in a real node.
  Objects objects{world_.clock(),
                  *network_,
                  memory,
                  runtime::make_null_log(),
                  [this] {
                    Objects::Options o;
                    o.spill_folder = testing::TempDir();
                    o.max_references = kMaxReferences;
                    o.write_aside = [this](auto work, auto then) { writes.emplace_back(std::move(work), std::move(then)); };
                    return o;
                  }(),
                  {.merge_beyond = 5},
                  [this] { return to_head_.get(); },
                  {[this](WorkerId worker) { return workers.contains(worker); }, [this] { return usage_board; }, [](std::uint64_t) {},
                   [this](std::uint64_t n) { return clients_.at(n).peer ? clients_.at(n).peer->queued_bytes() : 0; }}};

 private:
  struct Client {
    std::unique_ptr<Peer> peer;
    NodeId node;
  };

  void on_request(Peer& peer, runtime::Request request, runtime::Responder responder) override {
    Client& client = clients_.at(peer.number());
    const auto& m = request.message;
    switch (static_cast<Method>(request.method)) {
      case Method::kMeetNode: {
        const auto meeting = *from_bytes<actors::MeetNode>(m.body);
        const auto met = objects.met(meeting);
        client.node = meeting.caller;
        return met ? responder.reply({}) : responder.fail(met.error());
      }
      case Method::kCountObjects:
        objects.reported(client.node, *from_bytes<CountObjects>(m.body));
        return responder.reply({});
      case Method::kPullObject:
        return objects.pull(*from_bytes<actors::PullObject>(m.body), peer, std::move(responder));
      default:
        return objects.get(kJob, WorkerId{std::stoull(std::string(m.payload.view()))}, *from_bytes<ObjectRef>(m.body),
                           std::move(responder));
    }
  }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer& peer, const Error&) override {
    if (&peer == to_head_.get()) return to_head_.reset();
    if (&peer == process_.get()) return process_.reset();
    objects.parts().closed(peer.number());
    clients_.at(peer.number()).peer.reset();
  }
  void on_drained(Peer& peer) override {
    if (&peer != to_head_.get() && &peer != process_.get()) objects.parts().drained(peer.number());
  }

  std::unique_ptr<Peer> to_head_, process_;
  std::map<std::uint64_t, Client> clients_;
  std::unique_ptr<runtime::Listener> far_, near_;
};

constexpr std::uint64_t kLarge = 40u << 20;

class ObjectsTest : public testing::Test {
 protected:
  ObjectsTest() {
    a_.workers = {kOne};
    b_.workers = {kTwo};
    EXPECT_TRUE(world_.run_until([this] { return a_.ready() && b_.ready(); }, 10s));
  }
  // Gets an object for process kOne on node a.
  void get(const ObjectKey& object) {
    got_.reset();
    a_.get(kOne, object, [this](Result<Message> r) {
      got_ = r ? Result<std::uint64_t>(*runtime::memory_bytes(r->fds.at(0))) : Result<std::uint64_t>(fail(r.error()));
    });
  }
  bool comes() {
    return world_.run_until([this] { return got_.has_value(); }, 60s) && *got_;
  }
  // Makes an object on node b that process kOne on node a holds.
  ObjectKey of_b(ObjectId id, std::uint64_t bytes) {
    const auto key = b_.put(id, bytes);
    b_.count(kTwo, key, kOne, a_.self, 1);
    return key;
  }

  static constexpr WorkerId kOne{11}, kTwo{12};
  runtime::SimWorld world_{{}};
  FakeHead head_{world_};
  Side a_{world_, head_, "a", NodeId{1}}, b_{world_, head_, "b", NodeId{2}};
  std::optional<Result<std::uint64_t>> got_;
};

TEST_F(ObjectsTest, AValueComesOverAndIsFreedWithTheLastReference) {
  const auto key = of_b(ObjectId{5}, kLarge);
  get(key);
  ASSERT_TRUE(comes());
  EXPECT_EQ(**got_, kLarge);
  EXPECT_TRUE(a_.memory.has(kJob, key.id));
  a_.count(kOne, key, kOne, {}, -1);
  EXPECT_TRUE(world_.run_until([&] { return b_.memory.num_entries() == 0; }, 10s));
  EXPECT_EQ(a_.memory.num_entries(), 0u);
  EXPECT_EQ(b_.objects.references().num_entries(), 0u);
}

TEST_F(ObjectsTest, AnObjectWithMoreReferencesThanFitIsRefusedAndFreesNothing) {
  std::vector<ObjectKey> inner;
  for (std::uint64_t n = 0; n < kMaxReferences; ++n) inner.push_back({kJob, ObjectId{100 + n}, a_.self});
  a_.count(kOne, a_.put(ObjectId{5}, 100), kOne, {}, 1);
  get(a_.put(ObjectId{6}, 100, inner));
  ASSERT_FALSE(comes());
  EXPECT_EQ(got_->error().code(), Code::kResourceExhausted);
  EXPECT_EQ(a_.objects.references().num_entries(), 1u);
  inner.pop_back();
  get(a_.put(ObjectId{7}, 100, inner));
  EXPECT_TRUE(comes());
}

TEST_F(ObjectsTest, AHeadThatGoesAwayWhileItIsAskedIsAskedAgainWhenItIsBack) {
  head_.silent = true;
  get(of_b(ObjectId{5}, 100));
  world_.run_for(100ms);
  head_.hang_up();
  world_.run_for(5s);
  EXPECT_FALSE(got_);
  head_.silent = false;
  a_.meet_head();
  b_.meet_head();
  EXPECT_TRUE(comes());
}

TEST_F(ObjectsTest, AHeadThatRefusesIsNotAskedAtOnceAgain) {
  head_.refuses = true;
  get(of_b(ObjectId{5}, 100));
  const auto before = world_.num_events();
  world_.run_for(5s);
  EXPECT_LT(world_.num_events() - before, 200u);
  head_.refuses = false;
  EXPECT_TRUE(comes());
}

TEST_F(ObjectsTest, ANodeThatCameBackAsAnotherInTheMiddleOfATransferGetsOthers) {
  get(of_b(ObjectId{5}, kLarge));
  world_.run_for(15ms);
  ASSERT_FALSE(got_);
  a_.dies(kOne);
  a_.start_as(NodeId{3});
  a_.workers = {kOne};
  world_.run_for(1s);
  ASSERT_TRUE(got_);
  EXPECT_FALSE(*got_);
  for (std::uint64_t i = 0; i < 3; ++i) {
    get(of_b(ObjectId{10 + i}, 2 * kLarge));
    ASSERT_TRUE(comes()) << got_->error().message();
  }
}

TEST_F(ObjectsTest, AConnectionThatBreaksInTheMiddleOfATransferIsMadeAgain) {
  get(of_b(ObjectId{5}, kLarge));
  for (int i = 0; i < 3; ++i) {
    world_.run_for(10ms);
    world_.fabric().disconnect("a", "b");
  }
  EXPECT_TRUE(comes());
}

TEST_F(ObjectsTest, ANodeBehindACutLinkFailsTheGetAfterAWhileAndIsReachedAgainLater) {
  get(of_b(ObjectId{5}, 100));
  ASSERT_TRUE(comes());
  world_.fabric().set_partitions(/*broken_per_mille=*/1000, /*give_up=*/10s);
  world_.fabric().partition("a", "b");
  const auto key = of_b(ObjectId{6}, 100);
  get(key);
  world_.run_for(35s);
  EXPECT_FALSE(got_);  // the connection has been broken for less than PeerNodes::Options::unreachable_after
  ASSERT_TRUE(world_.run_until([this] { return got_.has_value(); }, 15s));
  ASSERT_FALSE(*got_);
  EXPECT_EQ(got_->error().reason(), "ObjectLost");
  EXPECT_NE(got_->error().message().find("on host b"), std::string::npos) << got_->error().message();
  world_.fabric().heal();
  get(key);
  EXPECT_TRUE(comes());
}

Fd file(std::uint64_t bytes) {
  std::string name = testing::TempDir() + "/moved-XXXXXX";
  const Fd out(mkostemp(name.data(), O_CLOEXEC));
  EXPECT_EQ(ftruncate(out.get(), static_cast<off_t>(bytes)), 0);
  Fd again(open(name.c_str(), O_RDONLY | O_CLOEXEC));
  unlink(name.c_str());
  return again;
}

constexpr std::uint64_t kMiB = 1 << 20;
constexpr JobId kOther{2};

TEST_F(ObjectsTest, HoldersOfAnObjectMayMoveItAndOthersMayNot) {
  const WorkerId stranger{13};
  b_.workers = {kTwo, stranger};
  const auto key = b_.put(ObjectId{5}, kMiB), its = b_.put(ObjectId{6}, kMiB);
  b_.objects.move(kOther, stranger, key, file(kMiB));
  EXPECT_TRUE(b_.in_memory(key));
  b_.count(kTwo, key, stranger, {}, 1);
  b_.objects.move(kOther, stranger, key, file(kMiB + 1));
  EXPECT_TRUE(b_.in_memory(key));
  b_.objects.move(kOther, stranger, key, file(kMiB));
  EXPECT_FALSE(b_.in_memory(key));
  b_.objects.move(kJob, stranger, its, file(kMiB));  // the mover belongs to the object's job
  EXPECT_FALSE(b_.in_memory(its));
}

TEST_F(ObjectsTest, ObjectsPutAfterTheJobsEndKeepNoReferences) {
  const auto inner = b_.put(ObjectId{5}, 100), far = of_b(ObjectId{6}, 100);
  b_.count(kTwo, inner, kTwo, {}, 1);
  for (Side* side : {&a_, &b_}) {
    side->objects.end_job(kOther);
    side->objects.put(kOther, {}, ObjectRef{ObjectId{7}, kOther, 0, {}, {inner, far}, side->self}, *runtime::make_memory("late", 100));
  }
  world_.run_for(1s);
  b_.count(kTwo, inner, kTwo, {}, -1);
  a_.count(kOne, far, kOne, {}, -1);
  world_.run_for(1s);
  EXPECT_EQ(b_.memory.num_entries(), 0u);
  EXPECT_EQ(a_.objects.references().num_entries() + b_.objects.references().num_entries(), 0u);
}

TEST_F(ObjectsTest, ANewObjectIsNotTheMovedOne) {
  const auto key = of_b(ObjectId{5}, kLarge);
  get(key);
  world_.run_for(15ms);
  ASSERT_FALSE(got_);
  a_.objects.move(kJob, kOne, key, file(kLarge));  // a file with the contents of an earlier replica
  a_.objects.move(kOther, WorkerId{13}, key, file(kLarge));
  ASSERT_TRUE(comes());
  EXPECT_EQ(**got_, kLarge);
  EXPECT_TRUE(a_.in_memory(key));
}

TEST_F(ObjectsTest, ProcessesThatWantAReplicaMayMoveItAndOthersMayNot) {
  const auto key = of_b(ObjectId{5}, kMiB);
  get(key);
  ASSERT_TRUE(comes());
  a_.objects.move(kOther, WorkerId{13}, key, file(kMiB));
  EXPECT_TRUE(a_.in_memory(key));
  a_.objects.move(kOther, kOne, key, file(kMiB));
  EXPECT_FALSE(a_.in_memory(key));
}

class ObjectsRoomTest : public ObjectsTest {
 protected:
  void SetUp() override {
    if (!runtime::room_on_disk(kMiB, testing::TempDir())) GTEST_SKIP() << "tests have no disk here";
    b_.usage_board.emplace(words_.data());
    b_.usage_board->set_limit(100 * kMiB);
    b_.usage_board->set_members(1);
  }
  const Fd words_memory_ = runtime::make_memory("board", runtime::UsageBoard::kBytes).value();
  const runtime::Mapping words_ = runtime::map(words_memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
};

TEST_F(ObjectsRoomTest, EachObjectIsLookedAtWhenItIsItsTurn) {
  std::vector<ObjectKey> keys;
  for (std::uint64_t id = 1; id <= 4; ++id) keys.push_back(b_.put(ObjectId{id}, kMiB));
  EXPECT_EQ(b_.usage_board->total().kept, 4 * kMiB);  // no process counts them, since they have no maker
  b_.objects.make_room(100 * kMiB);
  ASSERT_EQ(b_.writes.size(), 1u);  // the first object is being written
  b_.memory.free(kJob, ObjectId{1});
  std::optional<Fd> reader;
  b_.memory.get(kJob, ObjectId{2}, {}, [&](Result<Fd> r) { reader = *std::move(r); });
  b_.write();
  ASSERT_EQ(b_.writes.size(), 1u);  // the third object is written next, since a process reads the second
  b_.write();
  EXPECT_FALSE(b_.in_memory(keys[2]));
  ASSERT_EQ(b_.writes.size(), 1u);
  std::optional<Fd> late;
  b_.memory.get(kJob, ObjectId{4}, {}, [&](Result<Fd> r) { late = *std::move(r); });
  b_.write();
  EXPECT_TRUE(b_.in_memory(keys[3]));  // a process reads it by now, so the file would free nothing and is dropped
  EXPECT_TRUE(b_.writes.empty());
  EXPECT_TRUE(b_.in_memory(keys[1]));
  EXPECT_EQ(b_.usage_board->total().kept, 2 * kMiB);
  EXPECT_EQ(b_.usage_board->total().spilled, kMiB);
  b_.objects.end_job(kJob);
  EXPECT_EQ(b_.usage_board->total().kept, 0u);
  EXPECT_EQ(b_.usage_board->total().spilled, 0u);
}

// Processes on three nodes put objects, pass references on, read, drop and die, while connections break. Each holder of a reference gets
// the value, and in the end no object is left.
TEST(ObjectsOfThreeNodes, ExistForTheirHoldersAndAreFreedInTheEnd) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    runtime::SimWorld world{{.seed = seed}};
    auto& random = world.random();
    FakeHead head(world);
    std::vector<std::unique_ptr<Side>> sides;
    std::map<WorkerId, Side*> all;
    for (std::uint64_t i = 0; i < 3; ++i) {
      sides.push_back(std::make_unique<Side>(world, head, "n" + std::to_string(i), NodeId{1 + i}));
      for (std::uint64_t w = 10 * (i + 1); w < 10 * (i + 1) + 3; ++w) {
        sides.back()->workers.insert(WorkerId{w});
        all[WorkerId{w}] = sides.back().get();
      }
    }
    ASSERT_TRUE(world.run_until([&] { return sides[0]->ready() && sides[1]->ready() && sides[2]->ready(); }, 10s));
    std::map<std::pair<WorkerId, ObjectKey>, std::int64_t> has;
    std::map<std::pair<WorkerId, ObjectKey>, int> times_dropped;
    std::uint64_t next_object = 1, gets = 0, came = 0;
    const auto drop = [&](WorkerId worker, const ObjectKey& object) {
      ++times_dropped[{worker, object}];
      if (const auto n = std::exchange(has[{worker, object}], 0)) all.at(worker)->count(worker, object, worker, {}, -n);
    };
    for (int step = 0; step < 400; ++step) {
      const auto any = [&] { return std::next(all.begin(), static_cast<std::ptrdiff_t>(random.below(all.size()))); };
      std::vector<std::pair<WorkerId, ObjectKey>> held;
      for (const auto& [key, n] : has) {
        if (n > 0) held.push_back(key);
      }
      const auto [worker, side] = *any();
      const auto what = held.empty() ? 0 : random.below(12);
      if (what == 0) {
        const auto object = side->put(ObjectId{next_object++}, random.below(4) == 0 ? 3u << 20 : 100);
        side->count(worker, object, worker, {}, 1);
        has[{worker, object}] = 1;
      } else if (what == 11) {
        const auto hosts = random.below(3);
        world.fabric().disconnect("n" + std::to_string(hosts), "n" + std::to_string((hosts + 1) % 3));
      } else {
        const auto& [holder, object] = held[random.below(held.size())];
        if (what <= 4) {
          all.at(holder)->count(holder, object, worker, side->self, 1);
          ++has[{worker, object}];
        } else if (what <= 7) {
          ++gets;
          all.at(holder)->get(holder, object, [&, key = std::pair(holder, object), n = times_dropped[{holder, object}]](Result<Message> r) {
            ++came;
            EXPECT_TRUE(r || times_dropped[key] != n) << "seed " << seed << ": " << r.error().message();
          });
        } else if (what <= 9) {
          drop(holder, object);
        } else if (random.below(8) == 0 && all.size() > 3) {
          const WorkerId dead = holder;
          all.at(dead)->dies(dead);
          for (auto& [key, n] : has) {
            if (key.first != dead) continue;
            n = 0;
            ++times_dropped[key];
          }
          all.erase(dead);
        }
      }
      world.run_for(std::chrono::microseconds(random.below(5000)));
    }
    world.run_for(10s);
    for (auto& [key, n] : has) {
      if (n > 0) drop(key.first, key.second);
    }
    world.run_for(30s);
    EXPECT_EQ(came, gets) << seed;
    for (const auto& side : sides) {
      EXPECT_EQ(side->memory.num_entries(), 0u) << seed;
      EXPECT_EQ(side->objects.references().num_entries(), 0u) << seed;
    }
  }
}

}  // namespace
}  // namespace shoal::scheduler
