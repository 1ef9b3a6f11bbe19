#include "scheduler/cli/run/allocation.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return Environment(entries);
}

Result<Allocation> decide(const Variables& variables, const LaunchOptions& options = {},
                          const OwnNames& own = {"here", "", {"10.0.0.9"}, {}}) {
  return decide_allocation(options, environment_of(variables), own);
}

// Expects a refusal whose message has all of `texts`.
void expect_refused(const Result<Allocation>& decided, const std::vector<std::string>& texts) {
  ASSERT_FALSE(decided) << "host " << decided->node_rank << " of " << decided->min_nodes;
  for (const auto& text : texts) EXPECT_NE(decided.error().to_string().find(text), std::string::npos) << decided.error().to_string();
}

// The variables of each system for the second of two hosts.
const std::map<std::string, Variables> kSystems = {
    {"Slurm",
     {{"SLURM_JOB_ID", "12"},
      {"SLURM_STEP_ID", "3"},
      {"SLURM_RESTART_COUNT", "1"},
      {"SLURM_NODEID", "1"},
      {"SLURM_PROCID", "1"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_STEP_NODELIST", "gpu[08-09]"},
      {"SLURM_JOB_NUM_NODES", "4"},
      {"SLURM_JOB_NODELIST", "gpu[07-10]"}}},
    {"Kubeflow",
     {{"PET_NODE_RANK", "1"},
      {"PET_NNODES", "2"},
      {"PET_NPROC_PER_NODE", "8"},
      {"PET_MASTER_ADDR", "train-node-0-0.train"},
      {"PET_RDZV_ENDPOINT", "train-node-0-0.train:29400"},
      {"PET_RDZV_ID", "train"}}},
    {"SkyPilot",
     {{"SKYPILOT_NODE_RANK", "1"},
      {"SKYPILOT_NUM_NODES", "2"},
      {"SKYPILOT_NODE_IPS", "10.0.0.8\n10.0.0.9"},
      {"SKYPILOT_NUM_GPUS_PER_NODE", "8"},
      {"SKYPILOT_TASK_ID", "sky-7"}}},
    {"dstack",
     {{"DSTACK_NODE_RANK", "1"},
      {"DSTACK_NODES_NUM", "2"},
      {"DSTACK_NODES_IPS", "10.0.0.8\n10.0.0.9"},
      {"DSTACK_MASTER_NODE_IP", "10.0.0.8"},
      {"DSTACK_GPUS_PER_NODE", "8"},
      {"DSTACK_RUN_ID", "wise-otter"}}},
    {"Open MPI",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}},
    {"Kubernetes", {{"JOB_COMPLETION_INDEX", "1"}, {"HOSTNAME", "train-1"}, {"WORLD_SIZE", "2"}}},
    {"torchrun",
     {{"GROUP_RANK", "1"},
      {"NODE_RANK", "1"},
      {"RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "1"},
      {"MASTER_ADDR", "10.0.0.8"},
      {"TORCHELASTIC_RUN_ID", "run"}}},
};

TEST(Allocation, OneHostWithoutASchedulerIsAlone) {
  const auto alone = decide({{"HOSTNAME", "here"}, {"HOME", "/root"}});
  ASSERT_TRUE(alone) << alone.error().to_string();
  EXPECT_TRUE(alone->leads());
  EXPECT_EQ(alone->min_nodes, 1u);
  EXPECT_FALSE(alone->elastic);
  EXPECT_TRUE(alone->taken.empty());
}

TEST(Allocation, EachSystemNamesTheSecondOfTwoHosts) {
  for (const auto& [system, variables] : kSystems) {
    const auto decided = decide(variables, {}, {"gpu09", "train.default.svc", {"10.0.0.9"}, {}});
    ASSERT_TRUE(decided) << system << ": " << decided.error().to_string();
    EXPECT_EQ(decided->node_rank, 1u) << system;
    EXPECT_EQ(decided->min_nodes, 2u) << system;
    EXPECT_EQ(decided->max_nodes, 2u) << system;
    EXPECT_FALSE(decided->elastic) << system;
  }
}

TEST(Allocation, TheFirstHostIsKnownWhereTheSystemNamesIt) {
  const auto leader = [](const std::string& system) { return decide(kSystems.at(system), {}, {"gpu09", "svc", {"10.0.0.9"}, {}})->leader; };
  EXPECT_EQ(leader("Slurm"), "gpu08");
  EXPECT_EQ(leader("Kubeflow"), "train-node-0-0.train");
  EXPECT_EQ(leader("SkyPilot"), "10.0.0.8");
  EXPECT_EQ(leader("dstack"), "10.0.0.8");
  EXPECT_EQ(leader("Kubernetes"), "train-0.svc");
  EXPECT_EQ(leader("torchrun"), "10.0.0.8");
  EXPECT_EQ(leader("Open MPI"), "");
}

TEST(Allocation, TheRunHasAName) {
  EXPECT_EQ(decide(kSystems.at("Slurm"), {}, {"gpu09", "", {}, {}})->run, "12-3-1");
  EXPECT_EQ(decide(kSystems.at("dstack"))->run, "wise-otter");
  EXPECT_EQ(decide({})->run, "");
}

// Each row of the table takes effect: a variable is taken, and with another value the decision is another one or refused.
TEST(Allocation, EveryVariableOfTheTableTakesEffect) {
  const OwnNames own{"gpu09", "svc", {"10.0.0.9"}, {}};
  for (const auto& v : launch_variables()) {
    auto variables = kSystems.at(v.system);
    ASSERT_TRUE(variables.contains(v.name)) << v.name << " lacks an example";
    // Two variables take effect only where others are absent.
    if (v.name == std::string("SLURM_JOB_NODELIST")) variables.erase("SLURM_STEP_NODELIST"), variables["SLURM_JOB_NODELIST"] = "gpu[08-09]";
    if (v.name == std::string("SLURM_JOB_NUM_NODES")) variables.erase("SLURM_STEP_ID"), variables["SLURM_JOB_NUM_NODES"] = "1";
    const auto before = decide(variables, {}, own);
    ASSERT_TRUE(before) << v.name << ": " << before.error().to_string();
    const auto shown = v.name + ("=" + variables[v.name]);
    EXPECT_EQ(std::count(before->taken.begin(), before->taken.end(), shown), 1)
        << shown << " is not among " << fmt::format("{}", fmt::join(before->taken, " "));
    variables[v.name] = v.fact == LaunchFact::kNodes    ? "gpu[08-10]"
                        : v.fact == LaunchFact::kPod    ? "other-1"
                        : v.fact == LaunchFact::kLeader ? "other"
                                                        : "5";
    const auto after = decide(variables, {}, own);
    if (!after) {
      EXPECT_NE(after.error().message().find(v.name), std::string::npos) << after.error().to_string();
      continue;
    }
    EXPECT_TRUE(after->run != before->run || after->leader != before->leader || after->num_ranks != before->num_ranks ||
                after->min_nodes != before->min_nodes)
        << v.name;
  }
}

TEST(Allocation, AContradictionNamesBothSides) {
  auto variables = kSystems.at("Slurm");
  variables["PET_NODE_RANK"] = "0";
  expect_refused(decide(variables, {}, {"gpu09", "", {}, {}}), {"SLURM_NODEID=1", "PET_NODE_RANK=0", "number"});
  variables = kSystems.at("SkyPilot");
  variables["WORLD_SIZE"] = "16";
  expect_refused(decide(variables), {"SKYPILOT_NUM_NODES=2", "WORLD_SIZE=16"});
  variables = kSystems.at("dstack");
  variables["MASTER_ADDR"] = "10.0.0.7";
  expect_refused(decide(variables), {"DSTACK_MASTER_NODE_IP=10.0.0.8", "MASTER_ADDR=10.0.0.7"});
  expect_refused(decide({}, {.nodes = {"a", "b", "c"}, .node_rank = 0, .num_nodes = 2}), {"--nnodes=2", "--hosts=a,b,c"});
  expect_refused(decide({}, {.nodes = {"a", "here"}, .node_rank = 0}), {"--node-rank=0", "--hosts=a,here"});
  expect_refused(decide(kSystems.at("Kubeflow"), {.num_nodes = 3}), {"--nnodes=3", "PET_NNODES=2"});
  expect_refused(decide(kSystems.at("Slurm"), {.min = 3}, {"gpu09", "", {}, {}}), {"SLURM_STEP_NUM_NODES=2", "--min=3:"});
  expect_refused(decide({{"RANK", "7"}, {"WORLD_SIZE", "4"}}), {"RANK=7", "4"});
}

TEST(Allocation, ANameAndAnAddressOfTheFirstHostDoNotContradict) {
  auto variables = kSystems.at("Slurm");
  variables["MASTER_ADDR"] = "10.1.2.3";
  EXPECT_EQ(decide(variables, {}, {"gpu09", "", {}, {}})->leader, "10.1.2.3");
  variables["MASTER_ADDR"] = "gpu08.cluster.example";
  EXPECT_EQ(decide(variables, {}, {"gpu09", "", {}, {}})->leader, "gpu08.cluster.example");
}

TEST(Allocation, TheCommandStartsOncePerHost) {
  auto variables = kSystems.at("Slurm");
  variables["SLURM_STEP_NUM_TASKS"] = "16";
  expect_refused(decide(variables, {}, {"gpu09", "", {}, {}}),
                 {"SLURM_STEP_NUM_TASKS=16", "SLURM_STEP_NUM_NODES=2", "--ntasks-per-node=1"});
  variables = kSystems.at("Slurm");
  variables["SLURM_LOCALID"] = "1";
  expect_refused(decide(variables), {"SLURM_LOCALID=1", "once per host"});
  expect_refused(decide({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}), {"LOCAL_WORLD_SIZE=2"});
}

TEST(Allocation, ABatchScriptOnSeveralHostsIsNoStep) {
  expect_refused(decide({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "a,b"}}),
                 {"SLURM_JOB_NUM_NODES=2", "SLURM_STEP_ID", "srun"});
  EXPECT_TRUE(decide({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "a"}}));
}

