// HTTP requests, one at a time, through libcurl, which is loaded for the first one. Linked, it would cost every `shoal` process
// milliseconds and megabytes, and few use it.
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
  // With an authority: https only, TLS 1.2 or later. Without: http only. Returns NotFound if this host lacks libcurl or one of the files,
  // InvalidArgument if a file cannot be read.
  static Result<std::unique_ptr<HttpPost>> make(const TlsFiles& tls = {});
  virtual ~HttpPost() = default;
  // Connects directly to the url's host and ignores proxies in the environment. Returns Unavailable if there is no answer: the request may
  // have arrived. With the reason CertificateRefused nothing was sent.
  virtual Result<Reply> post(const std::string& url, const std::string& body, runtime::Duration timeout) = 0;
};

}  // namespace shoal::scheduler::etcd
