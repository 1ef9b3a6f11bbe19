#include "scheduler/cli/run/allocation.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::scheduler::cli {

namespace {

constexpr std::uint32_t kMostNodes = 1 << 16;
constexpr std::size_t kMostDigits = 16;  // a limit, since lists of Slurm may pad numbers with any number of zeros

constexpr AllocationVariable kVariables[] = {
    {"SLURM_NODEID", "Slurm", LaunchFact::kNodeRank, "this host's number in the step"},
    {"SLURM_PROCID", "Slurm", LaunchFact::kNodeRank, "the number of this task: with one task per host, this host's number"},
    {"SLURM_LOCALID", "Slurm", LaunchFact::kLocalRank, "the number of this task on its host: has to be 0"},
    {"SLURM_STEP_NUM_NODES", "Slurm", LaunchFact::kNumNodes, "number of hosts of the step"},
    {"SLURM_STEP_NUM_TASKS", "Slurm", LaunchFact::kNumProcesses, "number of tasks: has to be that of the hosts"},
    {"SLURM_STEP_NODELIST", "Slurm", LaunchFact::kNodes, "names of the step's hosts, the first one leads"},
    {"SLURM_JOB_NUM_NODES", "Slurm", LaunchFact::kBatchNumNodes,
     "number of hosts of the job: above 1, the command has to be a step (srun)"},
    {"SLURM_JOB_NODELIST", "Slurm", LaunchFact::kNodes, "names of the job's hosts, where no step names its own"},
    {"SLURM_JOB_ID", "Slurm", LaunchFact::kRun, "part of the run's name"},
    {"SLURM_STEP_ID", "Slurm", LaunchFact::kStep, "part of the run's name; shows that the command is a step"},
    {"SLURM_RESTART_COUNT", "Slurm", LaunchFact::kRun, "part of the run's name"},
    {"PET_NODE_RANK", "Kubeflow", LaunchFact::kNodeRank, "this host's number"},
    {"PET_NNODES", "Kubeflow", LaunchFact::kNodeBounds, "number of hosts, or MIN:MAX"},
    {"PET_NPROC_PER_NODE", "Kubeflow", LaunchFact::kNumRanks, "ranks per host"},
    {"PET_MASTER_ADDR", "Kubeflow", LaunchFact::kLeader, "the first host"},
    {"PET_RDZV_ENDPOINT", "Kubeflow", LaunchFact::kLeader, "the first host, perhaps with a port, which is ignored"},
    {"PET_RDZV_ID", "Kubeflow", LaunchFact::kRun, "part of the run's name"},
    {"SKYPILOT_NODE_RANK", "SkyPilot", LaunchFact::kNodeRank, "this host's number"},
    {"SKYPILOT_NUM_NODES", "SkyPilot", LaunchFact::kNumNodes, "number of hosts"},
    {"SKYPILOT_NODE_IPS", "SkyPilot", LaunchFact::kNodes, "addresses of the hosts, one a line"},
    {"SKYPILOT_NUM_GPUS_PER_NODE", "SkyPilot", LaunchFact::kNumRanks, "ranks per host, if above 0"},
    {"SKYPILOT_TASK_ID", "SkyPilot", LaunchFact::kRun, "part of the run's name"},
    {"DSTACK_NODE_RANK", "dstack", LaunchFact::kNodeRank, "this host's number"},
    {"DSTACK_NODES_NUM", "dstack", LaunchFact::kNumNodes, "number of hosts"},
    {"DSTACK_NODES_IPS", "dstack", LaunchFact::kNodes, "addresses of the hosts, one a line"},
    {"DSTACK_MASTER_NODE_IP", "dstack", LaunchFact::kLeader, "the first host"},
    {"DSTACK_GPUS_PER_NODE", "dstack", LaunchFact::kNumRanks, "ranks per host, if above 0"},
    {"DSTACK_RUN_ID", "dstack", LaunchFact::kRun, "part of the run's name"},
    {"OMPI_COMM_WORLD_RANK", "Open MPI", LaunchFact::kNodeRank,
     "the number of this process: with one process per host, this host's number"},
    {"OMPI_COMM_WORLD_SIZE", "Open MPI", LaunchFact::kNumNodes, "number of processes, one per host"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI", LaunchFact::kLocalRank, "the number of this process on its host: has to be 0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI", LaunchFact::kLocalSize, "number of processes on this host: has to be 1"},
    {"JOB_COMPLETION_INDEX", "Kubernetes", LaunchFact::kNodeRank, "the pod's number in an indexed Job, also one of a JobSet"},
    {"HOSTNAME", "Kubernetes", LaunchFact::kPod, "with JOB_COMPLETION_INDEX: the pod's name, NAME-NUMBER; NAME-0 leads"},
    {"GROUP_RANK", "torchrun", LaunchFact::kNodeRank, "this host's number"},
    {"NODE_RANK", "torchrun", LaunchFact::kNodeRank, "this host's number"},
    {"RANK", "torchrun", LaunchFact::kNodeRank, "the number of this process: with one process per host, this host's number"},
    {"GROUP_WORLD_SIZE", "torchrun", LaunchFact::kNumNodes, "number of hosts"},
    {"WORLD_SIZE", "torchrun", LaunchFact::kNumNodes, "number of processes, one per host"},
    {"LOCAL_RANK", "torchrun", LaunchFact::kLocalRank, "the number of this process on its host: has to be 0"},
    {"LOCAL_WORLD_SIZE", "torchrun", LaunchFact::kLocalSize, "number of processes on this host: has to be 1"},
    {"MASTER_ADDR", "torchrun", LaunchFact::kLeader, "the first host"},
    {"TORCHELASTIC_RUN_ID", "torchrun", LaunchFact::kRun, "part of the run's name"},
};

// A value and the variable or option that has it.
struct Said {
  std::string name, text;
  std::string shown() const { return name + "=" + text; }
};

Error contradiction(const Said& one, const Said& other, const std::string& about, const std::string& hint = "") {
  return invalid_argument(fmt::format("{} and {} contradict each other: {}", one.shown(), other.shown(), about))
      .with_reason("Contradiction")
      .with_hint(hint.empty() ? "unset one of them, or start the command in another way: `shoal run --variables` lists what is read"
                              : hint);
}

Error bad_value(const Said& said, const std::string& expected) {
  return invalid_argument(said.shown() + " is not " + expected).with_reason("BadValue");
}

Result<std::uint32_t> number_in(const Said& said, std::uint32_t least) {
  std::uint32_t out = 0;
  const char* const end = said.text.data() + said.text.size();
  const auto [at, error] = std::from_chars(said.text.data(), end, out);
  if (error != std::errc() || at != end || out < least || out > kMostNodes) {
    return fail(bad_value(said, fmt::format("a number from {} to {}", least, kMostNodes)));
  }
  return out;
}

bool is_address(const std::string& text) {
  return text.find(':') != std::string::npos || text.find_first_not_of("0123456789.") == std::string::npos;
}

std::string short_name(const std::string& name) { return is_address(name) ? name : name.substr(0, name.find('.')); }

// True if `one` and `other` cannot be the same host. A name and an address may be.
bool differ(const std::string& one, const std::string& other) {
  return is_address(one) == is_address(other) && short_name(one) != short_name(other);
}

std::string without_port(std::string text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  if (std::count(text.begin(), text.end(), ':') == 1) text.resize(text.find(':'));
  return text;
}

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text + "\n") {
    if (c == '\n' || c == ' ' || c == ',' || c == '\r') {
      if (!word.empty()) out.push_back(std::exchange(word, {}));
    } else {
      word += c;
    }
  }
  return out;
}

