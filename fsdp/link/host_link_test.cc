#include "fsdp/link/host_link.h"

#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "fsdp/shard/sharded_model.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/conformance/memory_layer.h"

namespace shoal::fsdp {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;
using Channel = runtime::MessageLayer::Channel;
using HostOfRank = std::vector<int>;

// Counts the bytes that ranks send as data, by sender and receiver.
struct Traffic {
  std::function<bool(runtime::MessageLayer::Channel)> held = {};  // true: messages of this channel wait
  std::mutex mutex;
  std::map<std::pair<int, int>, std::size_t> bytes;
  std::size_t between(const Hosts& hosts, int from, int to) {
    const std::lock_guard lock(mutex);
    std::size_t out = 0;
    for (const auto& [pair, n] : bytes) out += hosts.host_of(pair.first) == from && hosts.host_of(pair.second) == to ? n : 0;
    return out;
  }
};

// A clock that runs a tenth of a second ahead at each look.
class HastyClock final : public runtime::Clock {
 public:
  explicit HastyClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)) {}
  runtime::TimePoint now() const override { return clock_->now() + 100ms * looks_++; }
  std::int64_t unix_millis() const override { return clock_->unix_millis(); }
  runtime::Timer after(runtime::Duration delay, std::function<void()> fn) override { return clock_->after(delay, std::move(fn)); }
  int looks() const { return looks_; }

 private:
  const std::shared_ptr<Clock> clock_;
  mutable std::atomic<int> looks_{0};
};

class CountedLayer final : public runtime::MessageLayer {
 public:
  CountedLayer(std::shared_ptr<MessageLayer> layer, int rank, Traffic& traffic)
      : layer_(std::move(layer)), rank_(rank), traffic_(traffic) {}
  const char* name() const override { return layer_->name(); }
  void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) override {
    if (traffic_.held && traffic_.held(channel)) {
      transfer.state = Transfer::State::kPending;
      held_.push_back([this, to, channel, data, &transfer] { layer_->send(to, channel, data, transfer); });
      return;
    }
    if (channel == Channel::kData || channel == Channel::kResults) {
      const std::lock_guard lock(traffic_.mutex);
      traffic_.bytes[{rank_, to}] += data.size();
    }
    layer_->send(to, channel, data, transfer);
  }
  void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) override {
    layer_->receive(from, channel, data, transfer);
  }
  bool progress() override {
    const bool release = !held_.empty() && !traffic_.held(Channel::kData);
    if (release) {
      for (const auto& send : std::exchange(held_, {})) send();
    }
    return layer_->progress() || release;
  }
  void wait(runtime::Duration limit) override { layer_->wait(held_.empty() ? limit : runtime::Duration(1ms)); }
  void wake() override { layer_->wake(); }
  std::optional<Error> lost(int rank) const override { return layer_->lost(rank); }
  void flush(runtime::Duration limit) override { layer_->flush(limit); }
  void reset(std::span<const int> gone) override { layer_->reset(gone); }
  void begin_epoch() override { layer_->begin_epoch(); }

 private:
  const std::shared_ptr<MessageLayer> layer_;
  const int rank_;
  Traffic& traffic_;
  std::vector<std::function<void()>> held_;
};

// Parameters in place, sharded on another dim, in half precision, with gradients in half precision, large, and with fewer rows than ranks.
Layout layout_of(int unit) {
  Parameter half{"half", {4, 3}};
  half.compute_dtype = DType::kBFloat16;
  half.reduce_dtype = DType::kFloat32;
  Parameter columns{"columns", {3, 7}};
  columns.dim = 1;
  Parameter coarse{"coarse", {9, 4}};
  coarse.reduce_dtype = DType::kBFloat16;
  if (unit == 0) return Layout::make({{"w", {7, 5}}, columns, {"large", {1024, 300}}}).value();
  return Layout::make({half, coarse, {"b", {1}}, {"unused", {2, 2}}}).value();
}

