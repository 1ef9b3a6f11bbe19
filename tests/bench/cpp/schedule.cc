// Training steps of a model like Llama 3.1 8B on clusters that are not there, by our step machine and by FSDP2's schedule, both on the same
// virtual device (fsdp/device/virtual_device.h). A line of JSON per scenario and side:
// {"name": .., "side": "ours" or "fsdp2", "step": seconds, "exposed": .., "peak": bytes, "reserved": ..}. Exposed communication is the
// step's duration without its computation. `schedule --timeline NAME` prints the operations of the scenario's steps instead. Asserts
// nothing.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fsdp/plan/trace.h"
#include "fsdp/step/device_timeline.h"
#include "runtime/core/check.h"
#include "tests/bench/cpp/fsdp2_schedule.h"

namespace shoal::bench {
namespace {

using namespace fsdp;  // NOLINT: this program is about its types

// ---- the clusters and the model --------------------------------------------------------------------------------------------------------

// An H100 SXM has HBM3 with 3.35 TB/s and PCIe 5 x16 with 64 GB/s per direction (NVIDIA's data sheet). Assumed: large copies reach 85 % and
// 78 % of them. The host's costs are assumptions, too, and the same for both sides.
constexpr DeviceCosts kH100{.memory = 2.85e12, .to_device = 50e9, .to_host = 50e9};

// NVLink has 450 GB/s per direction (NVIDIA's data sheet). Assumed for all_gather and reduce_scatter of large messages: 80 % of it.
constexpr double kNvlink = 360e9;
// An NDR adapter of 400 Gbit/s reaches 46 to 48 GB/s (reports of users of NVIDIA's nccl-tests). Assumed for a step: 42.
constexpr double kAdapter = 42e9;

enum Link { kInHost, kBetweenHosts };

Communicator in_host(int ranks) { return {.ranks = ranks, .bus_bandwidth = kNvlink, .latency = 20e-6, .link = kInHost}; }
// A ring through each of a host's adapters, so that all ranks together have the bandwidth of all.
Communicator between_hosts(int ranks, double adapters) {
  return {.ranks = ranks, .bus_bandwidth = adapters * kAdapter, .latency = 50e-6, .link = kBetweenHosts};
}

// torchtitan reports 326 to 386 TFLOP/s of whole steps on 8 H100 (benchmarks/llama3_h100_202412_torchtitan.md: 33 to 39 % of 989).
// Kernels of a step reach a little more than the step.
constexpr double kFlops = 420e12;
constexpr double kHidden = 4096, kSequence = 8192;

// 32 blocks of 218 million parameters, beside the embedding and the head, which are units of their own, as in torchtitan.
std::vector<DeviceUnit> llama_8b(double tokens) {
  constexpr double kBlock = 218.1e6, kVocabulary = 128256;
  const auto dense = [&](double numel) { return 2 * numel * tokens / kFlops; };
  const double attention = 2 * tokens * std::min(tokens, kSequence) * kHidden / kFlops;  // causal: half of the pairs
  const double lookup = tokens * kHidden * 4 / kH100.memory;
  // Selective checkpointing keeps about ten tensors of the hidden size in bf16 per block.
  const double activations = tokens * kHidden * 2 * 10;
  std::vector<DeviceUnit> units{{.name = "root"}};
  units.push_back({"embedding", kVocabulary * kHidden, lookup, lookup + kVocabulary * kHidden * 2 / kH100.memory, tokens * kHidden * 2, 1});
  const double block = dense(kBlock) + attention;
  for (int i = 0; i < 32; ++i) units.push_back({fmt::format("layers.{}", i), kBlock, block, 2 * block, activations, 40});
  const double head = dense(kVocabulary * kHidden);
  units.push_back({"head", kVocabulary * kHidden, head, 2 * head, tokens * kVocabulary * 2, 5});
  return units;
}

struct Scenario {
  std::string name;
  DeviceModel model;
  int listed = 0;  // how many units ahead the program's prefetch lists name; 0: no lists
};

std::vector<Scenario> scenarios() {
  const auto on = [](Communicator shards, Communicator replicas = {}, double tokens = 8192) {
    DeviceModel m;
    m.units = llama_8b(tokens);
    m.shards = shards;
    m.replicas = replicas;
    m.large_slices = true;
    return m;
  };
  const auto with = [](DeviceModel m, auto change) {
    change(m);
    return m;
  };
  const auto separate = [](DeviceModel& m) { m.reductions = m.shards; };
  const Communicator host = in_host(8), hosts = between_hosts(16, 8), slow = between_hosts(16, 1);
  return {
      {"implicit, 8 GPUs", on(host)},
      {"implicit, 8 GPUs, bf16 reduced", with(on(host), [](DeviceModel& m) { m.reduce = 2; })},
      {"implicit, 8 GPUs, 1k tokens", on(host, {}, 1024)},
      {"CPU offload, 8 GPUs", with(on(host), [](DeviceModel& m) { m.offloads = true; })},
      {"implicit, 2 x 8", on(hosts)},
      {"lists of 2, 2 x 8", on(hosts), 2},
      {"HSDP, 2 x 8", on(host, between_hosts(2, 1))},
      {"own reduce group, 2 x 8", with(on(hosts), separate)},
      {"implicit, 2 x 8, 1 NIC", on(slow)},
      {"lists of 2, 2 x 8, 1 NIC", on(slow), 2},
      {"HSDP, 2 x 8, 1 NIC", on(host, between_hosts(2, 1.0 / 8))},
      {"own reduce group, 2 x 8, 1 NIC", with(on(slow), separate)},
      {"our groups in place, 8 GPUs", with(on(host), [](DeviceModel& m) { m.own_groups = true; })},
      {"our groups in place, 2 x 8", with(on(hosts), [](DeviceModel& m) { m.own_groups = true; })},
  };
}

// ---- the program -----------------------------------------------------------------------------------------------------------------------

// One side: what its hooks do.
class Side {
 public:
  Side(const Scenario& scenario) : model_(scenario.model), device_(kH100), program_(device_, model_) {}
  virtual ~Side() = default;