// Collects what options and variables say, each kind in the order of precedence.
class Decision {
 public:
  Decision(const LaunchOptions& options, const Environment& environment, const OwnNames& own)
      : options_(options), environment_(environment), own_(own) {}

  Result<Allocation> make() {
    add_options();
    add_variables();
    SHOAL_OK(check_one_process_per_host());
    if (options_.joins) return join();
    SHOAL_OK(decide_number());
    SHOAL_OK(decide_node_rank());
    SHOAL_OK(decide_leader());
    SHOAL_OK(decide_ranks());
    for (const auto& part : said_[LaunchFact::kRun]) {
      if (part.text.empty()) continue;
      out_.run += (out_.run.empty() ? "" : "-") + part.text;
      take(part);
    }
    return out_;
  }

 private:
  void say(LaunchFact fact, std::string name, std::string text) { said_[fact].push_back({std::move(name), std::move(text)}); }
  void take(const Said& said) {
    if (std::find(out_.taken.begin(), out_.taken.end(), said.shown()) == out_.taken.end()) out_.taken.push_back(said.shown());
  }

  void add_options() {
    if (!options_.nodes.empty()) say(LaunchFact::kNodes, "--hosts", fmt::format("{}", fmt::join(options_.nodes, ",")));
    if (options_.node_rank) say(LaunchFact::kNodeRank, "--node-rank", std::to_string(*options_.node_rank));
    if (options_.num_nodes) say(LaunchFact::kNumNodes, "--nnodes", std::to_string(*options_.num_nodes));
    if (!options_.leader.empty()) say(LaunchFact::kLeader, "--master-addr", options_.leader);
    if (options_.num_ranks) say(LaunchFact::kNumRanks, "--nproc", std::to_string(*options_.num_ranks));
    if (options_.min || options_.max) {
      const std::string most = options_.max ? std::to_string(*options_.max) : "";
      say(LaunchFact::kNodeBounds, options_.max ? "--min:--max" : "--min", fmt::format("{}:{}", options_.min.value_or(1), most));
    }
  }