// How the ranks of a test use their model.
struct Uses {
  std::function<bool(int rank, int step, std::size_t unit)> skips = [](int, int, std::size_t) { return false; };
  std::function<int(int rank, int step)> evaluations = [](int, int) { return 0; };  // before each step
  std::function<bool(int rank, int step)> fails = [](int, int) { return false; };   // in backward; then all ranks start over
};

class HostLinkTest : public testing::Test {
 protected:
  struct Ended {
    Bytes shards;  // this rank's shards, appended after each step
    Bytes wholes;  // whole parameters, appended as each forward reads them
    std::vector<std::vector<bool>> present;
  };

  Fd shared(const std::string& name, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto it = memories_.find(name);
    if (it == memories_.end()) it = memories_.emplace(name, runtime::make_memory(name, bytes).value()).first;
    return runtime::duplicate(it->second).value();
  }

  // One rank's model. Ranks of one host share memory; ranks of several hosts exchange messages.
  std::unique_ptr<ShardedModel> make(int rank, Grid grid, const HostOfRank& host_of_rank, const std::vector<Layout>& layouts) {
    const Hosts hosts(host_of_rank);
    const auto memory = [&](const std::string& name, std::size_t bytes) {
      return shared(name + " of host " + std::to_string(hosts.host_of(rank)), bytes);
    };
    ShardedModel::Options options;
    options.waits.spins = 0;
    options.waits.timeout = 20s;
    options.host_of_rank = host_of_rank;
    if (hosts.num_hosts() > 1) {
      const std::lock_guard lock(mutex_);
      if (!network_) network_ = std::make_unique<runtime::MemoryNetwork>(grid.world_size);
      options.layer = std::make_shared<CountedLayer>(network_->join(rank), rank, traffic_);
    }
    Units units;
    for (std::size_t u = 0; u < layouts.size(); ++u) {
      const auto name = "unit" + std::to_string(u);
      units.push_back(ShardedUnit::make(name, layouts[u], memory(name, layouts[u].arena_bytes(grid)), rank, grid, {}).value());
    }
    const std::size_t control = ShardedModel::control_bytes(units, grid.world_size),
                      slots = ShardedModel::slot_bytes(units, hosts, rank, 2);
    return std::make_unique<ShardedModel>(
        rank, grid, std::move(units), runtime::map(memory("control", control), control, runtime::Access::kReadWrite).value(),
        runtime::map(memory("slots", slots), slots, runtime::Access::kReadWrite).value(), model_clock_, std::move(options));
  }
  // Runs `program` on every rank, in a thread each, with the model of this test's layouts.
  void on_ranks(Grid grid, const HostOfRank& hosts, const std::function<void(ShardedModel&)>& program) {
    memories_.clear();
    network_.reset();
    traffic_.bytes.clear();
    std::vector<std::thread> ranks;
    for (int r = 0; r < grid.world_size; ++r) {
      ranks.emplace_back([&, r] {
        const auto model = make(r, grid, hosts, layouts_);
        program(*model);
      });
    }
    for (auto& t : ranks) t.join();
  }

  static void append(Bytes& out, const std::byte* data, std::size_t bytes) { out.insert(out.end(), data, data + bytes); }

