#include "runtime/net/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "runtime/core/check.h"
#include "runtime/core/id.h"

namespace shoal::runtime {
namespace {

// Layout of each message: magic 0..3, step 4, status or role 5, newest 6..7, oldest or agreed 8..9, zero 10..15,
// nonce 16..31, mac 32..63.
constexpr std::uint8_t kMagic[4] = {'S', 'H', 'L', '1'};
constexpr std::size_t kStep = 4, kField = 5, kNewest = 6, kOldest = 8, kNonce = 16, kMac = 32, kNonceBytes = 16, kMacBytes = 32;

enum Step : std::uint8_t { kChallengeStep = 1, kAnswerStep = 2, kVerdictStep = 3 };
enum Status : std::uint8_t { kAccepted = 0, kTokenRefused = 1, kVersionRefused = 2, kNoRoom = 3 };

void put16(HelloMessage& m, std::size_t at, std::uint16_t v) {
  m[at] = static_cast<std::uint8_t>(v);
  m[at + 1] = static_cast<std::uint8_t>(v >> 8);
}
std::uint16_t get16(const HelloMessage& m, std::size_t at) { return static_cast<std::uint16_t>(m[at] | m[at + 1] << 8); }

HelloMessage blank(Step step, VersionRange versions) {
  HelloMessage m{};
  std::copy(std::begin(kMagic), std::end(kMagic), m.begin());
  m[kStep] = step;
  put16(m, kNewest, versions.newest);
  put16(m, kOldest, versions.oldest);
  return m;
}

bool is_ours(const HelloMessage& m, Step step) { return std::equal(std::begin(kMagic), std::end(kMagic), m.begin()) && m[kStep] == step; }

void fill(std::uint8_t* out, std::size_t n, Random& random) {
  for (std::size_t i = 0; i < n; i += 8) {
    const std::uint64_t v = random.next();
    std::memcpy(out + i, &v, 8);
  }
}

// The MAC covers all messages so far except their own MACs, so that versions, role and status cannot be altered on the way.
std::array<std::uint8_t, kMacBytes> mac(const Token& token, const HelloBinding& binding, std::string_view who,
                                        std::initializer_list<const HelloMessage*> messages) {
  std::array<std::uint8_t, 16 + 3 * kMac + 32> text{};
  std::copy(who.begin(), who.end(), text.begin());
  auto* end = text.begin() + 16;
  for (const auto* m : messages) end = std::copy_n(m->begin(), kMac, end);
  if (binding) end = std::copy(binding->begin(), binding->end(), end);
  std::array<std::uint8_t, kMacBytes> out{};
  unsigned length = 0;
  const auto* written = HMAC(EVP_sha256(), token.bytes().data(), static_cast<int>(Token::kBytes), text.data(),
                             static_cast<std::size_t>(end - text.begin()), out.data(), &length);
  SHOAL_CHECK(written != nullptr && length == kMacBytes, "OpenSSL has no HMAC-SHA256");
  return out;
}

bool mac_matches(const HelloMessage& m, const std::array<std::uint8_t, kMacBytes>& expected) {
  return CRYPTO_memcmp(m.data() + kMac, expected.data(), kMacBytes) == 0;
}

std::string range_text(std::uint16_t oldest, std::uint16_t newest) { return std::to_string(oldest) + " to " + std::to_string(newest); }

Error not_shoal() {
  return invalid_argument("the other side does not speak Shoal's protocol").with_reason("NotShoal").with_hint("check the address and port");
}

Error version_mismatch(VersionRange mine, std::uint16_t oldest, std::uint16_t newest) {
  return invalid_argument("the wire versions have no overlap: this side speaks " + range_text(mine.oldest, mine.newest) + ", the other " +
                          range_text(oldest, newest))
      .with_reason("VersionMismatch")
      .with_hint("install the same release of shoal on both sides");
}

Error token_refused(const char* message) {
  return invalid_argument(message)
      .with_reason("TokenRefused")
      .with_hint("use the token of the cluster at this address (SHOAL_TOKEN_FILE, --token-file)");
}

}  // namespace

Token Token::random(Random& random) {
  Token t;
  fill(t.bytes_.data(), kBytes, random);
  return t;
}

Result<Token> Token::parse(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const auto last = text.find_last_not_of(" \t\r\n");
  if (first != std::string_view::npos) text = text.substr(first, last - first + 1);
  Token t;
  if (text.size() != 2 * kBytes) return fail(invalid_argument("a token must have 64 hexadecimal digits"));
  for (std::size_t i = 0; i < kBytes; ++i) {
    const auto byte = parse_hex(text.substr(2 * i, 2));
    if (!byte) return fail(invalid_argument("a token must have 64 hexadecimal digits"));
    t.bytes_[i] = static_cast<std::uint8_t>(*byte);
  }
  return t;
}

std::string Token::hex() const {
  std::string out;
  for (const auto b : bytes_) out += shoal::hex(b).substr(14);
  return out;
}

HelloListener::HelloListener(const Token& token, VersionRange versions, Random& random, HelloBinding binding)
    : token_(token), versions_(versions), binding_(binding), challenge_(blank(kChallengeStep, versions)) {
  fill(challenge_.data() + kNonce, kNonceBytes, random);
}

HelloListener::Verdict HelloListener::judge(const HelloMessage& answer) const {
  Verdict v{blank(kVerdictStep, versions_), {}, Role::kClient, 0};
  const auto refuse = [&](Status status, Error error) {
    v.message[kField] = status;
    v.accepted = fail(std::move(error));
    return v;
  };
  if (!is_ours(answer, kAnswerStep)) return refuse(kTokenRefused, not_shoal());
  const std::uint16_t newest = get16(answer, kNewest), oldest = get16(answer, kOldest);
  // Checks the token first, so that a stranger learns nothing from the answer, not even about versions.
  if (!mac_matches(answer, mac(token_, binding_, "caller", {&challenge_, &answer}))) {
    return refuse(kTokenRefused, token_refused("the caller does not have the cluster's token"));
  }
  if (newest < versions_.oldest || oldest > versions_.newest) return refuse(kVersionRefused, version_mismatch(versions_, oldest, newest));
  const auto role = static_cast<Role>(answer[kField]);
  if (role < Role::kNode || role > Role::kWorker) return refuse(kTokenRefused, not_shoal());
  v.role = role;
  v.version = std::min(newest, versions_.newest);
  v.message[kField] = kAccepted;
  put16(v.message, kOldest, v.version);
  const auto proof = mac(token_, binding_, "listener", {&challenge_, &answer, &v.message});
  std::copy(proof.begin(), proof.end(), v.message.begin() + kMac);
  return v;
}

HelloMessage HelloListener::no_room() const {
  HelloMessage out = blank(kVerdictStep, versions_);
  out[kField] = kNoRoom;
  return out;
}

HelloCaller::HelloCaller(const Token& token, VersionRange versions, Role role, Random& random, HelloBinding binding)
    : token_(token), versions_(versions), role_(role), binding_(binding) {
  fill(nonce_.data(), kNonceBytes, random);
}

Result<HelloMessage> HelloCaller::answer(const HelloMessage& challenge) {
  if (!is_ours(challenge, kChallengeStep)) return fail(not_shoal());
  const std::uint16_t newest = get16(challenge, kNewest), oldest = get16(challenge, kOldest);
  if (newest < versions_.oldest || oldest > versions_.newest) return fail(version_mismatch(versions_, oldest, newest));
  challenge_ = challenge;
  answer_ = blank(kAnswerStep, versions_);
  answer_[kField] = static_cast<std::uint8_t>(role_);
  std::copy(nonce_.begin(), nonce_.end(), answer_.begin() + kNonce);
  const auto proof = mac(token_, binding_, "caller", {&challenge_, &answer_});
  std::copy(proof.begin(), proof.end(), answer_.begin() + kMac);
  return answer_;
}

Result<std::uint16_t> HelloCaller::conclude(const HelloMessage& verdict) const {
  if (!is_ours(verdict, kVerdictStep)) return fail(not_shoal());
  switch (verdict[kField]) {
    case kAccepted:
      break;
    case kTokenRefused:
      return fail(token_refused("the cluster refused this token"));
    case kVersionRefused:
      return fail(version_mismatch(versions_, get16(verdict, kOldest), get16(verdict, kNewest)));
    case kNoRoom:
      return fail(resource_exhausted("the process that listens there takes no more connections")
                      .with_reason("TooManyConnections")
                      .with_hint("close connections of this process or host, or raise that process's limit of descriptors (ulimit -n)"));
    default:
      return fail(not_shoal());
  }
  if (!mac_matches(verdict, mac(token_, binding_, "listener", {&challenge_, &answer_, &verdict}))) {
    return fail(token_refused("the process that listens there does not have the cluster's token"));
  }
  const std::uint16_t agreed = get16(verdict, kOldest);
  if (agreed < versions_.oldest || agreed > versions_.newest) return fail(version_mismatch(versions_, agreed, agreed));
  return agreed;
}

}  // namespace shoal::runtime
