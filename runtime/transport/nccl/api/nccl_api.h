// The functions of NCCL that the engine calls, with types of our own, so that the build needs no header of NCCL. Tests put a fake behind
// the same table (fake/fake_nccl.h).
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <string>

#include "runtime/device/cuda_api.h"
#include "runtime/transport/nccl/api/nccl_config.h"

struct ncclComm;  // NCCL's own name of what its handle points to

namespace shoal::runtime {

using NcclStatus = int;
using NcclComm = ncclComm*;
using NcclType = int;
using NcclOp = int;

struct NcclUniqueId {
  char bytes[128];
};

namespace nccl {
inline constexpr NcclStatus kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3, kInvalidArgument = 4,
                            kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7, kTimeout = 8;
inline constexpr NcclType kInt8 = 0, kUInt8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBFloat16 = 9;
inline constexpr NcclOp kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4;
inline constexpr int kOldest = 21800;  // the oldest that the engine is written for
}  // namespace nccl

// Features that only some versions have. Shoal's own transport needs none of them; torch's communicators may use them on the same library.
enum class NcclFeature : std::size_t { kSplit, kShrink, kWindows, kZeroCtas };
struct NcclFeatureEntry {
  int since;
  const char* function;  // to be looked up; null: a setting, which exists from version `since` on
  const char* text;
};
inline constexpr NcclFeatureEntry kNcclFeatures[] = {
    {21800, "ncclCommSplit", "splits of communicators"},
    {22700, "ncclCommShrink", "communicators without lost ranks"},
    {22700, "ncclCommWindowRegister", "symmetric memory"},
    {22800, nullptr, "the policy of zero CTAs"},
};

struct NcclApi {
  // Loads NCCL on the first call: the system's, or the one that torch has loaded. Unavailable/NoNccl with all attempts where there is none.
  // SHOAL_NCCL_LIBRARY names another file.
  static Result<const NcclApi*> load();
  // Loads the library at `path`, which stays loaded.
  static Result<NcclApi> open(const std::string& path);
  // Unimplemented/Nccl, with the first version that has it, if this library lacks the feature.
  Result<void> require(NcclFeature feature) const;

  std::string path;                                        // path of the loaded library
  int version = 0;                                         // 22703 for 2.27.3
  std::array<void*, std::size(kNcclFeatures)> optional{};  // functions of features; null: absent
  const char* name = "nccl";                               // the transport that uses this table
  bool shares_devices = false;                             // several ranks may have one device
  // True: the table puts operations on the stream in steps, at each comm_async_error(), because a step may wait for other ranks. So the
  // watching thread polls, and a call of the program returns at once.
  bool issues_in_polls = false;
  // Called again and again while the streams of aborted communicators drain; may be null. `overdue`: they wait for a rank that may be
  // alive.
  void (*drain)(bool overdue) = nullptr;

  NcclStatus (*get_version)(int* version);
  const char* (*error_string)(NcclStatus status);
  const char* (*last_error)(NcclComm comm);
  NcclStatus (*get_unique_id)(NcclUniqueId* id);
  NcclStatus (*comm_init)(NcclComm* comm, int num_ranks, NcclUniqueId id, int rank, NcclConfig* config);
  NcclStatus (*comm_async_error)(NcclComm comm, NcclStatus* status);
  NcclStatus (*comm_finalize)(NcclComm comm);
  NcclStatus (*comm_destroy)(NcclComm comm);
  NcclStatus (*comm_abort)(NcclComm comm);
  NcclStatus (*group_start)();
  NcclStatus (*group_end)();
  NcclStatus (*all_gather)(const void* input, void* output, std::size_t count, NcclType type, NcclComm comm, CudaStream stream);
  NcclStatus (*reduce_scatter)(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                               CudaStream stream);
  NcclStatus (*all_reduce)(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, NcclComm comm, CudaStream stream);
  NcclStatus (*reduce)(const void* input, void* output, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm,
                       CudaStream stream);
  NcclStatus (*broadcast)(const void* input, void* output, std::size_t count, NcclType type, int root, NcclComm comm, CudaStream stream);
  NcclStatus (*send)(const void* data, std::size_t count, NcclType type, int to, NcclComm comm, CudaStream stream);
  NcclStatus (*receive)(void* data, std::size_t count, NcclType type, int from, NcclComm comm, CudaStream stream);
};

// "2.27.3" for 22703.
std::string nccl_version_text(int version);
// "NCCL 2.27.3", or the name of another implementation.
std::string nccl_name_text(const NcclApi& api);
// Converts statuses of NCCL, everywhere in Shoal. `what`: the call in words. `comm` may be null.
Error from_nccl(const NcclApi& api, NcclStatus status, NcclComm comm, std::string_view what);

}  // namespace shoal::runtime
