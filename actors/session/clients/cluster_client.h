// The client of the cluster as a whole: the head's rows and resources, the packages that it keeps, and the cluster's end. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "actors/protocol/wire/packages.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"

namespace shoal::actors {

class ClusterClient {
 public:
  ClusterClient(SessionLoop& loop, HeadClient& head, const Identity& self) : loop_(loop), head_(head), self_(self) {}

  Result<ListReply> list(ListRequest::What what, JobId job = {});
  Result<ClusterStatus> status();
  Result<ClusterStatus> resources();  // fills in only total, available and wanted_back
  // Sends a part of a package to the head, or, without data, only asks about the package. Returns true once the head has all parts,
  // InvalidArgument/FromTheFirst if earlier parts are missing.
  Result<bool> put_package(const PackagePart& part);
  // The part of the package that begins at `offset`.
  Result<PackagePart> get_package(const std::string& name, std::uint64_t offset);
  // Asks the head to end the whole cluster.
  Result<void> shutdown();

 private:
  SessionLoop& loop_;
  HeadClient& head_;
  const Identity& self_;
};

}  // namespace shoal::actors
