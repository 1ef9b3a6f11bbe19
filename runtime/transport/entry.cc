#include "runtime/transport/entry.h"

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

bool reduces(Collective kind) { return kind == Collective::kReduceScatter || kind == Collective::kAllReduce; }

std::uint64_t hash_of(const std::vector<std::size_t>& counts) {
  std::uint64_t out = counts.size();
  for (const auto c : counts) out = (out ^ c) * 0x100000001b3ULL + 1;
  return out;
}

}  // namespace

Entry entry_of(std::uint64_t sequence, const CollectiveSpec& spec, const Call& call) {
  Entry e;
  e.sequence = sequence;
  e.kind = spec.kind;
  e.dtype = spec.dtype;
  e.op = spec.op;
  e.root = spec.root;
  e.step = call.step;
  e.label = call.label;
  switch (spec.kind) {
    case Collective::kAllGather:
    case Collective::kBroadcast:
    case Collective::kAllReduce:
      e.bytes = spec.output.size();
      break;
    case Collective::kReduceScatter:
      e.bytes = spec.input.size();
      break;
    default:
      break;
  }
  if (spec.kind != Collective::kAllToAll) e.counts = hash_of(spec.counts);
  return e;
}

std::vector<std::size_t> begins_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> out;
  std::size_t at = 0;
  for (const auto c : counts) {
    out.push_back(at);
    at += c;
  }
  return out;
}

std::string describe(const Entry& e) {
  std::string out = fmt::format("{} {}", collective_name(e.kind), e.sequence);
  if (e.kind != Collective::kBarrier && e.kind != Collective::kNone) {
    const std::string op = reduces(e.kind) ? std::string(reduce_op_name(e.op)) + " of " : "";
    const std::string size = e.kind == Collective::kAllToAll ? "" : fmt::format("{} bytes of ", e.bytes);
    out += fmt::format(" ({}{}{}{})", op, size, dtype_name(e.dtype), e.root >= 0 ? fmt::format(" from rank {}", e.root) : "");
  }
  if (!e.label.empty()) out += fmt::format(" '{}'", e.label);
  return out + fmt::format(", step {}", e.step);
}

bool agree(const Entry& a, const Entry& b) {
  return a.kind == b.kind && a.dtype == b.dtype && (!reduces(a.kind) || a.op == b.op) && a.root == b.root && a.bytes == b.bytes &&
         a.counts == b.counts;
}

}  // namespace shoal::runtime
