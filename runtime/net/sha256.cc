#include "runtime/net/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "runtime/core/check.h"

namespace shoal::runtime {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  SHOAL_CHECK(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::add(std::span<const std::byte> bytes) {
  SHOAL_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "bytes were added to a finished digest");
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  SHOAL_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1, "the digest was finished twice");
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char b : digest) out += {kDigits[b >> 4], kDigits[b & 15]};
  return out;
}

}  // namespace shoal::runtime