  void add_variables() {
    const bool in_pod = !environment_.get("JOB_COMPLETION_INDEX").empty();
    const bool in_step = !environment_.get("SLURM_STEP_NODELIST").empty();
    for (const auto& v : kVariables) {
      const auto text = environment_.get(v.name);
      if (text.empty() || (v.fact == LaunchFact::kPod && !in_pod)) continue;
      if (in_step && v.fact == LaunchFact::kNodes && v.name == std::string("SLURM_JOB_NODELIST")) continue;
      if (v.fact == LaunchFact::kStep) say(LaunchFact::kRun, v.name, text);
      say(v.fact, v.name, text);
    }
  }

  // The command starts once per host, and starts the ranks itself.
  Result<void> check_one_process_per_host() {
    const char* const hint =
        "start the command once per host (srun --ntasks-per-node=1, mpirun --map-by ppr:1:node), and say with --nproc how many ranks a "
        "host has";
    for (const auto& [fact, expected] : {std::pair{LaunchFact::kLocalRank, 0u}, {LaunchFact::kLocalSize, 1u}}) {
      for (const auto& said : said_[fact]) {
        SHOAL_TRY(const auto number, number_in(said, 0));
        if (number != expected) {
          return fail(invalid_argument(fmt::format("{}: `shoal run` is one of several processes of this host", said.shown()))
                          .with_reason("Contradiction")
                          .with_hint(hint));
        }
        take(said);
      }
    }
    if (const auto& of_job = said_[LaunchFact::kBatchNumNodes]; !of_job.empty() && said_[LaunchFact::kStep].empty()) {
      SHOAL_TRY(const auto number, number_in(of_job.front(), 1));
      if (number > 1) {
        return fail(
            invalid_argument(of_job.front().shown() + ", but SLURM_STEP_ID is not set: `shoal run` runs on one of the job's hosts only")
                .with_reason("Contradiction")
                .with_hint("start it on each host: srun --ntasks-per-node=1 shoal run SCRIPT"));
      }
      take(of_job.front());
    }
    return {};
  }

