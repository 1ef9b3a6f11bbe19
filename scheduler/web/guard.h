// Who may ask: every request needs the cluster's token for HTTP, on loopback too, and a name that belongs here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "runtime/net/hello.h"
#include "scheduler/web/http.h"

namespace shoal::scheduler::web {

// What requests carry as they are, in clear text: made of the cluster's token, for nothing else, and no way back to it.
std::string http_token(const runtime::Token& token);

class Guard {
 public:
  // `host` is what the server is bound to.
  Guard(const runtime::Token& token, const std::string& host, std::uint16_t port);

  // 403 for a Host that is not one of ours (a page that had its name point here) and for a foreign Origin (a page that posts here),
  // then 401 without http_token(token). Compares in a time that does not depend on what was sent.
  std::optional<Refusal> check(const HttpRequest& request) const;

 private:
  const std::string token_;
  std::set<std::string> hosts_;
};

}  // namespace shoal::scheduler::web
