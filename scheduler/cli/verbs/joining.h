// Certificates and sessions with which hosts join a cluster.
#pragma once

#include <string>

#include "actors/session/folder/folder.h"
#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// The network of a cluster over several hosts, as the user chose it for this host.
struct DataNetwork {
  std::string interface;  // name or address; "": not chosen
  bool tls = false;       // data between hosts travels in TLS only
};

// Writes the certificates for a head at `host`, which other hosts reach, and returns the authority's fingerprint. `authority`: the tls
// folder of another head; "": a new authority, or with `from_token` the one that follows from the session's token.
Result<std::string> make_certificates(const actors::SessionFolder& folder, const std::string& host, const std::string& authority,
                                      const DataNetwork& network, bool from_token);

// Creates a session of this host for a cluster that has none here, with its token. In a remote cluster the session has a certificate for
// `host` ("": the address towards the head) that the head signed. It encrypts data if the head does. On failure no session is left.
// InvalidArgument/DataTls if `network` asks for TLS and the head was started without.
Result<actors::SessionFolder> join(const Common& common, const std::string& host, const Found& found, const DataNetwork& network);

// Names this host's interface in a cluster over several hosts, and how data between hosts travel.
std::string describe_network(const actors::Credentials& credentials);

}  // namespace shoal::scheduler::cli
