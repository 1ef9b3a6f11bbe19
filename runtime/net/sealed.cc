#include "runtime/net/sealed.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <memory>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kGcmNonceBytes = 12, kTagBytes = 16;
static_assert(Token::kBytes == 32);

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

const unsigned char* raw(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* raw(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

}  // namespace

std::string seal(const Token& token, std::string_view context, std::string_view text) {
  std::string nonce(kGcmNonceBytes, '\0'), out(text.size(), '\0'), tag(kTagBytes, '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int n = 0;
  const bool sealed = cipher && RAND_bytes(raw(nonce), kGcmNonceBytes) == 1 &&
                      EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr,
                                         reinterpret_cast<const unsigned char*>(token.bytes().data()), raw(nonce)) == 1 &&
                      EVP_EncryptUpdate(cipher.get(), nullptr, &n, raw(context), static_cast<int>(context.size())) == 1 &&
                      EVP_EncryptUpdate(cipher.get(), raw(out), &n, raw(text), static_cast<int>(text.size())) == 1 &&
                      EVP_EncryptFinal_ex(cipher.get(), raw(out) + n, &n) == 1 &&
                      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, raw(tag)) == 1;
  SHOAL_CHECK(sealed, "OpenSSL has no AES-256-GCM");
  return nonce + tag + out;
}

Result<std::string> unseal(const Token& token, std::string_view context, std::string_view sealed) {
  const auto refused = [] { return fail(data_loss("a text was not sealed with this cluster's token").with_reason("NotSealed")); };
  if (sealed.size() < kGcmNonceBytes + kTagBytes) return refused();
  const std::string_view nonce = sealed.substr(0, kGcmNonceBytes), text = sealed.substr(kGcmNonceBytes + kTagBytes);
  std::string tag(sealed.substr(kGcmNonceBytes, kTagBytes)), out(text.size(), '\0');
  const Cipher cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int n = 0;
  const bool opened = cipher &&
                      EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr,
                                         reinterpret_cast<const unsigned char*>(token.bytes().data()), raw(nonce)) == 1 &&
                      EVP_DecryptUpdate(cipher.get(), nullptr, &n, raw(context), static_cast<int>(context.size())) == 1 &&
                      EVP_DecryptUpdate(cipher.get(), raw(out), &n, raw(text), static_cast<int>(text.size())) == 1 &&
                      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, raw(tag)) == 1 &&
                      EVP_DecryptFinal_ex(cipher.get(), raw(out) + n, &n) == 1;
  if (!opened) return refused();
  return out;
}

}  // namespace shoal::runtime
