#include "runtime/transport/tcp/connecting/introduction.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {

constexpr std::uint32_t kCalls = 0x53484c43, kAnswers = 0x53484c41;  // magic numbers; they change with the protocol's version
constexpr std::size_t kMacBytes = 32;
using Mac = std::array<std::byte, kMacBytes>;

struct Wire {
  std::uint32_t magic, caller, called, number, epoch, reserved;
  std::uint64_t nonce[2];
};
static_assert(sizeof(Wire) + kMacBytes == Introduction::kBytes);

Wire wire_of(const Introduction& i) { return {kCalls, i.caller, i.called, i.number, i.epoch, 0, {i.nonce[0], i.nonce[1]}}; }

Mac mac_of(std::uint32_t magic, std::uint32_t verdict, const Wire& wire, const Token& token, const TlsBinding& binding) {
  std::array<std::byte, 2 * sizeof(std::uint32_t) + sizeof(Wire) + sizeof(TlsBinding)> text;
  std::memcpy(text.data(), &magic, sizeof magic);
  std::memcpy(text.data() + 4, &verdict, sizeof verdict);
  std::memcpy(text.data() + 8, &wire, sizeof wire);
  std::memcpy(text.data() + 8 + sizeof wire, binding.data(), binding.size());
  Mac out{};
  unsigned length = 0;
  const auto* written =
      HMAC(EVP_sha256(), token.bytes().data(), static_cast<int>(Token::kBytes), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(out.data()), &length);
  SHOAL_CHECK(written != nullptr && length == kMacBytes, "OpenSSL has no HMAC-SHA256");
  return out;
}

Error refused(const char* who) { return invalid_argument(std::string(who) + " does not belong to this group").with_reason("TokenRefused"); }

}  // namespace

Introduction::Message Introduction::encode(const Introduction& introduction, const Token& token, const TlsBinding& binding) {
  Message out;
  const Wire wire = wire_of(introduction);
  const Mac mac = mac_of(kCalls, 0, wire, token, binding);
  std::memcpy(out.data(), &wire, sizeof wire);
  std::memcpy(out.data() + sizeof wire, mac.data(), mac.size());
  return out;
}

Result<Introduction> Introduction::decode(const Message& message, const Token& token, const TlsBinding& binding) {
  Wire wire;
  std::memcpy(&wire, message.data(), sizeof wire);
  const Mac mac = mac_of(kCalls, 0, wire, token, binding);
  if (wire.magic != kCalls || CRYPTO_memcmp(message.data() + sizeof wire, mac.data(), mac.size()) != 0) return fail(refused("the caller"));
  return Introduction{wire.caller, wire.called, wire.number, wire.epoch, {wire.nonce[0], wire.nonce[1]}};
}

Welcome::Message Welcome::encode(Verdict verdict, const Introduction& to, const Token& token, const TlsBinding& binding) {
  Message out;
  const auto status = static_cast<std::uint32_t>(verdict);
  const Mac mac = mac_of(kAnswers, status, wire_of(to), token, binding);
  std::memcpy(out.data(), &kAnswers, sizeof kAnswers);
  std::memcpy(out.data() + 4, &status, sizeof status);
  std::memcpy(out.data() + 8, mac.data(), mac.size());
  return out;
}

Result<Welcome::Verdict> Welcome::decode(const Message& message, const Introduction& to, const Token& token, const TlsBinding& binding) {
  std::uint32_t magic, status;
  std::memcpy(&magic, message.data(), sizeof magic);
  std::memcpy(&status, message.data() + 4, sizeof status);
  const Mac mac = mac_of(kAnswers, status, wire_of(to), token, binding);
  if (magic != kAnswers || CRYPTO_memcmp(message.data() + 8, mac.data(), mac.size()) != 0 || status < 1 || status > 2)
    return fail(refused("the process that listens there"));
  return static_cast<Verdict>(status);
}

}  // namespace shoal::runtime
