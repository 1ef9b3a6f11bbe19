#include "scheduler/web/guard.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <utility>

#include <fmt/format.h>

#include "runtime/core/check.h"

namespace shoal::scheduler::web {

std::string http_token(const runtime::Token& token) {
  constexpr std::string_view kPurpose = "shoal http";  // the same text as in python/shoal/_driver/http.py
  std::array<std::uint8_t, 32> digest{};
  const auto* const ok = HMAC(EVP_sha256(), token.bytes().data(), static_cast<int>(token.bytes().size()),
                              reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size(), digest.data(), nullptr);
  SHOAL_CHECK(ok != nullptr, "OpenSSL has no HMAC-SHA256");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

Guard::Guard(const runtime::Token& token, const std::string& host, std::uint16_t port, std::string page_token)
    : token_(http_token(token)), page_token_(std::move(page_token)) {
  for (const std::string& name : {std::string("127.0.0.1"), std::string("localhost"), std::string("[::1]"), host}) {
    hosts_.insert(name + ":" + std::to_string(port));
  }
}

std::optional<Refusal> Guard::check(const HttpRequest& request, bool needs_token) const {
  if (!hosts_.contains(request.header("host"))) return Refusal{403, "this Host is not served here"};
  if (const auto origin = request.headers.find("origin"); origin != request.headers.end()) {
    constexpr std::string_view kScheme = "http://";
    const bool ours = origin->second.starts_with(kScheme) && hosts_.contains(origin->second.substr(kScheme.size()));
    if (!ours) return Refusal{403, "requests of other sites are refused"};
  }
  if (!needs_token) return std::nullopt;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string& said = request.header("authorization");
  const auto carries = [&](const std::string& token) {
    return !token.empty() && said.size() == kBearer.size() + token.size() && said.starts_with(kBearer) &&
           CRYPTO_memcmp(said.data() + kBearer.size(), token.data(), token.size()) == 0;
  };
  if (carries(token_) || (request.method == "GET" && carries(page_token_))) return std::nullopt;
  return Refusal{401, "the cluster's token for HTTP is needed: Authorization: Bearer TOKEN (the file http-token in the session's folder)"};
}

}  // namespace shoal::scheduler::web
