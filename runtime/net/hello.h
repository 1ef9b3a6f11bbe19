// The first 3 x 64 bytes of every connection: fixed, binary, and enough to refuse a stranger before anything is parsed.
//
//   listener -> caller   challenge: versions, nonce
//   caller -> listener   answer:    versions, role, nonce, HMAC-SHA256(token, "caller" | both nonces | versions | role)
//   listener -> caller   verdict:   status, version,       HMAC-SHA256(token, "listener" | the same | status | version)
//
// Within TLS both proofs are also over what only the two ends of that TLS session know (`binding`), so that nobody in between can pass
// them on.
// Both sides prove that they know the token and neither sends it, so a process that squats on an address learns
// nothing. Pure: bytes in, bytes or an Error out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/loop/random.h"

namespace shoal::runtime {

// The cluster's secret. Never in argv, a log, or the environment: it lies in a file of mode 0600.
class Token {
 public:
  static constexpr std::size_t kBytes = 32;
  static Token random(Random& random);
  static Result<Token> parse(std::string_view hex);  // 64 digits, white space around them allowed
  std::string hex() const;
  bool operator==(const Token&) const = default;
  const std::array<std::uint8_t, kBytes>& bytes() const { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

// Wire versions this build speaks: the newest and the one before it (N and N-1).
struct VersionRange {
  std::uint16_t oldest = 1;
  std::uint16_t newest = 1;
  bool operator==(const VersionRange&) const = default;
};

// Who calls. What a role may ask for is decided by the listener.
enum class Role : std::uint8_t { kNode = 1, kClient = 2, kWorker = 3 };

using HelloMessage = std::array<std::uint8_t, 64>;

// Of the TLS session that it travels in; none where there is no TLS.
using HelloBinding = std::optional<std::array<std::uint8_t, 32>>;

class HelloListener {
 public:
  HelloListener(const Token& token, VersionRange versions, Random& random, HelloBinding binding = {});
  const HelloMessage& challenge() const { return challenge_; }

  struct Verdict {
    HelloMessage message;  // to be sent whatever it says
    Result<void> accepted;
    Role role = Role::kClient;
    std::uint16_t version = 0;
  };
  // Errors: InvalidArgument/NotShoal, InvalidArgument/VersionMismatch, InvalidArgument/TokenRefused.
  Verdict judge(const HelloMessage& answer) const;

 private:
  const Token token_;
  const VersionRange versions_;
  const HelloBinding binding_;
  HelloMessage challenge_{};
};

class HelloCaller {
 public:
  HelloCaller(const Token& token, VersionRange versions, Role role, Random& random, HelloBinding binding = {});
  // VersionMismatch names both sides' ranges.
  Result<HelloMessage> answer(const HelloMessage& challenge);
  // The agreed version, or why not.
  Result<std::uint16_t> conclude(const HelloMessage& verdict) const;

 private:
  const Token token_;
  const VersionRange versions_;
  const Role role_;
  const HelloBinding binding_;
  std::array<std::uint8_t, 16> nonce_{};
  HelloMessage challenge_{};
  HelloMessage answer_{};
};

}  // namespace shoal::runtime
