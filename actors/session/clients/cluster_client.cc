#include "actors/session/clients/cluster_client.h"

namespace shoal::actors {

Result<ListReply> ClusterClient::list(ListRequest::What what, JobId job) {
  return list_all({what, job}, [this](const Bytes& request) { return head_.request_for<ListReply>(Method::kList, request); });
}

Result<ClusterStatus> ClusterClient::status() { return head_.request_for<ClusterStatus>(Method::kStatus, {}); }

Result<ClusterStatus> ClusterClient::resources() { return head_.request_for<ClusterStatus>(Method::kStatus, to_bytes(JobRef{self_.job})); }

Result<bool> ClusterClient::put_package(const PackagePart& part) {
  SHOAL_TRY(const auto has, head_.request_for<HasPackage>(Method::kPutPackage, to_bytes(part)));
  return has.whole;
}

Result<PackagePart> ClusterClient::get_package(const std::string& name, std::uint64_t offset) {
  return head_.request_for<PackagePart>(Method::kGetPackage, to_bytes(PackagePart{name, 0, offset, {}}));
}

Result<void> ClusterClient::shutdown() {
  SHOAL_OK(head_.reach_once());
  loop_.own([this] { head_.expect_end(); });
  SHOAL_OK(head_.request_once(Method::kShutdown, {}));
  return {};
}

}  // namespace shoal::actors
