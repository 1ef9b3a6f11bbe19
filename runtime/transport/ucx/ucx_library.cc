#include "runtime/transport/ucx/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

constexpr const char* kSystem = "libucp.so.0";

Result<UcxLibrary> open(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(unavailable(dlerror()));
  UcxLibrary ucx;
  const char* absent = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && absent == nullptr) absent = name;
  };
  find(ucx.init_version, "ucp_init_version");
  find(ucx.cleanup, "ucp_cleanup");
  find(ucx.config_read, "ucp_config_read");
  find(ucx.config_modify, "ucp_config_modify");
  find(ucx.config_release, "ucp_config_release");
  find(ucx.worker_create, "ucp_worker_create");
  find(ucx.worker_destroy, "ucp_worker_destroy");
  find(ucx.worker_get_address, "ucp_worker_get_address");
  find(ucx.worker_release_address, "ucp_worker_release_address");
  find(ucx.worker_get_efd, "ucp_worker_get_efd");
  find(ucx.worker_arm, "ucp_worker_arm");
  find(ucx.worker_progress, "ucp_worker_progress");
  find(ucx.worker_flush_nbx, "ucp_worker_flush_nbx");
  find(ucx.ep_create, "ucp_ep_create");
  find(ucx.ep_close_nbx, "ucp_ep_close_nbx");
  find(ucx.tag_send_nbx, "ucp_tag_send_nbx");
  find(ucx.tag_recv_nbx, "ucp_tag_recv_nbx");
  find(ucx.tag_probe_nb, "ucp_tag_probe_nb");
  find(ucx.tag_msg_recv_nbx, "ucp_tag_msg_recv_nbx");
  find(ucx.request_cancel, "ucp_request_cancel");
  find(ucx.request_check_status, "ucp_request_check_status");
  find(ucx.request_free, "ucp_request_free");
  find(ucx.status_string, "ucs_status_string");
  decltype(&ucp_get_version_string) version_string = nullptr;
  find(version_string, "ucp_get_version_string");
  if (absent != nullptr) {
    dlclose(handle);
    return fail(unavailable(fmt::format("{} has no function {}", path, absent)));
  }
  Dl_info info{};
  ucx.path = dladdr(reinterpret_cast<void*>(ucx.init_version), &info) != 0 ? info.dli_fname : path;
  ucx.version = version_string();
  return ucx;
}

Result<UcxLibrary> open_first() {
  // UCX reads these when it is loaded. Its own handlers of SIGSEGV would hide the process's, and each peer's end would print lines.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  std::vector<std::string> paths{kSystem};
  if (const char* named = std::getenv("SHOAL_UCX_LIBRARY"); named != nullptr && *named != 0) paths.emplace_back(named);
  std::string attempts;
  for (const auto& path : paths) {
    auto library = open(path);
    if (library) return library;
    attempts += (attempts.empty() ? "" : "; ") + library.error().message();
  }
  return fail(unavailable("UCX could not be loaded: " + attempts)
                  .with_reason("NoUcx")
                  .with_hint("install libucx0 (Debian) or pip install 'shoal-fsdp[ucx]'"));
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::load() {
  static const Result<UcxLibrary> library = open_first();
  if (!library) return fail(library.error());
  return &*library;
}

}  // namespace shoal::runtime
