#include "scheduler/web/guard.h"

#include <openssl/crypto.h>

namespace shoal::scheduler::web {

Guard::Guard(const runtime::Token& token, const std::string& host, std::uint16_t port) : token_(token.hex()) {
  for (const std::string& name : {std::string("127.0.0.1"), std::string("localhost"), std::string("[::1]"), host}) {
    hosts_.insert(name + ":" + std::to_string(port));
  }
}

std::optional<Refusal> Guard::check(const HttpRequest& request) const {
  if (!hosts_.contains(request.header("host"))) return Refusal{403, "this Host is not served here"};
  if (const auto origin = request.headers.find("origin"); origin != request.headers.end()) {
    constexpr std::string_view kScheme = "http://";
    const bool ours = origin->second.starts_with(kScheme) && hosts_.contains(origin->second.substr(kScheme.size()));
    if (!ours) return Refusal{403, "requests of other sites are refused"};
  }
  constexpr std::string_view kBearer = "Bearer ";
  const std::string& said = request.header("authorization");
  const Refusal refused{401, "the cluster's token is needed: Authorization: Bearer TOKEN (it lies in the session's folder)"};
  if (said.size() != kBearer.size() + token_.size() || !said.starts_with(kBearer)) return refused;
  if (CRYPTO_memcmp(said.data() + kBearer.size(), token_.data(), token_.size()) != 0) return refused;
  return std::nullopt;
}

}  // namespace shoal::scheduler::web
