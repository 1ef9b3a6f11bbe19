// The cluster that a command uses, found by its address or among those of this host, and the connection to its head.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "actors/session/folder/folder.h"
#include "scheduler/cli/client.h"
#include "scheduler/cli/environment.h"

namespace shoal::scheduler::cli {

// The cluster that a command uses: --address, $SHOAL_ADDRESS, or the running one.
struct Target {
  std::string root;     // folder of session folders
  std::string address;  // "": none given
  // Credentials for a cluster that has no session on this host; "" when not given.
  std::string token;       // the token itself, from the environment
  std::string token_file;  // file with the token
  // The token is given on the command line. It then has to be the cluster's, even if a session on this host has the cluster's token.
  bool token_named = false;
  std::string fingerprint;  // fingerprint of the cluster's certificate authority
};

// The values from the command line and the environment that every verb gets.
struct Common {
  Target target;
  bool json = false;
  std::string self;         // this executable's path
  std::string python;       // the interpreter beside it
  Environment environment;  // without the token
};

// Prints the error and returns its exit code.
int failed(const Common& common, const Error& error);

struct Found {
  std::optional<actors::SessionFolder> folder;  // empty when this host has no session of the cluster
  actors::Credentials credentials;
  std::string endpoint;  // one or several comma-separated head endpoints, reachable from this host
  std::string address;   // the address shown to users
  // This host's session of a cluster that has or had this address, if the command names a file with another token.
  std::optional<actors::SessionFolder> other = {};
  std::string token_file = {};  // path of that file
};
// Reads token and fingerprint. Returns InvalidArgument, which names it, if one of them is missing or wrong.
Result<actors::Credentials> credentials_of(const Target& target);
// Finds the cluster of `target`. Returns Unavailable/NoCluster if none runs. Without an address there are two ways. With `exactly`
// (commands that use or end a cluster), exactly one cluster must run, apart from those private to a program. If there are more, it returns
// InvalidArgument/SeveralClusters with a list. Without `exactly` the latest cluster is taken, a private one if there is no other.
Result<Found> find_cluster(const Target& target, bool exactly);

// This host's session of the cluster. Returns InvalidArgument, with the reason Usage or TokenRefused, if there is none.
Result<actors::SessionFolder> session_of(const Found& found);

// Connects to the head. The error names the addresses that were tried and what to do.
Result<std::unique_ptr<Client>> connect_head(Context& context, const Found& found);

struct ClusterConnection {
  std::unique_ptr<Context> context;
  std::unique_ptr<Client> head;
  std::string address;
  std::string endpoint;  // one or several comma-separated head endpoints, reachable from this host
  std::string logs;      // folder of the session's logs
  std::string host;      // this host's address, in a cluster over several hosts
  bool over_hosts = false;
};
Result<ClusterConnection> connect_cluster(const Common& common);

}  // namespace shoal::scheduler::cli