TEST(Allocation, AListOfHostsNamesThisOneByNameOrAddress) {
  EXPECT_EQ(decide({}, {.nodes = {"a", "here.example"}})->node_rank, 1u);
  EXPECT_EQ(decide({}, {.nodes = {"10.0.0.9", "10.0.0.8"}})->node_rank, 0u);
  EXPECT_EQ(decide({}, {.nodes = {"10.0.0.9", "10.0.0.8"}})->leader, "10.0.0.9");
  EXPECT_EQ(decide({}, {.nodes = {"a", "b"}}, {"here", "", {}, 1u})->node_rank, 1u);
  expect_refused(decide({}, {.nodes = {"a", "b"}}), {"--hosts=a,b", "here", "10.0.0.9"});
  expect_refused(decide({}, {.num_nodes = 2}), {"2 hosts", "--node-rank"});
  expect_refused(decide({{"JOB_COMPLETION_INDEX", "1"}}), {"JOB_COMPLETION_INDEX=1", "--nnodes"});
}

TEST(Allocation, AnElasticRunHasBounds) {
  const auto elastic = decide(kSystems.at("Slurm"), {.min = 1, .max = 8}, {"gpu09", "", {}, {}});
  ASSERT_TRUE(elastic) << elastic.error().to_string();
  EXPECT_TRUE(elastic->elastic);
  EXPECT_EQ(elastic->min_nodes, 1u);
  EXPECT_EQ(elastic->max_nodes, 8u);
  const auto pet = decide({{"PET_NNODES", "2:4"}, {"PET_NODE_RANK", "3"}});
  ASSERT_TRUE(pet) << pet.error().to_string();
  EXPECT_EQ(pet->min_nodes, 2u);
  EXPECT_EQ(pet->max_nodes, 4u);
  EXPECT_TRUE(decide({{"JOB_COMPLETION_INDEX", "3"}}, {.min = 2}));
  expect_refused(decide({{"PET_NNODES", "4:2"}, {"PET_NODE_RANK", "0"}}), {"PET_NNODES=4:2"});
}