  // With --join, the variables number the hosts of the scheduler's job that joins, and say nothing about the run.
  Result<Allocation> join() {
    if (!options_.max) {
      return fail(invalid_argument("--join needs the run's --max: the numbers of hosts that join begin there")
                      .with_reason("Incomplete")
                      .with_hint("pass the --min and --max of the run"));
    }
    SHOAL_TRY(const auto position, agreed(LaunchFact::kNodeRank, 0, "this host's number"));
    SHOAL_OK(decide_bounds_of_run());
    SHOAL_OK(decide_ranks());
    out_.node_rank = position.value_or(0);
    out_.leader = options_.leader;
    out_.joins = true;
    return out_;
  }

  Result<void> decide_bounds_of_run() {
    const auto& said = said_[LaunchFact::kNodeBounds].front();
    std::optional<std::uint32_t> number;
    Said source;
    said_[LaunchFact::kNodeBounds] = {Said(said)};
    return decide_bounds(number, source);
  }

  // `about`: what the values are. Returns the first of the values, which all have to be equal.
  Result<std::optional<std::uint32_t>> agreed(LaunchFact fact, std::uint32_t least, const std::string& about) {
    std::optional<std::uint32_t> out;
    for (const auto& said : said_[fact]) {
      SHOAL_TRY(const auto number, number_in(said, least));
      if (fact == LaunchFact::kNumRanks && number == 0) continue;
      if (out && number != *out) return fail(contradiction(said_[fact].front(), said, about));
      out = number;
      take(said);
    }
    return out;
  }

  Result<void> decide_number() {
    SHOAL_TRY(auto number, agreed(LaunchFact::kNumNodes, 1, "the number of hosts"));
    Said source = number ? said_[LaunchFact::kNumNodes].front() : Said{};
    for (const auto& said : said_[LaunchFact::kNodes]) {
      std::vector<std::string> nodes;
      if (said.name.starts_with("SLURM_")) {
        SHOAL_TRY(nodes, expand_nodelist(said.text));
      } else {
        nodes = words_in(said.text);
      }
      if (nodes.empty()) continue;
      if (number && nodes.size() != *number) return fail(contradiction(source, said, "the number of hosts"));
      for (std::size_t i = 0; i < out_.nodes.size(); ++i) {
        if (differ(nodes[i], out_.nodes[i])) return fail(contradiction(nodes_source_, said, "the hosts"));
      }
      if (!number) source = said;
      number = static_cast<std::uint32_t>(nodes.size());
      if (out_.nodes.empty()) nodes_source_ = said;
      if (out_.nodes.empty()) out_.nodes = std::move(nodes);
      take(said);
    }
    SHOAL_OK(decide_bounds(number, source));
    for (const auto& said : said_[LaunchFact::kNumProcesses]) {
      SHOAL_TRY(const auto processes, number_in(said, 1));
      if (number && processes != *number) {
        return fail(contradiction(source, said, "one process per host starts `shoal run`",
                                  "srun --ntasks-per-node=1 shoal run --nproc RANKS_PER_HOST SCRIPT"));
      }
      take(said);
    }
    number_known_ = number.has_value() || out_.elastic;
    return {};
  }

