// Credentials with which heads connect to etcd.
#pragma once

#include <string>

namespace shoal::scheduler::etcd {

// Paths of PEM files, read anew for each connection. The authority has to have signed etcd's certificate, which has to name its host. The
// certificate here identifies the head to etcd. The key has no pass phrase.
struct TlsFiles {
  std::string authority, certificate, key;
};

struct Access {
  TlsFiles tls;                // for etcds://
  bool in_clear_text = false;  // allows etcd:// beyond loopback: anyone who reaches etcd decides what runs
};

}  // namespace shoal::scheduler::etcd
