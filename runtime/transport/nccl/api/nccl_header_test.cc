// Shoal's declarations of NCCL beside NCCL's own header, which the build target chooses.
#include <nccl.h>

#include <type_traits>

#include <gtest/gtest.h>

#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {
namespace {

constexpr NcclConfig kOurs = nccl_config_for(NCCL_VERSION_CODE);

// ---- the settings ----

static_assert(NcclConfig::kDefault == NCCL_CONFIG_UNDEF_INT);
static_assert(alignof(NcclConfig) == alignof(ncclConfig_t));
// A header newer than our struct has further fields.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) ? kOurs.size < sizeof(ncclConfig_t) : kOurs.size == sizeof(ncclConfig_t));
static_assert(kOurs.version <= NCCL_VERSION_CODE);

#define SHOAL_SAME_FIELD(ours, theirs)                                         \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs))
SHOAL_SAME_FIELD(size, size);
SHOAL_SAME_FIELD(magic, magic);
SHOAL_SAME_FIELD(version, version);
SHOAL_SAME_FIELD(blocking, blocking);
SHOAL_SAME_FIELD(cga_cluster_size, cgaClusterSize);
SHOAL_SAME_FIELD(min_ctas, minCTAs);
SHOAL_SAME_FIELD(max_ctas, maxCTAs);
SHOAL_SAME_FIELD(net_name, netName);
SHOAL_SAME_FIELD(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
SHOAL_SAME_FIELD(traffic_class, trafficClass);
SHOAL_SAME_FIELD(comm_name, commName);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
SHOAL_SAME_FIELD(collnet_enable, collnetEnable);
SHOAL_SAME_FIELD(cta_policy, CTAPolicy);
SHOAL_SAME_FIELD(shrink_share, shrinkShare);
SHOAL_SAME_FIELD(nvls_ctas, nvlsCTAs);
#endif
#undef SHOAL_SAME_FIELD

// ---- the functions ----

template <class A, class B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> && std::is_class_v<A> == std::is_class_v<B>;
template <class R, class... As, class S, class... Bs>
constexpr bool same_call(R (*)(As...), S (*)(Bs...)) {
  if constexpr (sizeof...(As) != sizeof...(Bs))
    return false;
  else
    return alike<R, S> && (alike<As, Bs> && ...);
}
#define SHOAL_SAME_CALL(ours, theirs) static_assert(same_call(decltype(NcclApi::ours){}, decltype(&theirs){}))
SHOAL_SAME_CALL(get_version, ncclGetVersion);
SHOAL_SAME_CALL(error_string, ncclGetErrorString);
SHOAL_SAME_CALL(last_error, ncclGetLastError);
SHOAL_SAME_CALL(get_unique_id, ncclGetUniqueId);
SHOAL_SAME_CALL(comm_init, ncclCommInitRankConfig);
SHOAL_SAME_CALL(comm_async_error, ncclCommGetAsyncError);
SHOAL_SAME_CALL(comm_finalize, ncclCommFinalize);
SHOAL_SAME_CALL(comm_destroy, ncclCommDestroy);
SHOAL_SAME_CALL(comm_abort, ncclCommAbort);
SHOAL_SAME_CALL(group_start, ncclGroupStart);
SHOAL_SAME_CALL(group_end, ncclGroupEnd);
SHOAL_SAME_CALL(all_gather, ncclAllGather);
SHOAL_SAME_CALL(reduce_scatter, ncclReduceScatter);
SHOAL_SAME_CALL(all_reduce, ncclAllReduce);
SHOAL_SAME_CALL(reduce, ncclReduce);
SHOAL_SAME_CALL(broadcast, ncclBroadcast);
SHOAL_SAME_CALL(send, ncclSend);
SHOAL_SAME_CALL(receive, ncclRecv);
#undef SHOAL_SAME_CALL

// ---- the numbers ----

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(nccl::kSuccess == ncclSuccess && nccl::kUnhandledCudaError == ncclUnhandledCudaError &&
              nccl::kSystemError == ncclSystemError && nccl::kInternalError == ncclInternalError &&
              nccl::kInvalidArgument == ncclInvalidArgument && nccl::kInvalidUsage == ncclInvalidUsage &&
              nccl::kRemoteError == ncclRemoteError && nccl::kInProgress == ncclInProgress);
static_assert(nccl::kInt8 == ncclInt8 && nccl::kUInt8 == ncclUint8 && nccl::kInt32 == ncclInt32 && nccl::kInt64 == ncclInt64 &&
              nccl::kFloat16 == ncclFloat16 && nccl::kFloat32 == ncclFloat32 && nccl::kFloat64 == ncclFloat64 &&
              nccl::kBFloat16 == ncclBfloat16);
static_assert(nccl::kSum == ncclSum && nccl::kProduct == ncclProd && nccl::kMax == ncclMax && nccl::kMin == ncclMin &&
              nccl::kAvg == ncclAvg);

TEST(NcclHeader, SettingsWithoutChangesAreThoseOfNcclsInitializer) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const auto ours = nccl_config_for(NCCL_VERSION_CODE);
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.min_ctas, theirs.minCTAs);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  EXPECT_EQ(ours.traffic_class, theirs.trafficClass);
  EXPECT_EQ(ours.comm_name, theirs.commName);
  EXPECT_EQ(ours.collnet_enable, theirs.collnetEnable);
  EXPECT_EQ(ours.cta_policy, theirs.CTAPolicy);
  EXPECT_EQ(ours.shrink_share, theirs.shrinkShare);
  EXPECT_EQ(ours.nvls_ctas, theirs.nvlsCTAs);
#endif
}

}  // namespace
}  // namespace shoal::runtime
