// A cluster's session folder: its secret, its addresses, who belongs to it, and its logs. One per cluster; several live
// side by side.
//
//   ROOT/NAME/token          0600, the only place where the secret lies
//   ROOT/NAME/http-token     0600, what HTTP requests carry, where the head answers them; of no use for anything else
//   ROOT/NAME/info.json      addresses, for those who look for a running cluster
//   ROOT/NAME/pids/ROLE.PID  one file per head and node; its content is the process's start time: a reused pid is no member
//   ROOT/NAME/logs/          of head, node and workers
//   ROOT/NAME/state.sqlite   what must survive the head
//   ROOT/NAME/tls/           of a cluster over several hosts: ca.pem, node.pem, node.key, host, and where its head is, ca.key; all 0600
//
// A host that joined a cluster from elsewhere has a folder of its own for it, without a head.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/session/credentials.h"
#include "runtime/core/result.h"
#include "runtime/net/certificates.h"
#include "runtime/net/hello.h"

namespace shoal::actors {

struct SessionInfo {
  std::string head;        // HOST:PORT, empty for a cluster without one
  std::string head_local;  // unix:@NAME
  std::int64_t started_unix_ms = 0;
  std::string http = "";  // http://HOST:PORT, empty for a cluster that is not asked so
  std::string node = "";  // where this host's node listens, on a host that joined
  // Of a cluster with several heads:
  std::string store = "";               // which all of them share
  std::vector<std::string> heads = {};  // HOST:PORT of each, the one that leads first
  // From this host to the head: endpoints, as runtime::parse_endpoints reads them.
  std::string way() const;
};

// What a host has of the cluster's certificates.
struct SessionTls {
  runtime::KeyedCertificate authority;  // its key only where the head is
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
  // $SHOAL_HOME if set, else /tmp/shoal-UID. Made with mode 0700; InvalidArgument when it belongs to somebody else.
  static Result<std::string> root(const char* shoal_home);
  // A new one with a fresh token. Ended ones beyond kKeep are removed, the oldest first; never those of another host, or container, that
  // has the same root: whether they have ended cannot be seen here.
  static Result<SessionFolder> create(const std::string& root, const runtime::Token& token, std::int64_t unix_ms, std::uint64_t unique);
  static Result<SessionFolder> open(const std::string& path);
  // Those with a living process, the latest first.
  static std::vector<SessionFolder> running(const std::string& root);
  // Those of them that are no program's own, have an address and are not being stopped.
  static std::vector<SessionFolder> shared(const std::string& root);
  // The running one that has this address (or one of several, comma-separated), of a head or local; "auto" is the latest shared one.
  // Unavailable/NoCluster.
  static Result<SessionFolder> at_address(const std::string& root, const std::string& address);

  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  std::string logs() const { return path_ + "/logs"; }
  std::string database() const { return path_ + "/state.sqlite"; }

  Result<runtime::Token> token() const;
  Result<void> write_http_token(const std::string& token) const;
  std::string http_token_file() const { return path_ + "/http-token"; }
  // Where Prometheus finds this cluster (its file_sd format): GET /metrics at this http://HOST:PORT.
  Result<void> write_metrics_target(const std::string& http) const;
  std::string metrics_targets_file() const { return path_ + "/prom_metrics_service_discovery.json"; }
  // The token, and the certificates if it has any.
  Result<Credentials> credentials() const;
  Result<void> write_tls(const SessionTls& tls) const;
  bool has_tls() const;
  // NotFound where the cluster's head is not.
  Result<runtime::KeyedCertificate> authority() const;
  Result<void> write_info(const SessionInfo& info) const;
  Result<SessionInfo> info() const;

  Result<void> enter(const std::string& role, pid_t pid) const;
  void leave(const std::string& role, pid_t pid) const;
  bool entered(const std::string& role, pid_t pid) const;  // and has not left, whether it lives or not
  // Those that live.
  std::vector<SessionProcess> processes() const;
  // It is being stopped: who enters now, because it was started again just before, leaves at once.
  Result<void> set_ending() const;
  bool ending() const;
  // Whether it belongs to one program (or job) and ends with it: others join it only when they are told its address.
  bool is_private() const;
  void remove() const;

  static constexpr std::size_t kKeep = 20;

 private:
  explicit SessionFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace shoal::actors
