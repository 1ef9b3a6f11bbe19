#include "storage/checksum.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <array>

#include "runtime/core/check.h"

namespace shoal::storage {

struct Checksum::State {
  EVP_MAC* mac = EVP_MAC_fetch(nullptr, "GMAC", nullptr);
  EVP_MAC_CTX* context = mac == nullptr ? nullptr : EVP_MAC_CTX_new(mac);
  bool finished = false;
  ~State() {
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
  }
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  std::array<char, 12> cipher = {"AES-128-GCM"};
  std::array<unsigned char, 16> key{};
  std::array<unsigned char, 12> nonce{};
  const std::array parameters = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher.data(), 0),
                                 OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce.data(), nonce.size()),
                                 OSSL_PARAM_construct_end()};
  SHOAL_CHECK(state_->context != nullptr && EVP_MAC_init(state_->context, key.data(), key.size(), parameters.data()) == 1,
              "OpenSSL has no GMAC");
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> bytes) {
  SHOAL_CHECK(!state_->finished, "bytes were added to a finished checksum");
  if (bytes.empty()) return;
  SHOAL_CHECK(EVP_MAC_update(state_->context, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) == 1, "GMAC failed");
}

std::string Checksum::hex() {
  SHOAL_CHECK(!state_->finished, "the checksum was finished twice");
  state_->finished = true;
  std::array<unsigned char, 16> tag{};
  std::size_t size = 0;
  SHOAL_CHECK(EVP_MAC_final(state_->context, tag.data(), &size, tag.size()) == 1 && size == tag.size(), "GMAC failed");
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char b : tag) out += {kDigits[b >> 4], kDigits[b & 15]};
  return out;
}

std::vector<std::string> ChunkChecksums::add(std::span<const std::byte> bytes, std::span<const std::size_t> ends) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    SHOAL_CHECK(begin <= end && end <= bytes.size(), "a chunk ends outside of the bytes");
    current_.add(bytes.subspan(begin, end - begin));
    out.push_back(current_.hex());
    current_ = Checksum();
    begin = end;
  }
  current_.add(bytes.subspan(begin));
  return out;
}

}  // namespace shoal::storage
