// The settings of a communicator, in the layout that the loaded NCCL knows.
#pragma once

#include <climits>
#include <cstddef>

namespace shoal::runtime {

// NCCL's ncclConfig_t. New versions append fields; the numbers are those of the first NCCL that has them. A newer NCCL than the last one
// takes its defaults for its further fields.
struct NcclConfig {
  static constexpr int kDefault = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22700;
  // 2.18
  int blocking = 0;
  int cga_cluster_size = kDefault, min_ctas = kDefault, max_ctas = kDefault;
  const char* net_name = nullptr;
  int split_share = kDefault;
  // 2.26
  int traffic_class = kDefault;     // in the padding of 2.18's struct
  const char* comm_name = nullptr;  // NCCL keeps the pointer
  // 2.27
  int collnet_enable = kDefault, cta_policy = kDefault, shrink_share = kDefault, nvls_ctas = kDefault;
};

struct NcclConfigLayout {
  unsigned since;
  std::size_t size;
};
inline constexpr NcclConfigLayout kNcclConfigLayouts[] = {
    {22700, sizeof(NcclConfig)}, {22600, offsetof(NcclConfig, collnet_enable)}, {21800, offsetof(NcclConfig, comm_name)}};

// The defaults, for NCCL of this version (22703 is 2.27.3). An NCCL that lacks a field does not look at it.
constexpr NcclConfig nccl_config_for(int version) {
  NcclConfig out;
  for (const auto& [since, size] : kNcclConfigLayouts) {
    out.size = size;
    out.version = since;
    if (version >= static_cast<int>(since)) break;
  }
  return out;
}

}  // namespace shoal::runtime
