#include "fsdp/graph/offsets.h"

#include <algorithm>
#include <numeric>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

Offsets place(const StepGraph& graph, const std::vector<Buffer>& buffers) {
  const Order order(graph);
  const auto node = [&](std::int32_t id) -> const Node& { return graph.nodes()[static_cast<std::size_t>(id)]; };
  const auto apart = [&](const Buffer& a, const Buffer& b) { return a.last >= 0 && order.before(node(a.last), node(b.first)); };
  std::vector<std::size_t> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  Offsets out{std::vector<std::size_t>(buffers.size()), 0};
  std::vector<std::size_t> placed;
  for (const auto i : by_size) {
    // The placed buffers that may live at the same time, by offset. The new one gets the first gap among them that is large enough.
    std::vector<std::size_t> beside;
    for (const auto j : placed) {
      if (!apart(buffers[i], buffers[j]) && !apart(buffers[j], buffers[i])) beside.push_back(j);
    }
    std::sort(beside.begin(), beside.end(), [&](std::size_t a, std::size_t b) { return out.by_buffer[a] < out.by_buffer[b]; });
    std::size_t at = 0;
    for (const auto j : beside) {
      if (at + buffers[i].bytes <= out.by_buffer[j]) break;
      at = std::max(at, (out.by_buffer[j] + buffers[j].bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
    out.by_buffer[i] = at;
    out.bytes = std::max(out.bytes, at + buffers[i].bytes);
    placed.push_back(i);
  }
  return out;
}

}  // namespace shoal::fsdp
