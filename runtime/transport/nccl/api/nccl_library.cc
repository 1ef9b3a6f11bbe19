#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "runtime/core/library.h"
#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {

namespace {

Result<NcclApi> open_any() {
  // A process in which torch has loaded its own NCCL gets torch's library by this name.
  std::vector<std::string> paths{"libnccl.so.2"};
  if (const char* named = std::getenv("SHOAL_NCCL_LIBRARY"); named != nullptr && *named != 0) paths.insert(paths.begin(), named);
  auto api = open_first("NCCL", paths, &NcclApi::open);
  if (api) return api;
  return fail(std::move(api).error().with_reason("NoNccl").with_hint(
      "a torch for CUDA brings it (nvidia-nccl-cu13); SHOAL_NCCL_LIBRARY names a libnccl.so.2 elsewhere"));
}

}  // namespace

Result<NcclApi> NcclApi::open(const std::string& path) {
  NcclApi api;
  SHOAL_TRY(api.path, load_functions(path, [&](const auto& find) {
              find(api.get_version, "ncclGetVersion");
              find(api.error_string, "ncclGetErrorString");
              find(api.last_error, "ncclGetLastError");
              find(api.get_unique_id, "ncclGetUniqueId");
              find(api.comm_init, "ncclCommInitRankConfig");
              find(api.comm_async_error, "ncclCommGetAsyncError");
              find(api.comm_finalize, "ncclCommFinalize");
              find(api.comm_destroy, "ncclCommDestroy");
              find(api.comm_abort, "ncclCommAbort");
              find(api.group_start, "ncclGroupStart");
              find(api.group_end, "ncclGroupEnd");
              find(api.all_gather, "ncclAllGather");
              find(api.reduce_scatter, "ncclReduceScatter");
              find(api.all_reduce, "ncclAllReduce");
              find(api.reduce, "ncclReduce");
              find(api.broadcast, "ncclBroadcast");
              find(api.send, "ncclSend");
              find(api.receive, "ncclRecv");
              for (std::size_t i = 0; i < api.optional.size(); ++i) {
                if (kNcclFeatures[i].function != nullptr) find(api.optional[i], kNcclFeatures[i].function, false);
              }
            }));
  if (api.get_version(&api.version) == nccl::kSuccess && api.version >= nccl::kOldest) return api;
  return fail(
      unavailable(fmt::format("{} is NCCL {}, older than {}", path, nccl_version_text(api.version), nccl_version_text(nccl::kOldest))));
}

Result<void> NcclApi::require(NcclFeature feature) const {
  const auto index = static_cast<std::size_t>(feature);
  const auto& [since, function, text] = kNcclFeatures[index];
  if (function != nullptr ? optional[index] != nullptr : version >= since) return {};
  return fail(unimplemented(fmt::format("{} lacks {}, which came with NCCL {}", nccl_name_text(*this), text, nccl_version_text(since)))
                  .with_reason("Nccl"));
}

Result<const NcclApi*> NcclApi::load() {
  static const Result<NcclApi> api = open_any();
  if (!api) return fail(api.error());
  return &*api;
}

}  // namespace shoal::runtime
