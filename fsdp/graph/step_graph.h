// A step as data: nodes on lanes, and edges between them. It is traced from a step or written by hand; then executed, printed, drawn.
//
// Passes rewrite it before it runs (passes/passes.h). Planned and measured times are separate lists of Spans, one per node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/bytes.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

enum class Op : std::uint16_t {
  kUnshard,
  kForward,
  kReshard,
  kBackward,
  kRecompute,
  kReduceScatter,
  kAllReduce,
  kOffload,
  kFetch,
  kClipNorm,
  kOptimizerUpdate,
  kCommit,
};
inline constexpr std::uint16_t kNumOps = 12;
const char* op_name(Op op);  // for example "reduce_scatter"
Result<Op> parse_op(std::string_view name);

enum class Lane : std::uint16_t { kCompute, kCommunication, kHostCopy };
inline constexpr std::uint16_t kNumLanes = 3;
const char* lane_name(Lane lane);
Lane lane_of(Op op);

enum class EdgeKind : std::uint16_t { kData, kOrder, kMemory };
inline constexpr std::uint16_t kNumEdgeKinds = 3;

struct Edge {
  std::int32_t from = 0;  // node id
  EdgeKind kind = EdgeKind::kData;
  bool operator==(const Edge&) const = default;
};

struct Node {
  std::int32_t id = 0;
  Op op = Op::kForward;
  std::int32_t unit = -1;  // -1: all units; a forward with -1 is the loss
  std::int32_t part = 0;   // number of this piece of the unit's compute, which the compute of child units divides into pieces
  bool backward = false;   // for an unshard: it serves the backward pass
  std::vector<Edge> after;
  std::int32_t micro = 0;          // number of the micro-batch within the step
  std::vector<std::int32_t> also;  // for unshard, reshard, reduce_scatter: further units of the same node (a bucket)
  double value = 0;                // for clip_norm: the largest norm
  bool operator==(const Node&) const = default;
};
// True for the node's own unit and for units of its bucket.
bool is_for(const Node& node, std::int32_t unit);
// True for nodes that compute with a unit's parameters.
bool reads_unit(const Node& node);

// A node's begin and end in microseconds since the step began. A span with end < start was not measured.
struct Span {
  double start = 0;
  double end = -1;
  bool seen() const { return end >= start; }
};

class StepGraph {
 public:
  static constexpr std::size_t kMaxNodes = 1 << 20;
  static constexpr std::int32_t kMaxMicroBatches = 1 << 12;

  explicit StepGraph(std::vector<std::string> units) : units_(std::move(units)) {}

  // Returns the id; ids count up. Returns InvalidArgument for an unknown unit, or an edge from a node that is not added yet: this excludes
  // cycles.
  Result<std::int32_t> add(Op op, std::int32_t unit, std::vector<Edge> after, std::int32_t part = 0, bool backward = false);
  // Adds a node with all of its fields except the id, which is assigned. Errors are those of the other add().
  Result<std::int32_t> add(Node node);
  // Adds an edge from an earlier node.
  Result<void> connect(std::int32_t from, std::int32_t to, EdgeKind kind);

  const std::vector<std::string>& units() const { return units_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::string label(const Node& node) const;  // "unshard(blocks.0)", "forward(loss)"; in the second micro-batch "forward(loss)[1]"

  // The span of each node if node i took durations[i] microseconds and began as soon as its edges and its lane allow.
  std::vector<Span> schedule(const std::vector<double>& durations) const;

  // A line per node: id, label, lane, edges, planned and measured start and duration. Either list may be empty.
  std::string table(const std::vector<Span>& planned, const std::vector<Span>& measured) const;
  // The Trace Event Format for Perfetto and chrome://tracing: planned and measured as two processes, lanes as threads.
  std::string perfetto(const std::vector<Span>& planned, const std::vector<Span>& measured, int rank) const;

  // Serialised form, for sending the graph to other ranks.
  Bytes encode() const;
  static Result<StepGraph> decode(const Bytes& bytes);

 private:
  std::vector<std::string> units_;
  std::vector<Node> nodes_;
};

}  // namespace shoal::fsdp