  void step() {
    const int root = 0, head = num_units() - 1;
    began_ = device_.now();
    device_.forget_peak();
    forward_begins(root);
    for (int u = 1; u <= head; ++u) {
      forward_begins(u);
      program_.forward(u);
      forward_ends(u);
    }
    forward_ends(root);
    backward_begins(root);
    for (int u = head; u > root; --u) {
      backward_begins(u);
      program_.backward(u);
      if (u > 1) backward_ends(u);  // the embedding's input has no gradient, so autograd ends its backward with the pass
    }
    pass_ends();
    program_.optimizer();
    optimizer_ends();
    device_.synchronize();  // the program reads the loss
  }
  void print(const std::string& scenario, const char* side) const {
    const double took = device_.now() - began_;
    std::printf("{\"name\": \"%s\", \"side\": \"%s\", \"step\": %.9f, \"exposed\": %.9f, \"peak\": %.0f, \"reserved\": %.0f}\n",
                scenario.c_str(), side, took, took - model_.compute_seconds(kH100), device_.peak(), device_.reserved());
  }
  void print_timeline(const char* side) const {
    std::printf("== %s ==\n%s", side, device_.timeline(began_).c_str());
    using Kind = VirtualDevice::Kind;
    std::printf("peak: %.2f GB; shards %.2f, whole %.2f, packed %.2f, gradients %.2f, activations %.2f\n\n", device_.peak() / 1e9,
                device_.at_peak(Kind::kShards) / 1e9, device_.at_peak(Kind::kWhole) / 1e9, device_.at_peak(Kind::kPacked) / 1e9,
                device_.at_peak(Kind::kGradients) / 1e9, device_.at_peak(Kind::kActivations) / 1e9);
  }

 protected:
  int num_units() const { return static_cast<int>(model_.units.size()); }
  virtual void forward_begins(int unit) = 0;
  virtual void forward_ends(int unit) = 0;
  virtual void backward_begins(int unit) = 0;
  virtual void backward_ends(int unit) = 0;
  virtual void pass_ends() = 0;
  virtual void optimizer_ends() {}

  const DeviceModel model_;
  VirtualDevice device_;
  DeviceProgram program_;
  double began_ = 0;
};

// As many units ahead as the scenario's lists name, in forward and in backward.
void list(const Scenario& scenario, int unit, std::vector<int>& forward, std::vector<int>& backward) {
  const int units = static_cast<int>(scenario.model.units.size());
  if (unit == 0) return;
  for (int i = 1; i <= scenario.listed; ++i) {
    if (unit + i < units) forward.push_back(unit + i);
    if (unit - i > 0) backward.push_back(unit - i);
  }
}

class Ours final : public Side {
 public:
  explicit Ours(const Scenario& scenario) : Side(scenario), machine_(units(scenario)), timeline_(machine_, program_, device_, model_) {
    std::vector<std::vector<StepMachine::Group>> groups;
    for (int u = 0; u < num_units(); ++u) {
      const bool empty = model_.units[static_cast<std::size_t>(u)].numel == 0;
      groups.push_back({{.index = u, .empty = empty, .collectives = true, .gathers = !empty, .replicated = model_.replicas.ranks > 1}});
    }
    machine_.set_groups(std::move(groups), 2);
    machine_.set_inputs(model_.inputs);
  }
  // The plan of the traced first step.
  void learn() {
    std::vector<std::string> names;
    std::vector<Boundary> forward{{false, true, 0}};
    std::vector<bool> reshards;
    PlanOptions options{.prefetch = {.depth = 1}, .min_part = 2};
    for (int u = 0; u < num_units(); ++u) {
      names.push_back(model_.units[static_cast<std::size_t>(u)].name);
      reshards.push_back(machine_.after_forward(u) == UnitRules::AfterForward::kReshard);
      if (u > 0) forward.insert(forward.end(), {{false, true, u}, {false, false, u}});
      for (const bool backward : {false, true}) {
        const auto& ahead =
            backward ? rules_[static_cast<std::size_t>(u)]->backward_prefetch : rules_[static_cast<std::size_t>(u)]->forward_prefetch;
        if (!ahead.empty()) options.prefetch.lists.push_back({u, backward, {ahead.begin(), ahead.end()}});
      }
    }
    forward.push_back({false, false, 0});
    timeline_.follow(Plan::from_trace(names, expected_trace(forward, reshards), options).schedule());
  }