  // The shards of a model begin with values that depend on owner and element.
  static void fill(ShardedModel& model, Grid grid) {
    const int shard = grid.shard_of(model.rank());
    for (const auto& unit : model.units()) {
      for (std::size_t i = 0; i < unit->layout().placed().size(); ++i) {
        auto* own = reinterpret_cast<float*>(unit->own(i));
        for (std::size_t k = 0; k < unit->own_bytes(i) / 4; ++k) own[k] = 0.37f * static_cast<float>(10 * shard + static_cast<int>(k % 97));
      }
    }
  }
  static Result<void> forward(ShardedModel& model, std::size_t u, bool training, Ended& ended) {
    const auto& unit = *model.units()[u];
    SHOAL_OK(model.forward_begin(u, training));
    for (std::size_t i = 0; i < unit.layout().placed().size(); ++i) append(ended.wholes, unit.whole(i), unit.layout().placed()[i].bytes);
    model.forward_end(u, training, true);
    return {};
  }
  // Gradients that depend on rank, step, parameter and element. `own`: the destinations.
  static Result<void> backward(ShardedModel& model, std::size_t u, int step, std::vector<std::vector<float>>& own, bool skipped = false) {
    const auto& unit = *model.units()[u];
    SHOAL_OK(model.backward_begin(u, model.leases().version()));
    std::vector<std::vector<float>> whole;
    std::vector<Reducer::Gradient> gradients;
    own.resize(unit.layout().placed().size());
    for (const auto& p : unit.layout().placed()) {
      whole.emplace_back(p.numel);
      for (std::size_t k = 0; k < p.numel; ++k)
        whole.back()[k] = 0.0173f * static_cast<float>(1 + model.rank() * 7 + step) * static_cast<float>(k % 1013 + 1);
      own[gradients.size()].resize(unit.own_bytes(gradients.size()) / 4);
      Reducer::Gradient g;
      const bool used = !skipped && p.parameter.name != "unused" && !(p.parameter.name == "b" && model.rank() == 0);
      g.whole = used ? reinterpret_cast<const std::byte*>(whole.back().data()) : nullptr;
      g.own = own[gradients.size()].empty() ? nullptr : reinterpret_cast<std::byte*>(own[gradients.size()].data());
      gradients.push_back(g);
    }
    return model.backward_end(u, gradients, {1.0 / unit.grid().world_size, true}, true);
  }
  // Subtracts the reduced gradients from the shards.
  static void update(ShardedModel& model, const std::vector<std::vector<std::vector<float>>>& own, Ended& ended) {
    for (const auto& reduced : model.reductions().take()) {
      ended.present.push_back(reduced.present);
      const auto& unit = *model.units()[reduced.unit];
      for (std::size_t i = 0; i < reduced.present.size(); ++i) {
        auto* shard = reinterpret_cast<float*>(unit.own(i));
        for (std::size_t k = 0; reduced.present[i] && k < own[reduced.unit][i].size(); ++k) shard[k] -= own[reduced.unit][i][k];
        append(ended.shards, unit.own(i), unit.own_bytes(i));
      }
    }
    model.end_step();
  }
  static Result<Ended> train(ShardedModel& model, Grid grid, const Uses& uses) {
    Ended ended;
    const int rank = model.rank();
    fill(model, grid);
    for (int step = 0; step < 3; ++step) {
      for (int e = 0; e < uses.evaluations(rank, step); ++e) {
        Ended unused;
        SHOAL_OK(model.enter(false));
        SHOAL_OK(forward(model, e % 2, false, unused));
      }
      std::vector<std::vector<std::vector<float>>> own(model.units().size());
      for (int attempt = 0; attempt < 2; ++attempt) {
        SHOAL_OK(model.enter(true));
        for (std::size_t u = 0; u < model.units().size(); ++u) {
          if (!uses.skips(rank, step, u)) SHOAL_OK(forward(model, u, true, ended));
        }
        const bool all_fail = [&] {
          for (int r = 0; r < grid.world_size; ++r) {
            if (uses.fails(r, step)) return true;
          }
          return false;
        }();
        for (std::size_t u = model.units().size(); u-- > 0;) {
          if (attempt == 0 && uses.fails(rank, step) && u == 0) break;
          SHOAL_OK(backward(model, u, step, own[u], uses.skips(rank, step, u)));
        }
        if (attempt == 1 || !all_fail) break;
        model.reset();
        ended.wholes.clear();
      }
      SHOAL_OK(model.finish_backward(true));
      update(model, own, ended);
    }
    return ended;
  }

