#include "fsdp/graph/step_graph.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "fsdp/wire/step_graph.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::fsdp {

namespace {

constexpr const char* kOpNames[kNumOps] = {"unshard",    "forward", "reshard", "backward",  "recompute",        "reduce_scatter",
                                           "all_reduce", "offload", "fetch",   "clip_norm", "optimizer_update", "commit"};
constexpr const char* kLaneNames[kNumLanes] = {"compute", "communication", "host copy"};
constexpr const char* kEdgeNames[kNumEdgeKinds] = {"", "~", "^"};  // how tables mark data, order and memory edges

}  // namespace

const char* op_name(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }
const char* lane_name(Lane lane) { return kLaneNames[static_cast<std::size_t>(lane)]; }

Result<Op> parse_op(std::string_view name) {
  for (std::uint16_t i = 0; i < kNumOps; ++i) {
    if (name == kOpNames[i]) return static_cast<Op>(i);
  }
  return fail(invalid_argument("a step graph has no node '" + std::string(name) + "'"));
}

Lane lane_of(Op op) {
  switch (op) {
    case Op::kForward:
    case Op::kBackward:
    case Op::kRecompute:
    case Op::kOptimizerUpdate:
      return Lane::kCompute;
    case Op::kOffload:
    case Op::kFetch:
      return Lane::kHostCopy;
    case Op::kUnshard:
    case Op::kReshard:
    case Op::kReduceScatter:
    case Op::kAllReduce:
    case Op::kClipNorm:  // waits for the other ranks' sums
    case Op::kCommit:
      return Lane::kCommunication;
  }
  return Lane::kCompute;
}

bool is_for(const Node& node, std::int32_t unit) {
  return node.unit == unit || std::find(node.also.begin(), node.also.end(), unit) != node.also.end();
}

bool reads_unit(const Node& node) {
  return node.unit >= 0 && (node.op == Op::kForward || node.op == Op::kBackward || node.op == Op::kRecompute);
}

Result<std::int32_t> StepGraph::add(Op op, std::int32_t unit, std::vector<Edge> after, std::int32_t part, bool backward) {
  Node node;
  node.op = op;
  node.unit = unit;
  node.part = part;
  node.backward = backward;
  node.after = std::move(after);
  return add(std::move(node));
}

Result<std::int32_t> StepGraph::add(Node node) {
  if (nodes_.size() >= kMaxNodes) return fail(resource_exhausted("a step graph has too many nodes"));
  const auto known = [&](std::int32_t unit) { return unit >= 0 && unit < static_cast<std::int32_t>(units_.size()); };
  if (node.unit != -1 && !known(node.unit)) return fail(invalid_argument(fmt::format("this step graph has no unit {}", node.unit)));
  const bool together = node.op == Op::kUnshard || node.op == Op::kReshard || node.op == Op::kReduceScatter;
  for (const auto unit : node.also) {
    if (!together || node.unit < 0 || !known(unit))
      return fail(invalid_argument(fmt::format("{} cannot belong to unit {} as well", op_name(node.op), unit)));
  }
  if (node.micro < 0 || node.micro > kMaxMicroBatches)
    return fail(invalid_argument(fmt::format("micro-batch {} does not exist: a step has 1 to {}", node.micro, kMaxMicroBatches)));
  node.id = static_cast<std::int32_t>(nodes_.size());
  for (const auto& e : node.after) {
    if (e.from < 0 || e.from >= node.id)
      return fail(invalid_argument(fmt::format("node {} cannot depend on node {}, which does not exist yet", node.id, e.from)));
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().id;
}

Result<void> StepGraph::connect(std::int32_t from, std::int32_t to, EdgeKind kind) {
  if (to < 0 || to >= static_cast<std::int32_t>(nodes_.size()) || from < 0 || from >= to) {
    return fail(invalid_argument(fmt::format("no edge from node {} to node {}: edges go to later nodes", from, to)));
  }
  auto& after = nodes_[static_cast<std::size_t>(to)].after;
  if (std::none_of(after.begin(), after.end(), [&](const Edge& e) { return e.from == from; })) after.push_back({from, kind});
  return {};
}

std::string StepGraph::label(const Node& n) const {
  const auto name = [&](std::int32_t unit) {
    const std::string& text = units_[static_cast<std::size_t>(unit)];
    return text.empty() ? std::string("root") : text;
  };
  std::string what = n.unit >= 0 ? name(n.unit) : n.op == Op::kForward ? "loss" : "";
  for (const auto unit : n.also) what += "+" + name(unit);
  if (n.part > 0) what += fmt::format("#{}", n.part);
  return fmt::format("{}({}){}", op_name(n.op), what, n.micro > 0 ? fmt::format("[{}]", n.micro) : "");
}

std::vector<Span> StepGraph::schedule(const std::vector<double>& durations) const {
  std::vector<Span> out(nodes_.size());
  std::array<double, kNumLanes> free{};
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    double& lane = free[static_cast<std::size_t>(lane_of(nodes_[i].op))];
    double start = lane;
    for (const auto& e : nodes_[i].after) start = std::max(start, out[static_cast<std::size_t>(e.from)].end);
    out[i] = {start, start + (i < durations.size() ? durations[i] : 0)};
    lane = out[i].end;
  }
  return out;
}