  Result<void> decide_bounds(std::optional<std::uint32_t>& number, Said& source) {
    out_.min_nodes = out_.max_nodes = number.value_or(1);
    const Said* before = nullptr;
    std::pair<std::uint32_t, std::uint32_t> bounds;
    for (const auto& said : said_[LaunchFact::kNodeBounds]) {
      const auto colon = said.text.find(':');
      SHOAL_TRY(const auto least, number_in({said.name, said.text.substr(0, colon)}, 1));
      std::uint32_t most = colon == std::string::npos ? least : kMostNodes;  // "2:": no limit
      if (colon != std::string::npos && colon + 1 < said.text.size()) {
        SHOAL_TRY(most, number_in({said.name, said.text.substr(colon + 1)}, 1));
      }
      if (least > most) return fail(bad_value(said, "MIN:MAX"));
      if (least == most && colon == std::string::npos) {  // one number, like that of other variables, and no bounds
        if (number && *number != least) return fail(contradiction(source, said, "the number of hosts"));
        if (before != nullptr && (least < bounds.first || least > bounds.second))
          return fail(contradiction(*before, said, "the number of hosts"));
        if (!number) source = said;
        number = least;
        if (before == nullptr) out_.min_nodes = out_.max_nodes = least;
        take(said);
        continue;
      }
      if (before != nullptr && bounds != std::pair{least, most})
        return fail(contradiction(*before, said, "the bounds of the number of hosts"));
      // A host that comes later belongs to no list of the first ones, so that a list limits the hosts of the beginning alone.
      if (number && *number < least) {
        return fail(contradiction(source, said, "the number of hosts",
                                  "start the run on more hosts, or add a host to one that goes on: shoal run --join"));
      }
      out_.elastic = true;
      out_.min_nodes = least;
      out_.max_nodes = most;
      bounds = {least, most};
      before = &said;
      take(said);
    }
    return {};
  }

  Result<void> decide_node_rank() {
    SHOAL_TRY(const auto number, agreed(LaunchFact::kNodeRank, 0, "this host's number"));
    const std::uint32_t limit = out_.nodes.empty() ? out_.max_nodes : static_cast<std::uint32_t>(out_.nodes.size());
    if (number) {
      const Said& source = said_[LaunchFact::kNodeRank].front();
      if (!number_known_ && (*number > 0 || !options_.node_rank)) {
        return fail(invalid_argument(source.shown() + ", but nothing says how many hosts there are")
                        .with_reason("Incomplete")
                        .with_hint("pass --nnodes N"));
      }
      if (*number >= limit) {
        return fail(contradiction(source, {"number of hosts", std::to_string(limit)}, "hosts are numbered from 0"));
      }
      if (const auto own = own_number(); own && *own != *number) {
        return fail(contradiction(source, nodes_source_, fmt::format("host {} of that list is this one", *own)));
      }
      out_.node_rank = *number;
      return {};
    }
    if (!number_known_ || limit == 1) return {};
    const auto own = own_number();
    if (own) {
      out_.node_rank = *own;
      return {};
    }
    if (out_.nodes.empty()) {
      return fail(invalid_argument(fmt::format("there are {} hosts, but nothing says which of them this one is", limit))
                      .with_reason("Incomplete")
                      .with_hint("pass --node-rank N, or --hosts with the names of all hosts"));
    }
    return fail(invalid_argument(fmt::format("{} does not name this host, which is {} ({})", nodes_source_.shown(), own_.host,
                                             fmt::join(own_.addresses, ", ")))
                    .with_reason("Incomplete")
                    .with_hint("pass --node-rank N"));
  }

  // This host's position among the nodes, if exactly one of them has its name or an address of it.
  std::optional<std::uint32_t> own_number() const {
    std::optional<std::uint32_t> out;
    for (std::size_t i = 0; i < out_.nodes.size(); ++i) {
      if (!names_host(out_.nodes[i], own_)) continue;
      if (out) return {};
      out = static_cast<std::uint32_t>(i);
    }
    return out ? out : own_.resolved;
  }

  Result<void> decide_leader() {
    const Said* first = nullptr;
    for (const auto& said : said_[LaunchFact::kLeader]) {
      const auto host = without_port(said.text);
      if (first != nullptr && differ(out_.leader, host)) return fail(contradiction(*first, said, "the first host"));
      if (!out_.nodes.empty() && differ(out_.nodes.front(), host)) return fail(contradiction(nodes_source_, said, "the first host"));
      if (first == nullptr) out_.leader = host;
      if (first == nullptr) first = &said;
      take(said);
    }
    for (const auto& pod : said_[LaunchFact::kPod]) {
      const std::string suffix = fmt::format("-{}", out_.node_rank);
      if (!out_.leader.empty() || !pod.text.ends_with(suffix)) continue;
      out_.leader = pod.text.substr(0, pod.text.size() - suffix.size()) + "-0" + (own_.domain.empty() ? "" : "." + own_.domain);
      take(pod);
    }
    if (out_.leader.empty() && !out_.nodes.empty()) out_.leader = out_.nodes.front();
    return {};
  }

