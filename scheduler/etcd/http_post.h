// Requests over HTTP, one at a time: libcurl, which is loaded when the first one is wanted. Linked, it would cost every `shoal` process
// milliseconds and megabytes, of which one in a hundred uses it.
//
// Blocks its caller. One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "scheduler/etcd/access.h"

namespace shoal::scheduler::etcd {

class HttpPost {
 public:
  static constexpr std::size_t kMaxReply = 256u << 20;
  struct Reply {
    long status = 0;
    std::string body;
  };
  // With an authority it speaks https alone, TLS 1.2 or later; without one http alone. NotFound when this host has no libcurl, or not one
  // of the files; InvalidArgument when one cannot be read.
  static Result<std::unique_ptr<HttpPost>> make(const TlsFiles& tls = {});
  virtual ~HttpPost() = default;
  // Straight to the url's host, whatever proxy the environment names. Unavailable: it may have arrived, or not; with reason
  // "CertificateRefused" nothing was sent.
  virtual Result<Reply> post(const std::string& url, const std::string& body, runtime::Duration timeout) = 0;
};

}  // namespace shoal::scheduler::etcd
