// Certificates and sessions with which hosts join a cluster.
#pragma once

#include <string>

#include "actors/session/folder.h"
#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// Writes the certificates for a head at `host`, which other hosts reach, and returns the authority's fingerprint. `authority`: the tls
// folder of another head; "": a new authority.
Result<std::string> make_certificates(const actors::SessionFolder& folder, const std::string& host, const std::string& authority);

// Creates a session of this host for a cluster that has none here, with its token. In a remote cluster the session has a certificate for
// `host` ("": the address towards the head) that the head signed. On failure no session is left.
Result<actors::SessionFolder> join(const Common& common, const std::string& host, const Found& found);

}  // namespace shoal::scheduler::cli
