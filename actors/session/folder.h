// A cluster's session folder: its secret, addresses, processes and logs. One per cluster; several exist side by side.
//
//   ROOT/NAME/token          0600, the only place with the secret.
//   ROOT/NAME/http-token     0600, only for HTTP requests to the head.
//   ROOT/NAME/info.json      addresses, to find a running cluster.
//   ROOT/NAME/pids/ROLE.PID  one file per head and node, with its start time, so that a reused pid does not count.
//   ROOT/NAME/logs/          logs of head, node and workers.
//   ROOT/NAME/state.sqlite   state that survives the head.
//   ROOT/NAME/tls/           certificates of a multi-host cluster, 0600: ca.pem, node.pem, node.key, host, and at the head ca.key.
//
// A host that joined a cluster has its own folder for it, without a head.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/session/credentials.h"
#include "runtime/core/result.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls/certificates.h"

namespace shoal::actors {

struct SessionInfo {
  std::string head;        // HOST:PORT, empty for a cluster without a port
  std::string head_local;  // unix:@NAME
  std::int64_t started_unix_ms = 0;
  std::string http = "";  // http://HOST:PORT, empty without HTTP
  std::string node = "";  // endpoint of this host's node, on a host that joined
  // For a cluster with several heads:
  std::string store = "";               // their shared store
  std::vector<std::string> heads = {};  // HOST:PORT of each, the leader first
  // Endpoints from this host to the head, for runtime::parse_endpoints.
  std::string way() const;
};

// A host's certificates of the cluster.
struct SessionTls {
  runtime::KeyedCertificate authority;  // with its key only at the head
  runtime::KeyedCertificate own;
  std::string host;
};

struct SessionProcess {
  std::string role;  // "head", "node", "local"
  pid_t pid = 0;
};

// The authority that a head made, or a copy of it: `ca.pem` and `ca.key` of a session's tls/.
Result<runtime::KeyedCertificate> read_authority(const std::string& folder);

class SessionFolder {
 public:
  // $SHOAL_HOME if set, else /tmp/shoal-UID. Made with mode 0700; InvalidArgument when it belongs to another user.
  static Result<std::string> root(const char* shoal_home);
  // A new folder with a fresh token. Ended sessions beyond kKeep are removed, oldest first, but none of other hosts or containers with
  // the same root, whose processes are not visible here.
  static Result<SessionFolder> create(const std::string& root, const runtime::Token& token, std::int64_t unix_ms, std::uint64_t unique);
  static Result<SessionFolder> open(const std::string& path);
  // Sessions with a living process, the latest first.
  static std::vector<SessionFolder> running(const std::string& root);
  // The running ones that are not private, have an address and are not being stopped.
  static std::vector<SessionFolder> shared(const std::string& root);
  // The running session of a head or a local cluster with this address, or one of several addresses with commas between them. "auto": the
  // latest shared one. Returns Unavailable/NoCluster if there is none.
  static Result<SessionFolder> at_address(const std::string& root, const std::string& address);

  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  std::string logs() const { return path_ + "/logs"; }
  std::string database() const { return path_ + "/state.sqlite"; }

  Result<runtime::Token> token() const;
  Result<void> write_http_token(const std::string& token) const;
  std::string http_token_file() const { return path_ + "/http-token"; }
  // Writes the address for Prometheus (its file_sd format): GET /metrics at this http://HOST:PORT.
  Result<void> write_metrics_target(const std::string& http) const;
  std::string metrics_targets_file() const { return path_ + "/prom_metrics_service_discovery.json"; }
  // The token, and the certificates if any.
  Result<Credentials> credentials() const;
  Result<void> write_tls(const SessionTls& tls) const;
  bool has_tls() const;
  // The certificate authority with its key. Returns NotFound on hosts other than the head's.
  Result<runtime::KeyedCertificate> authority() const;
  Result<void> write_info(const SessionInfo& info) const;
  Result<SessionInfo> info() const;

  Result<void> enter(const std::string& role, pid_t pid) const;
  void leave(const std::string& role, pid_t pid) const;
  bool entered(const std::string& role, pid_t pid) const;  // and has not left, alive or not
  // The living processes.
  std::vector<SessionProcess> processes() const;
  // Marks the session as being stopped: a process that enters now, restarted just before, leaves at once.
  Result<void> set_ending() const;
  bool ending() const;
  // A private session belongs to one program (or job) and ends with it; other processes join it only by its address.
  bool is_private() const;
  void remove() const;

  static constexpr std::size_t kKeep = 20;

 private:
  explicit SessionFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace shoal::actors
