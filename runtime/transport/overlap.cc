#include "runtime/transport/overlap.h"

#include <functional>

#include "runtime/transport/entry.h"

namespace shoal::runtime {

namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;  // defined for pointers into different memories, too
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

bool is_in_place(const CollectiveSpec& spec, int rank) {
  const auto self = static_cast<std::size_t>(rank);
  const std::byte *const in = spec.input.data(), *const out = spec.output.data();
  switch (spec.kind) {
    case Collective::kAllReduce:
      return in == out;
    case Collective::kAllGather:
      return in == out + begins_of(spec.counts)[self];
    case Collective::kReduceScatter:
      return in + begins_of(spec.counts)[self] == out;
    case Collective::kAllToAll: {
      // A rank that sends to itself only, or receives from itself only, may have its part in place.
      const bool one_part = spec.counts[self] == spec.input.size() || spec.receive[self] == spec.output.size();
      return one_part && in + begins_of(spec.counts)[self] == out + begins_of(spec.receive)[self];
    }
    default:
      return true;
  }
}

}  // namespace

void set_input_apart(CollectiveSpec& spec, int rank, std::vector<std::byte>& copy) {
  if (!overlap(spec.input, spec.output) || is_in_place(spec, rank)) return;
  copy.assign(spec.input.begin(), spec.input.end());
  spec.input = copy;
}

}  // namespace shoal::runtime