  Result<void> decide_ranks() {
    auto& said = said_[LaunchFact::kNumRanks];
    std::erase_if(said, [](const Said& s) { return s.text == "auto" || s.text == "gpu" || s.text == "cpu"; });
    if (options_.num_ranks) {  // --nproc overrides the variables: a user may want fewer ranks than the host has devices
      out_.num_ranks = options_.num_ranks;
      take(said.front());
      return {};
    }
    SHOAL_TRY(out_.num_ranks, agreed(LaunchFact::kNumRanks, 0, "the number of ranks per host"));
    return {};
  }

  const LaunchOptions& options_;
  const Environment& environment_;
  const OwnNames& own_;
  std::map<LaunchFact, std::vector<Said>> said_;
  Said nodes_source_;
  bool number_known_ = false;
  Allocation out_;
};

Error bad_nodelist(const std::string& list) {
  return invalid_argument("'" + list + "' is not a list of Slurm's nodes").with_reason("BadValue");
}

Error too_many(const std::string& list) {
  return invalid_argument(fmt::format("'{}' has more than {} nodes", list, kMostNodes)).with_reason("BadValue");
}

// Appends prefix + each number of "01-03,7" + suffix.
Result<void> add_range(const std::string& list, const std::string& prefix, const std::string& range, std::vector<std::string>& out) {
  const auto dash = range.find('-');
  const std::string from = range.substr(0, dash), to = dash == std::string::npos ? from : range.substr(dash + 1);
  std::uint32_t first = 0, last = 0;
  const auto read = [](const std::string& text, std::uint32_t& number) {
    const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return !text.empty() && error == std::errc() && at == text.data() + text.size();
  };
  if (!read(from, first) || !read(to, last) || last < first || from.size() > kMostDigits) return fail(bad_nodelist(list));
  if (last - first >= kMostNodes - out.size()) return fail(too_many(list));
  for (std::uint64_t i = first; i <= last; ++i) out.push_back(fmt::format("{}{:0{}}", prefix, i, from.size()));
  return {};
}

}  // namespace

std::span<const AllocationVariable> launch_variables() { return kVariables; }

bool names_host(const std::string& node, const OwnNames& own) {
  if (std::find(own.addresses.begin(), own.addresses.end(), node) != own.addresses.end()) return true;
  return !is_address(node) && short_name(node) == short_name(own.host);
}

Result<Allocation> decide_allocation(const LaunchOptions& options, const Environment& environment, const OwnNames& own) {
  return Decision(options, environment, own).make();
}

Result<std::vector<std::string>> expand_nodelist(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < list.size();) {
    std::vector<std::string> names = {""};  // all combinations so far: a name may have several brackets
    while (at < list.size() && list[at] != ',') {
      if (list[at] != '[') {
        for (auto& name : names) name += list[at];
        ++at;
        continue;
      }
      const auto close = list.find(']', at);
      if (close == std::string::npos) return fail(bad_nodelist(list));
      std::vector<std::string> longer;
      for (const auto& name : names) {
        for (const auto& range : words_in(list.substr(at + 1, close - at - 1))) SHOAL_OK(add_range(list, name, range, longer));
      }
      if (longer.empty()) return fail(bad_nodelist(list));
      names = std::move(longer);
      at = close + 1;
    }
    for (auto& name : names) {
      if (name.empty()) return fail(bad_nodelist(list));
      if (out.size() >= kMostNodes) return fail(too_many(list));
      out.push_back(std::move(name));
    }
    ++at;  // the comma
  }
  return out;
}

}  // namespace shoal::scheduler::cli