std::string StepGraph::table(const std::vector<Span>& planned, const std::vector<Span>& measured) const {
  std::size_t width = 4;
  for (const auto& n : nodes_) width = std::max(width, label(n).size());
  std::string out = fmt::format("{:>4}  {:<{}}  {:<13}  {:>12} {:>10}  {:>12} {:>10}  {}\n", "node", "what", width, "lane", "planned us",
                                "takes", "measured us", "took", "after");
  const auto cells = [](const std::vector<Span>& spans, std::size_t i) {
    if (i >= spans.size() || !spans[i].seen()) return fmt::format("{:>12} {:>10}", "-", "-");
    return fmt::format("{:>12.0f} {:>10.0f}", spans[i].start, spans[i].end - spans[i].start);
  };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto& n = nodes_[i];
    std::string after;
    for (const auto& e : n.after)
      after += fmt::format("{}{}{}", after.empty() ? "" : " ", kEdgeNames[static_cast<std::size_t>(e.kind)], e.from);
    out += fmt::format("{:>4}  {:<{}}  {:<13}  {}  {}  {}\n", n.id, label(n), width, lane_name(lane_of(n.op)), cells(planned, i),
                       cells(measured, i), after);
  }
  return out;
}

std::string StepGraph::perfetto(const std::vector<Span>& planned, const std::vector<Span>& measured, int rank) const {
  using nlohmann::json;
  json events = json::array();
  const auto name = [&](int pid, int tid, const char* what, const std::string& value) {
    events.push_back({{"ph", "M"}, {"pid", pid}, {"tid", tid}, {"name", what}, {"args", {{"name", value}}}});
  };
  const auto draw = [&](const std::vector<Span>& spans, int pid, const char* what) {
    if (spans.empty()) return;
    name(pid, 0, "process_name", fmt::format("rank {} {}", rank, what));
    for (int lane = 0; lane < kNumLanes; ++lane) name(pid, lane, "thread_name", kLaneNames[lane]);
    for (std::size_t i = 0; i < std::min(spans.size(), nodes_.size()); ++i) {
      if (!spans[i].seen()) continue;
      const auto& n = nodes_[i];
      json after = json::array();
      for (const auto& e : n.after) after.push_back(label(nodes_[static_cast<std::size_t>(e.from)]));
      events.push_back({{"ph", "X"},
                        {"pid", pid},
                        {"tid", static_cast<int>(lane_of(n.op))},
                        {"name", label(n)},
                        {"cat", op_name(n.op)},
                        {"ts", spans[i].start},
                        {"dur", spans[i].end - spans[i].start},
                        {"args", {{"node", n.id}, {"unit", n.unit}, {"after", after}}}});
    }
  };
  draw(planned, 2 * rank + 1, "planned");
  draw(measured, 2 * rank + 2, "measured");
  return json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

Bytes StepGraph::encode() const {
  return runtime::write<wire::StepGraph>([&](wire::StepGraph::Builder m) {
    auto units = m.initUnits(static_cast<unsigned>(units_.size()));
    for (unsigned i = 0; i < units_.size(); ++i) units.set(i, units_[i]);
    auto nodes = m.initNodes(static_cast<unsigned>(nodes_.size()));
    for (unsigned i = 0; i < nodes_.size(); ++i) {
      const auto& n = nodes_[i];
      nodes[i].setOp(static_cast<std::uint16_t>(n.op));
      nodes[i].setUnit(n.unit);
      nodes[i].setPart(n.part);
      nodes[i].setBackward(n.backward);
      nodes[i].setMicro(n.micro);
      nodes[i].setValue(n.value);
      auto also = nodes[i].initAlso(static_cast<unsigned>(n.also.size()));
      for (unsigned k = 0; k < n.also.size(); ++k) also.set(k, n.also[k]);
      auto after = nodes[i].initAfter(static_cast<unsigned>(n.after.size()));
      for (unsigned k = 0; k < n.after.size(); ++k) {
        after[k].setFrom(n.after[k].from);
        after[k].setKind(static_cast<std::uint16_t>(n.after[k].kind));
      }
    }
  });
}

Result<StepGraph> StepGraph::decode(const Bytes& bytes) {
  return runtime::read<wire::StepGraph>(bytes, [](wire::StepGraph::Reader m) -> Result<StepGraph> {
    std::vector<std::string> units;
    for (const auto u : m.getUnits()) units.push_back(runtime::text(u));
    StepGraph out(std::move(units));
    for (const auto n : m.getNodes()) {
      if (n.getOp() >= kNumOps) return fail(invalid_argument("the step graph has an unknown node"));
      Node node;
      node.op = static_cast<Op>(n.getOp());
      node.unit = n.getUnit();
      node.part = n.getPart();
      node.backward = n.getBackward();
      node.micro = n.getMicro();
      node.value = n.getValue();
      for (const auto unit : n.getAlso()) node.also.push_back(unit);
      for (const auto e : n.getAfter()) {
        if (e.getKind() >= kNumEdgeKinds) return fail(invalid_argument("the step graph has an unknown edge"));
        node.after.push_back({e.getFrom(), static_cast<EdgeKind>(e.getKind())});
      }
      SHOAL_OK(out.add(std::move(node)));
    }
    return out;
  });
}

}  // namespace shoal::fsdp