TEST(Allocation, AHostThatJoinsIsNumberedAmongThoseThatJoinWithIt) {
  auto variables = kSystems.at("Slurm");
  variables["SLURM_STEP_NUM_NODES"] = variables["SLURM_STEP_NUM_TASKS"] = "2";
  const auto joins = decide(variables, {.min = 4, .max = 8, .joins = true}, {"gpu09", "", {}, {}});
  ASSERT_TRUE(joins) << joins.error().to_string();
  EXPECT_EQ(joins->node_rank, 1u);
  EXPECT_EQ(joins->max_nodes, 8u);
  EXPECT_TRUE(joins->elastic);
  EXPECT_EQ(joins->leader, "");  // the first host of the job that joins does not lead the run
  EXPECT_EQ(joins->run, "");
  const auto alone = decide({}, {.max = 8, .leader = "a", .joins = true});
  ASSERT_TRUE(alone) << alone.error().to_string();
  EXPECT_FALSE(alone->leads());
  EXPECT_EQ(alone->leader, "a");
  expect_refused(decide(variables, {.joins = true}, {"gpu09", "", {}, {}}), {"--join", "--max"});
  variables["SLURM_LOCALID"] = "1";
  expect_refused(decide(variables, {.max = 8, .joins = true}, {"gpu09", "", {}, {}}), {"SLURM_LOCALID=1", "once per host"});
}

TEST(Allocation, ValuesThatAreNoNumbersAreRefusedByName) {
  for (const char* wrong : {"one", "-1", "1x", "99999999999"})
    expect_refused(decide({{"RANK", wrong}, {"WORLD_SIZE", "4"}}), {"RANK", wrong});
  EXPECT_TRUE(decide({{"PET_NPROC_PER_NODE", "auto"}, {"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}}));
  EXPECT_EQ(decide(kSystems.at("Kubeflow"), {.num_ranks = 2})->num_ranks, 2u);
}

TEST(Nodelist, BracketsAndCommasExpand) {
  const auto expand = [](const std::string& list) { return expand_nodelist(list).value(); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand("a"), Names{"a"});
  EXPECT_EQ(expand("a[4294967294-4294967295]"), (Names{"a4294967294", "a4294967295"}));  // the greatest number
  EXPECT_EQ(expand("a,b-1"), (Names{"a", "b-1"}));
  EXPECT_EQ(expand("gpu[08-10,2],login"), (Names{"gpu08", "gpu09", "gpu10", "gpu2", "login"}));
  EXPECT_EQ(expand("r[1-2]n[1-2]x"), (Names{"r1n1x", "r1n2x", "r2n1x", "r2n2x"}));
  for (const char* wrong : {"a[1-2", "a[2-1]", "a[x]", "a,,b", "a[1-99999999]", "a[1-99999][1-99999]", "a[]"})
    EXPECT_FALSE(expand_nodelist(wrong)) << wrong;
}

}  // namespace
}  // namespace shoal::scheduler::cli
