#include <fmt/format.h>

#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {

std::string nccl_version_text(int version) { return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

std::string nccl_name_text(const NcclApi& api) {
  return api.version > 0 ? "NCCL " + nccl_version_text(api.version) : std::string(api.name);
}

Error from_nccl(const NcclApi& api, NcclStatus status, NcclComm comm, std::string_view what) {
  const char* const detail = api.last_error(comm);
  std::string message = fmt::format("{} failed in {}: {}", what, nccl_name_text(api), api.error_string(status));
  if (detail != nullptr && *detail != 0) message += fmt::format(" ({})", detail);
  switch (status) {
    case nccl::kInvalidArgument:
      return internal(std::move(message)).with_reason("Nccl");
    case nccl::kInvalidUsage:
      return invalid_argument(std::move(message))
          .with_reason("Nccl")
          .with_hint("each rank needs a device of its own; NCCL_DEBUG=WARN prints what NCCL refuses");
    case nccl::kTimeout:
      return deadline_exceeded(std::move(message)).with_reason("Nccl");
    case nccl::kUnhandledCudaError:
      return unavailable(std::move(message))
          .with_reason("Nccl")
          .with_hint("nvidia-smi shows the driver; NCCL_DEBUG=WARN prints the CUDA error");
    case nccl::kRemoteError:
      return unavailable(std::move(message)).with_reason("Nccl").with_hint("another rank has ended or lost its network; read its output");
    default:
      return unavailable(std::move(message)).with_reason("Nccl").with_hint("NCCL_DEBUG=WARN prints the cause");
  }
}

}  // namespace shoal::runtime
