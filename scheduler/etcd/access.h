// With what heads speak to etcd.
#pragma once

#include <string>

namespace shoal::scheduler::etcd {

// Paths of files in PEM, read anew for each connection. etcd is believed when `authority` signed its certificate and that names its host;
// it knows us by ours. The key has no pass phrase.
struct TlsFiles {
  std::string authority, certificate, key;
};

struct Access {
  TlsFiles tls;                // for etcds://
  bool in_clear_text = false;  // etcd:// may name servers beyond loopback: whoever reaches them decides what runs in the cluster
};

}  // namespace shoal::scheduler::etcd
