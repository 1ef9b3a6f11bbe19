// Models of ranks that are threads of a test, on one host or several.
#pragma once

#include "fsdp/link/host_link.h"

#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "fsdp/link/counted_layer.h"
#include "fsdp/link/tested_models.h"
#include "fsdp/shard/sharded_model.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/conformance/memory_layer.h"

namespace shoal::fsdp {

using Bytes = std::vector<std::byte>;
using HostOfRank = std::vector<int>;

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
    const Hosts hosts(host_of_rank, places_);
    const auto memory = [&](const std::string& name, std::size_t bytes) {
      return shared(name + " of host " + std::to_string(hosts.host_of(rank)), bytes);
    };
    ShardedModel::Options options;
    options.waits.spins = 0;
    options.waits.timeout = 20s;
    options.host_of_rank = host_of_rank, options.places = places_;
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
  std::vector<int> places_;  // by rank (Hosts::place_of)
  std::vector<Layout> layouts_ = {layout_of(0), layout_of(1)};
};

}  // namespace shoal::fsdp
