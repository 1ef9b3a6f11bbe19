// The step as data: nodes on lanes, edges between them. Traced from a step that ran, or written by hand; executed, printed, drawn.
//
// Passes make another graph of it before it runs (passes/passes.h). What it shall take and what it took are Spans beside it, one per node.
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
const char* op_name(Op op);  // "reduce_scatter"
Result<Op> parse_op(std::string_view name);

enum class Lane : std::uint16_t { kCompute, kCommunication, kHostCopy };
inline constexpr std::uint16_t kNumLanes = 3;
const char* lane_name(Lane lane);
Lane lane_of(Op op);

enum class EdgeKind : std::uint16_t { kData, kOrder, kMemory };
inline constexpr std::uint16_t kNumEdgeKinds = 3;

struct Edge {
  std::int32_t from = 0;  // node
  EdgeKind kind = EdgeKind::kData;
  bool operator==(const Edge&) const = default;
};

struct Node {
  std::int32_t id = 0;
  Op op = Op::kForward;
  std::int32_t unit = -1;  // -1: all of them; a forward of none is the loss
  std::int32_t part = 0;   // a unit whose children run inside it computes in parts
  bool backward = false;   // of an unshard: for which pass
  std::vector<Edge> after;
  std::int32_t micro = 0;          // which micro-batch of the step it belongs to
  std::vector<std::int32_t> also;  // of unshard, reshard, reduce_scatter: further units, done together (a bucket)
  double value = 0;                // of clip_norm: the largest norm
  bool operator==(const Node&) const = default;
};
// Whether a node is for a unit, alone or in a bucket.
bool is_for(const Node& node, std::int32_t unit);
// Whether it computes with a unit's parameters.
bool reads_unit(const Node& node);

// Microseconds since the step began. end < start: not seen.
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

  // Ids count up. InvalidArgument for an unknown unit or an edge from a node that is not there yet: so a graph has no cycle.
  Result<std::int32_t> add(Op op, std::int32_t unit, std::vector<Edge> after, std::int32_t part = 0, bool backward = false);
  // As above, with everything a node has; its id does not count.
  Result<std::int32_t> add(Node node);
  // Another edge into a node, from an earlier one.
  Result<void> connect(std::int32_t from, std::int32_t to, EdgeKind kind);

  const std::vector<std::string>& units() const { return units_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::string label(const Node& node) const;  // "unshard(blocks.0)", "forward(loss)", of the second micro-batch "forward(loss)[1]"

  // When each node would run if node i took durations[i] microseconds: as soon as its edges and its lane allow.
  std::vector<Span> schedule(const std::vector<double>& durations) const;

  // One line per node: id, what, lane, after which, planned and measured start and duration. Either list may be empty.
  std::string table(const std::vector<Span>& planned, const std::vector<Span>& measured) const;
  // The Trace Event Format that Perfetto and chrome://tracing read: planned and measured as two processes, lanes as threads.
  std::string perfetto(const std::vector<Span>& planned, const std::vector<Span>& measured, int rank) const;

  // For the wire: a graph is sent once.
  Bytes encode() const;
  static Result<StepGraph> decode(const Bytes& bytes);

 private:
  std::vector<std::string> units_;
  std::vector<Node> nodes_;
};

}  // namespace shoal::fsdp
