// A cluster's session folder: its secret, addresses, processes and logs. Each cluster has one; several exist side by side.
//
//   ROOT/NAME/token          0600, the only place with the secret.
//   ROOT/NAME/http-token     0600, only for HTTP requests to the head.
//   ROOT/NAME/info.json      addresses, to find a running cluster.
//   ROOT/NAME/pids/ROLE.PID  one file per head and node, with its start time, so that a reused pid does not count.
//   ROOT/NAME/logs/          logs of head, node and workers.
//   ROOT/NAME/state.sqlite   state that survives the head.
//   ROOT/NAME/orphaned       why this host's node ended by itself: it had no head any more.
//   ROOT/NAME/tls/           certificates of a multi-host cluster, 0600: ca.pem, node.pem, node.key, host, and at the head ca.key. Also
//                            network.json, with the interface and the encryption of data between hosts.
//
// A host that joined a cluster has its own folder for it, without a head.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "actors/session/folder/credentials.h"
#include "runtime/core/result.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls/certificates.h"

namespace shoal::actors {

struct SessionInfo {
  std::string head;        // HOST:PORT, empty for a cluster without a port
  std::string head_local;  // unix:@NAME, for processes of the head's host
  std::int64_t started_unix_ms = 0;
  std::string http = "";  // http://HOST:PORT, empty without HTTP
  std::string node = "";  // endpoint of this host's node, on a host that joined
  // For a cluster with several heads.
  std::string store = "";               // the store that the heads share
  std::vector<std::string> heads = {};  // HOST:PORT of each, the leader first
  std::int64_t store_since = 0;         // the store's revision when this session's first head registered
  // The endpoints by which this host reaches the head, as runtime::parse_endpoints reads them.
  std::string way() const;
};

// A host's certificates of the cluster.
struct SessionTls {
  runtime::KeyedCertificate authority;  // its key is only on the head's host
  runtime::KeyedCertificate own;
  std::string host;
  std::string interface = {};  // as in Credentials, as is data_tls
  bool data_tls = false;
};

struct SessionProcess {
  std::string role;  // "head", "node", "local"
  pid_t pid = 0;
};

// Reads the certificate authority that a head made, or a copy of it: `ca.pem` and `ca.key` of a session's tls/.
Result<runtime::KeyedCertificate> read_authority(const std::string& folder);

class SessionFolder {
 public:
  // Returns $SHOAL_HOME if that is set, else /tmp/shoal-UID, and makes it with mode 0700. Returns InvalidArgument if it belongs to another
  // user.
  static Result<std::string> root(const char* shoal_home);
  // Makes a new folder with the token. Removes ended sessions beyond kKeep, oldest first. Spares those of other hosts or containers with
  // the same root, since their processes are not visible here.
  static Result<SessionFolder> create(const std::string& root, const runtime::Token& token, std::int64_t unix_ms, std::uint64_t unique);
  static Result<SessionFolder> open(const std::string& path);
  // The sessions that have a living process, the latest first.
  static std::vector<SessionFolder> running(const std::string& root);
  // The running sessions that are not private, have an address and are not about to stop.
  static std::vector<SessionFolder> shared(const std::string& root);
  // Finds the running session of a head or a local cluster with this address, or with one of several addresses separated by commas. For
  // "auto", finds the latest shared session. Returns Unavailable/NoCluster if there is none.
  static Result<SessionFolder> at_address(const std::string& root, const std::string& address);

  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  std::string logs() const { return path_ + "/logs"; }
  std::string database() const { return path_ + "/state.sqlite"; }

  Result<runtime::Token> token() const;
  Result<void> write_http_token(const std::string& token) const;
  std::string http_token_file() const { return path_ + "/http-token"; }
  // The token of the dashboard's page. It allows only to read, and is valid only as long as this process of the head lives.
  Result<void> write_page_token(const std::string& token) const;
  std::string page_token_file() const { return path_ + "/page-token"; }
  // Writes a file that leads Prometheus (by its file_sd format) to GET /metrics at this http://HOST:PORT.
  Result<void> write_metrics_target(const std::string& http) const;
  std::string metrics_targets_file() const { return path_ + "/prom_metrics_service_discovery.json"; }
  // Reads the token and, if the cluster has any, the certificates.
  Result<Credentials> credentials() const;
  Result<void> write_tls(const SessionTls& tls) const;
  bool has_tls() const;
  // The certificate authority with its key. Returns NotFound on hosts other than the head's.
  Result<runtime::KeyedCertificate> authority() const;
  Result<void> write_info(const SessionInfo& info) const;
  Result<SessionInfo> info() const;

  Result<void> enter(const std::string& role, pid_t pid) const;
  void leave(const std::string& role, pid_t pid) const;
  // True if the process has entered and has not left, whether it lives or not.
  bool entered(const std::string& role, pid_t pid) const;
  // The living processes that have entered.
  std::vector<SessionProcess> processes() const;
  // Marks the session as ending. A process that is restarted just before and enters now sees the mark and leaves at once.
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

// write_orphaned() records why this host's node ended by itself. read_orphaned() returns that record; "" if there is none.
Result<void> write_orphaned(const SessionFolder& folder, const std::string& why);
std::string read_orphaned(const SessionFolder& folder);
// The error where no cluster runs. The hint names the reason if this host's latest session has ended by itself.
Error no_cluster(const std::string& root);

}  // namespace shoal::actors