  std::vector<Ended> run(Grid grid, const HostOfRank& hosts, const Uses& uses = {}) {
    std::vector<Ended> out(static_cast<std::size_t>(grid.world_size));
    on_ranks(grid, hosts, [&](ShardedModel& model) {
      auto ended = train(model, grid, uses);
      ASSERT_TRUE(ended) << ended.error().to_string();
      out[static_cast<std::size_t>(model.rank())] = *std::move(ended);
    });
    return out;
  }
  void expect_same_as_one_host(Grid grid, const HostOfRank& hosts, const Uses& uses = {}) {
    const auto several = run(grid, hosts, uses), one = run(grid, HostOfRank(static_cast<std::size_t>(grid.world_size)), uses);
    for (std::size_t r = 0; r < several.size(); ++r) {
      EXPECT_EQ(several[r].wholes, one[r].wholes) << r;
      EXPECT_EQ(several[r].shards, one[r].shards) << r;
      EXPECT_EQ(several[r].present, one[r].present) << r;
      EXPECT_FALSE(several[r].shards.empty());
    }
  }

  runtime::Loop loop_;
  const std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::shared_ptr<runtime::Clock> model_clock_ = clock_;
  std::mutex mutex_;
  std::map<std::string, Fd> memories_;
  std::unique_ptr<runtime::MemoryNetwork> network_;
  Traffic traffic_;
  std::vector<Layout> layouts_ = {layout_of(0), layout_of(1)};
};

struct Placement {
  Grid grid;
  HostOfRank hosts;
};

class HostLinkPlacementTest : public HostLinkTest, public testing::WithParamInterface<Placement> {};

TEST_P(HostLinkPlacementTest, TrainsToTheBitsOfOneHost) { expect_same_as_one_host(GetParam().grid, GetParam().hosts); }

INSTANTIATE_TEST_SUITE_P(Placements, HostLinkPlacementTest,
                         testing::Values(Placement{{2, 1}, {0, 1}}, Placement{{3, 1}, {0, 1, 2}}, Placement{{4, 1}, {0, 0, 1, 1}},
                                         Placement{{4, 1}, {0, 1, 0, 1}}, Placement{{3, 1}, {0, 1, 1}},
                                         Placement{{6, 1}, {0, 0, 0, 1, 1, 1}}, Placement{{5, 1}, {0, 0, 0, 0, 1}},
                                         Placement{{4, 2}, {0, 0, 1, 1}}, Placement{{4, 2}, {0, 1, 0, 1}}, Placement{{4, 2}, {0, 1, 2, 3}},
                                         Placement{{2, 2}, {0, 1}}));

TEST_F(HostLinkTest, LargeSumsOfSeveralRanksTravelInPieces) {
  layouts_ = {Layout::make({{"large", {4096, 700}}}).value()};
  expect_same_as_one_host({4, 1}, {0, 0, 1, 1});
}

TEST_F(HostLinkTest, SumsOfDoublesThatTravelInHalfPrecisionHaveTheBitsOfOneHost) {
  Parameter p{"w", {16, 5}, DType::kFloat64};
  p.reduce_dtype = DType::kBFloat16;
  const auto reduce = [&](const HostOfRank& hosts) {
    layouts_ = {Layout::make({p}).value()};
    std::map<int, std::vector<double>> out;
    on_ranks({4, 1}, hosts, [&](ShardedModel& model) {
      ASSERT_TRUE(model.enter(true));
      ASSERT_TRUE(model.unshard(0));
      std::vector<double> whole(80), own(20);
      for (std::size_t k = 0; k < 80; ++k) whole[k] = 1.0 / (1 + model.rank()) + 1e-3 * static_cast<double>(k);
      const Reducer::Gradient g{reinterpret_cast<const std::byte*>(whole.data()), reinterpret_cast<std::byte*>(own.data()), false,
                                DType::kFloat64};
      ASSERT_TRUE(model.publish(0, std::span(&g, 1), {0.3}));
      ASSERT_TRUE(model.finish_backward(true));
      const std::lock_guard lock(mutex_);
      out[model.rank()] = own;
    });
    return out;
  };
  const auto several = reduce({0, 0, 1, 1}), one = reduce({0, 0, 0, 0});
  EXPECT_EQ(several, one);
  EXPECT_NE(one.at(0)[0], 0);
}

