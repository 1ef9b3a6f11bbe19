#include "runtime/transport/ucx/ucx_library.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string_view>

#include "runtime/core/library.h"

namespace shoal::runtime {

namespace {

constexpr const char* kSystem = "libucp.so.0";
constexpr std::array<std::string_view, 4> kRdma = {"rc_", "dc_", "ud_", "srd"};  // beginnings of the names of transports

Result<UcxLibrary> open_one(const std::string& path) {
  UcxLibrary ucx;
  decltype(&ucp_get_version_string) version_string = nullptr;
  SHOAL_TRY(ucx.path, load_functions(path, [&](const auto& find) {
              find(ucx.init_version, "ucp_init_version");
              find(ucx.cleanup, "ucp_cleanup");
              find(ucx.context_print_info, "ucp_context_print_info");
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
              find(version_string, "ucp_get_version_string");
            }));
  ucx.version = version_string();
  return ucx;
}

// The transports in the description of a context, which has lines such as "#  resource 1 :  md 1  dev 1  flags -- tcp/eth0".
std::vector<UcxTransport> transports_in(const std::string& description) {
  std::vector<UcxTransport> out;
  std::istringstream lines(description);
  for (std::string line; std::getline(lines, line);) {
    const auto name = line.rfind(' '), slash = line.find('/', name == std::string::npos ? 0 : name);
    if (line.find(" resource ") == std::string::npos || slash == std::string::npos) continue;
    out.push_back({line.substr(name + 1, slash - name - 1), line.substr(slash + 1)});
  }
  return out;
}

}  // namespace

bool UcxTransport::is_rdma() const {
  return std::ranges::any_of(kRdma, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::vector<std::string> UcxLibrary::candidates(const std::string& named, const std::string& packaged) {
  if (!named.empty()) return {named};
  std::vector<std::string> out{kSystem};
  if (!packaged.empty()) out.push_back(packaged);
  return out;
}

Result<UcxLibrary> UcxLibrary::open(std::span<const std::string> paths) {
  auto library = open_first("UCX", paths, &open_one);
  if (library) return library;
  return fail(
      std::move(library).error().with_reason("NoUcx").with_hint("install libucx0 (Debian, with InfiniBand), or pip install 'shoal[ucx]'"));
}

Result<const UcxLibrary*> UcxLibrary::load(const std::string& packaged) {
  static const Result<UcxLibrary> library = [&] {
    // UCX reads these when it is loaded. Its own handlers of SIGSEGV would hide the process's, and each peer's end would print lines.
    setenv("UCX_ERROR_SIGNALS", "", 0);
    setenv("UCX_LOG_LEVEL", "fatal", 0);
    const char* named = std::getenv("SHOAL_UCX_LIBRARY");
    return open(candidates(named != nullptr ? named : "", packaged));
  }();
  if (!library) return fail(library.error());
  return &*library;
}

std::vector<UcxTransport> UcxLibrary::transports() const {
  ucp_config_t* config = nullptr;
  if (config_read(nullptr, nullptr, &config) != UCS_OK) return {};
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  const auto opened = init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  config_release(config);
  if (opened != UCS_OK) return {};
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream != nullptr) {
    context_print_info(context, stream);
    std::fclose(stream);
  }
  cleanup(context);
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  return transports_in(std::string(text != nullptr ? text : "", size));
}

}  // namespace shoal::runtime
