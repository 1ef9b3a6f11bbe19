// AdamW as it is and protected, in turn, on arrays larger than any cache: what undo records cost, and what the node's memory does.
//
// protected THREADS [NUMEL] prints one JSON line per figure: {"name", "mb_per_second": bytes that AdamW reads and writes, one sample per
// repetition}.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fsdp/protect/protected_update.h"
#include "runtime/shm/memory.h"

namespace {

using namespace shoal;
using fsdp::StepRecord;

// One parameter with its states, in private memory with huge pages as without protection, or in a memory of the node.
struct Parameter {
  runtime::Mapping record, arena;
  std::optional<StepRecord> at;
  fsdp::Shard shard;
  float* step = nullptr;

  Parameter(std::size_t numel, bool shared) {
    const auto memory = [&](std::size_t bytes) {
      if (!shared) return runtime::private_memory(bytes, true).value();
      auto mapping = runtime::map(runtime::make_memory("bench", bytes).value(), bytes, runtime::Access::kReadWrite).value();
      mapping.populate();
      return mapping;
    };
    const fsdp::Piece piece{0, numel, numel, 1};
    StepRecord::Spec spec;
    spec.units = {{"unit", 4 * numel}};
    spec.arrays = {{"param", 0, 0, DType::kFloat32, piece, 0}, {"step", 0, 0, DType::kFloat32, {0, 1, 1, 1}, {}}};
    for (const char* name : {"grad", "exp_avg", "exp_avg_sq"}) spec.arrays.push_back({name, 0, 0, DType::kFloat32, piece, {}});
    arena = memory(4 * numel);
    record = memory(StepRecord::bytes_for(spec).value());
    at = StepRecord::make(record.span(), spec);
    const auto address = [&](std::size_t i) { return at->at(at->arrays()[i].place, arenas()); };
    shard = {{address(0), address(2), address(3), address(4)}, numel};
    step = reinterpret_cast<float*>(address(1));
    for (std::size_t i = 0; i < numel; ++i) {
      reinterpret_cast<float*>(shard.at[0])[i] = 0.5f;
      reinterpret_cast<float*>(shard.at[1])[i] = 0.25f;
    }
  }
  fsdp::Memories arenas() const { return {arena.span()}; }

  void plain(int threads) { fsdp::adam({}, static_cast<std::int64_t>(*step += 1), {}, {&shard, 1}, threads); }
  void protect(int threads) {
    fsdp::ProtectedUpdate update(*at, arenas());
    StepRecord::Item item{};
    item.step = static_cast<std::int64_t>(*step + 1);
    (void)update.begin(at->header().finished + 1).value();
    (void)update.add(item, shard, step);
    update.record();
    update.run(threads);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::size_t numel = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16u << 20;
  Parameter of_process(numel, false), of_node(numel, true);
  struct Kind {
    const char* name;
    Parameter& parameter;
    bool protect;
    std::vector<double> samples = {};
  };
  Kind kinds[] = {{"AdamW in private memory", of_process, false},
                  {"protected AdamW in private memory", of_process, true},
                  {"AdamW in the node's memory", of_node, false},
                  {"protected AdamW", of_node, true}};
  for (int i = -1; i < 9; ++i) {
    for (auto& k : kinds) {
      const auto begin = std::chrono::steady_clock::now();
      k.protect ? k.parameter.protect(threads) : k.parameter.plain(threads);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (i >= 0) k.samples.push_back(28e-6 * static_cast<double>(numel) / seconds);
    }
  }
  for (const auto& k : kinds) {
    std::printf("{\"name\": \"%s\", \"mb_per_second\": [", k.name);
    for (std::size_t i = 0; i < k.samples.size(); ++i) std::printf("%s%.1f", i == 0 ? "" : ", ", k.samples[i]);
    std::printf("]}\n");
  }
}