TEST_F(HostLinkTest, DataThatAreLongUnderWayAreNoDeadlock) {
  const auto clock = std::make_shared<HastyClock>(clock_);
  model_clock_ = clock;
  // Rows and sums wait until every rank has looked for seconds of this clock, several times as long as the proof of a deadlock.
  const int until = 120;
  traffic_.held = [&](Channel channel) { return (channel == Channel::kData || channel == Channel::kResults) && clock->looks() < until; };
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    const auto read = model.unshard(0);
    ASSERT_TRUE(read) << read.error().to_string();
  });
}

TEST_F(HostLinkTest, ARankThatEndsInBackwardHoldsUpNoOther) {
  const auto clock = std::make_shared<HastyClock>(clock_);
  model_clock_ = clock;
  on_ranks({4, 1}, {0, 0, 1, 1}, [&](ShardedModel& model) {
    Ended unused;
    std::vector<std::vector<float>> own[2];
    ASSERT_TRUE(model.enter(true));
    for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
    ASSERT_TRUE(backward(model, 1, 0, own[1]));
    if (model.rank() == 1) return;  // has published unit 1, not unit 0
    auto ended = backward(model, 0, 0, own[0]);
    if (ended) ended = model.finish_backward(true);
    ASSERT_FALSE(ended);
    EXPECT_NE(ended.error().message().find("rank"), std::string::npos);
  });
  EXPECT_LT(clock->looks(), 600);  // the links' ends did not wait for sums that can never be made
}

TEST_F(HostLinkTest, RanksMaySkipUnits) {
  Uses uses;
  uses.skips = [](int rank, int step, std::size_t unit) { return rank == step % 4 && unit == 1; };
  expect_same_as_one_host({4, 1}, {0, 0, 1, 1}, uses);
}

TEST_F(HostLinkTest, RanksMayEvaluateAtTheirOwnPace) {
  Uses uses;
  uses.evaluations = [](int rank, int step) { return 3 * rank + step; };
  expect_same_as_one_host({3, 1}, {0, 1, 1}, uses);
}

TEST_F(HostLinkTest, AStepThatFailedOnOneRankIsRepeatedByAll) {
  Uses uses;
  uses.fails = [](int rank, int step) { return rank == 2 && step == 1; };
  for (int i = 0; i < 5; ++i) expect_same_as_one_host({4, 1}, {0, 0, 1, 1}, uses);
}

TEST_F(HostLinkTest, EachHostGetsARowOnceAndSendsOneSumPerRow) {
  const Grid grid(4, 1);
  const Hosts hosts({0, 0, 1, 1});
  layouts_ = {Layout::make({{"w", {64, 50}}}).value()};
  run(grid, {0, 0, 1, 1});
  // Three steps: rows of three versions, of half of the parameters; sums for the other half.
  const std::size_t half = 64 * 50 * 4 / 2;
  EXPECT_EQ(traffic_.between(hosts, 0, 1), 3 * 2 * half);
  EXPECT_EQ(traffic_.between(hosts, 1, 0), 3 * 2 * half);
}

TEST_F(HostLinkTest, RowsOfAFrozenUnitAreSentOnceAndAgainWhenTheyChange) {
  const Hosts hosts({0, 1});
  Parameter frozen{"w", {6, 5}};
  frozen.requires_grad = false;
  layouts_ = {Layout::make({frozen}).value()};
  std::vector<std::size_t> sent;
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    fill(model, {2, 1});
    for (int version = 0; version < 4; ++version) {
      if (version == 3) reinterpret_cast<float*>(model.units()[0]->own(0))[1] += 1;
      ASSERT_TRUE(model.enter(true));
      ASSERT_TRUE(model.unshard(0));
      EXPECT_EQ(reinterpret_cast<const float*>(model.units()[0]->whole(0))[16], 3.7f + 0.37f + (version == 3 ? 1.0f : 0.0f));
      ASSERT_TRUE(model.leases().open_window("a test"));
      if (model.rank() == 0) sent.push_back(traffic_.between(hosts, 0, 1));
    }
  });
  EXPECT_EQ(sent, (std::vector<std::size_t>{60, 60, 60, 120}));
}