 private:
  std::vector<StepMachine::UnitOptions> units(const Scenario& scenario) {
    std::vector<StepMachine::UnitOptions> out;
    for (int u = 0; u < num_units(); ++u) {
      const auto rules = std::make_shared<UnitRules>();
      list(scenario, u, rules->forward_prefetch, rules->backward_prefetch);
      if (u == num_units() - 1) rules->after_forward = UnitRules::AfterForward::kKeep;
      rules_.push_back(rules);
      out.push_back({u == 0 ? "" : model_.units[static_cast<std::size_t>(u)].name, u == 0, rules});
    }
    return out;
  }
  void carry_out(const Result<Actions>& actions) {
    device_.spend(kH100.hook);
    SHOAL_CHECK(perform(machine_, timeline_, actions).has_value(), "the virtual device refused an action");
  }
  void forward_begins(int u) override {
    carry_out(machine_.forward_begin(u, {.training = true}));
    machine_.watched(u);
  }
  void forward_ends(int u) override { carry_out(machine_.forward_end(u, {.training = true})); }
  void backward_begins(int u) override {
    if (!machine_.in_pass()) carry_out(machine_.begin_pass());
    carry_out(machine_.backward_begin(u, {}));
  }
  void backward_ends(int u) override { carry_out(machine_.backward_end(u)); }
  void pass_ends() override { carry_out(machine_.pass_ends(/*alive=*/false)); }
  void optimizer_ends() override {
    carry_out(machine_.optimizer_begin());
    carry_out(machine_.optimizer_end());
  }

  std::vector<std::shared_ptr<UnitRules>> rules_;
  StepMachine machine_;
  DeviceTimeline timeline_;
};

class Fsdp2 final : public Side {
 public:
  explicit Fsdp2(const Scenario& scenario) : Side(scenario), schedule_(program_, device_, model_, rules(scenario)) {}

 private:
  static std::vector<Fsdp2Schedule::Rules> rules(const Scenario& scenario) {
    std::vector<Fsdp2Schedule::Rules> out(scenario.model.units.size());
    for (std::size_t u = 0; u < out.size(); ++u) list(scenario, static_cast<int>(u), out[u].forward_prefetch, out[u].backward_prefetch);
    out.back().reshard_after_forward = false;
    return out;
  }
  void forward_begins(int u) override {
    if (u == 0) schedule_.root_pre_forward();
    schedule_.pre_forward(u);
  }
  void forward_ends(int u) override {
    schedule_.post_forward(u);
    if (u == 0) schedule_.root_post_forward();
  }
  void backward_begins(int u) override { schedule_.pre_backward(u); }
  void backward_ends(int u) override { schedule_.post_backward(u); }
  void pass_ends() override { schedule_.root_post_backward_final_callback(); }

  Fsdp2Schedule schedule_;
};

constexpr int kSteps = 3;  // the last one counts

int main(int argc, char** argv) {
  const bool shows = argc > 1 && std::string_view(argv[1]) == "--timeline";
  const std::string_view only = shows && argc > 2 ? argv[2] : "";
  int ran = 0;
  for (const Scenario& scenario : scenarios()) {
    if (!only.empty() && only != scenario.name) continue;
    ++ran;
    Ours ours(scenario);
    Fsdp2 fsdp2(scenario);
    ours.step();
    ours.learn();
    for (int i = 1; i < kSteps; ++i) ours.step();
    for (int i = 0; i < kSteps; ++i) fsdp2.step();
    if (shows) {
      std::printf("%s\n", scenario.name.c_str());
      ours.print_timeline("ours");
      fsdp2.print_timeline("FSDP2");
    } else {
      ours.print(scenario.name, "ours");
      fsdp2.print(scenario.name, "fsdp2");
    }
  }
  if (ran > 0) return 0;
  std::fprintf(stderr, "no scenario is named %s; there are:\n", std::string(only).c_str());
  for (const Scenario& scenario : scenarios()) std::fprintf(stderr, "  %s\n", scenario.name.c_str());
  return 2;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) { return shoal::bench::main(argc, argv); }
