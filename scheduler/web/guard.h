// Access control for HTTP: every request, on loopback too, needs the cluster's HTTP token and an accepted Host and Origin.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "runtime/net/hello.h"
#include "scheduler/web/http.h"

namespace shoal::scheduler::web {

// The token that requests carry in clear text. It is derived one-way from the cluster's token and grants HTTP only.
std::string http_token(const runtime::Token& token);

class Guard {
 public:
  // `host` is the server's bound address. `page_token`: a second token, which grants GET alone; "" for none.
  Guard(const runtime::Token& token, const std::string& host, std::uint16_t port, std::string page_token = "");

  // The status is 403 for a foreign Host (DNS rebinding) or a foreign Origin (cross-site requests), and 401 without a token that
  // grants it. The time of a comparison does not depend on the token that was sent. `needs_token`: false for what everyone may read.
  std::optional<Refusal> check(const HttpRequest& request, bool needs_token = true) const;

 private:
  const std::string token_, page_token_;
  std::set<std::string> hosts_;
};

}  // namespace shoal::scheduler::web
