#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "runtime/transport/nccl/nccl_api.h"

namespace shoal::runtime {

namespace {

template <class Visit>
void for_each_function(NcclApi& api, Visit&& visit) {
  visit(api.get_version, "ncclGetVersion");
  visit(api.error_string, "ncclGetErrorString");
  visit(api.last_error, "ncclGetLastError");
  visit(api.get_unique_id, "ncclGetUniqueId");
  visit(api.comm_init, "ncclCommInitRankConfig");
  visit(api.comm_async_error, "ncclCommGetAsyncError");
  visit(api.comm_finalize, "ncclCommFinalize");
  visit(api.comm_destroy, "ncclCommDestroy");
  visit(api.comm_abort, "ncclCommAbort");
  visit(api.group_start, "ncclGroupStart");
  visit(api.group_end, "ncclGroupEnd");
  visit(api.all_gather, "ncclAllGather");
  visit(api.reduce_scatter, "ncclReduceScatter");
  visit(api.all_reduce, "ncclAllReduce");
  visit(api.reduce, "ncclReduce");
  visit(api.broadcast, "ncclBroadcast");
  visit(api.send, "ncclSend");
  visit(api.receive, "ncclRecv");
}

Result<NcclApi> open_first() {
  // A process in which torch has loaded its own NCCL gets that one by this name.
  std::vector<std::string> paths{"libnccl.so.2"};
  if (const char* named = std::getenv("SHOAL_NCCL_LIBRARY"); named != nullptr && *named != 0) paths.insert(paths.begin(), named);
  std::string attempts;
  for (const auto& path : paths) {
    auto api = NcclApi::open(path);
    if (api) return api;
    attempts += (attempts.empty() ? "" : "; ") + api.error().message();
  }
  return fail(unavailable("NCCL could not be loaded: " + attempts)
                  .with_reason("NoNccl")
                  .with_hint("a torch for CUDA brings it (nvidia-nccl-cu13); SHOAL_NCCL_LIBRARY names a libnccl.so.2 elsewhere"));
}

}  // namespace

Result<NcclApi> NcclApi::open(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(unavailable(dlerror()));
  NcclApi api;
  const char* absent = nullptr;
  for_each_function(api, [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && absent == nullptr) absent = name;
  });
  if (absent == nullptr && api.get_version(&api.version) == nccl::kSuccess && api.version >= nccl::kOldest) {
    Dl_info info{};
    api.path = dladdr(reinterpret_cast<void*>(api.comm_init), &info) != 0 ? info.dli_fname : path;
    return api;
  }
  Error error = absent != nullptr ? unavailable(fmt::format("{} has no function {}", path, absent))
                                  : unavailable(fmt::format("{} is NCCL {}, older than {}", path, nccl_version_text(api.version),
                                                            nccl_version_text(nccl::kOldest)));
  dlclose(handle);
  return fail(std::move(error));
}

Result<const NcclApi*> NcclApi::load() {
  static const Result<NcclApi> api = open_first();
  if (!api) return fail(api.error());
  return &*api;
}

}  // namespace shoal::runtime