TEST_F(HostLinkTest, SumsOverRanksAreTheSameOnAllHosts) {
  on_ranks({3, 1}, {0, 0, 1}, [&](ShardedModel& model) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(model.reductions().sum_over_ranks(model.rank() + i).value(), 3 + 3 * i);
  });
}

TEST_F(HostLinkTest, DifferentModelsAreAnErrorOnEveryRank) {
  std::thread other([&] {
    const auto one = make(1, 2, {0, 1}, {layout_of(1), layout_of(0)});
    EXPECT_EQ(one->unshard(0).error().reason(), "Diverged");
  });
  const auto zero = make(0, 2, {0, 1}, {layout_of(0), layout_of(1)});
  EXPECT_EQ(zero->unshard(0).error().reason(), "Diverged");
  other.join();
}

TEST_F(HostLinkTest, RanksThatReduceDifferentUnitsGetAnError) {
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    Ended unused;
    ASSERT_TRUE(model.enter(true));
    for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
    std::vector<std::vector<float>> own;
    auto ended = backward(model, static_cast<std::size_t>(model.rank()), 0, own);
    if (ended) ended = model.finish_backward(true);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
  });
}

TEST_F(HostLinkTest, WaitsThatCannotEndAreAnErrorOnEveryHost) {
  on_ranks({3, 1}, {0, 0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(false));
    ASSERT_TRUE(model.unshard(0));
    // Rank 0 waits for the others' windows, the others for its part of a sum.
    const auto ended =
        model.rank() == 0 ? model.leases().open_window("a test") : Result<void>(model.reductions().sum_over_ranks(1).map([](double) {}));
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
    EXPECT_NE(ended.error().message().find("all ranks wait for each other"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, TheDeathOfARankIsAnErrorOnEveryHost) {
  std::latch all_read(4);
  on_ranks({4, 1}, {0, 0, 1, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 3) {
      network_->kill(3, "its connection was reset");
      return;
    }
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    if (model.rank() == 2) return;  // its node would report the death on the host's page
    EXPECT_EQ(ended.error().reason(), "ActorDied");
    EXPECT_NE(ended.error().message().find("rank 3 is gone: its connection was reset"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, ARankThatLeftIsNamedOnEveryHost) {
  std::latch all_read(3);
  on_ranks({3, 1}, {0, 1, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 1) return;
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "ActorDied");
    EXPECT_NE(ended.error().message().find("rank 1 has left"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, AKilledActorIsReportedWithItsCause) {
  std::latch all_read(2);
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 1) {
      model.peers().mark_gone("ShardActor rank 1 ended: killed by a test");
      return;
    }
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    EXPECT_NE(ended.error().message().find("killed by a test"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, RanksWithoutBatchesServeTheOthers) {
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    std::vector<std::vector<float>> own[2];
    Ended unused;
    ASSERT_TRUE(model.enter(true));
    if (model.rank() == 0) {
      for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
      for (std::size_t u = 2; u-- > 0;) ASSERT_TRUE(backward(model, u, 0, own[u]));
      ASSERT_TRUE(model.finish_backward(true));
      model.join();
    } else {
      model.join();
      std::vector<std::size_t> asked;
      while (true) {
        const auto next = model.asked();
        ASSERT_TRUE(next) << next.error().to_string();
        if (next->what != ShardedModel::Asked::What::kPublish) break;
        asked.push_back(next->unit);
        ASSERT_TRUE(backward(model, next->unit, 0, own[next->unit], true));
      }
      EXPECT_EQ(asked, (std::vector<std::size_t>{1, 0}));
      ASSERT_TRUE(model.finish_backward(true));
    }
  });
}

}  // namespace
}  // namespace shoal::fsdp
