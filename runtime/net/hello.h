// The first 3 x 64 bytes of every connection: fixed binary messages that refuse a stranger before anything is parsed.
//
//   listener -> caller   challenge: versions, nonce
//   caller -> listener   answer:    versions, role, nonce, HMAC-SHA256(token, "caller" | both nonces | versions | role)
//   listener -> caller   verdict:   status, version,       HMAC-SHA256(token, "listener" | the same | status | version)
//
// Both sides prove that they hold the token and neither sends it, so a process that squats on an address learns nothing. Within TLS
// both proofs also cover a secret of that TLS session (`binding`), so that a man in the middle cannot forward them. Pure: bytes in,
// bytes or an Error out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/loop/random.h"

namespace shoal::runtime {

// The cluster's secret. It lives in a file of mode 0600, never in argv, a log, or the environment.
class Token {
 public:
  static constexpr std::size_t kBytes = 32;
  static Token random(Random& random);
  static Result<Token> parse(std::string_view hex);  // 64 digits, with white space around them allowed
  std::string hex() const;
  bool operator==(const Token&) const = default;
  const std::array<std::uint8_t, kBytes>& bytes() const { return bytes_; }

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

// Wire versions in which something changed that the other side has to know.
inline constexpr std::uint16_t kPartsHaveMethods = 2;  // a message in parts announces its method and kind (socket/part.h)
inline constexpr std::uint16_t kWorkersStop = 2;       // WorkerState::kStopped exists
inline constexpr std::uint16_t kRefusesForRoom = 2;    // HelloListener::no_room exists

// Wire versions that this build speaks: the newest and its predecessor (N and N-1).
struct VersionRange {
  std::uint16_t oldest = 1;
  std::uint16_t newest = kPartsHaveMethods;
  bool operator==(const VersionRange&) const = default;
};

// Role of the caller. The listener decides which requests a role may make.
enum class Role : std::uint8_t { kNode = 1, kClient = 2, kWorker = 3 };

using HelloMessage = std::array<std::uint8_t, 64>;

// Binding to the TLS session that carries the hello; nullopt without TLS.
using HelloBinding = std::optional<std::array<std::uint8_t, 32>>;

class HelloListener {
 public:
  HelloListener(const Token& token, VersionRange versions, Random& random, HelloBinding binding = {});
  const HelloMessage& challenge() const { return challenge_; }

  struct Verdict {
    HelloMessage message;  // to be sent in any case
    Result<void> accepted;
    Role role = Role::kClient;
    std::uint16_t version = 0;
  };
  // Errors: InvalidArgument/NotShoal, InvalidArgument/VersionMismatch, InvalidArgument/TokenRefused.
  Verdict judge(const HelloMessage& answer) const;
  // The verdict for a caller whose answer is right, but for which this process has no room. It gets ResourceExhausted/TooManyConnections.
  HelloMessage no_room() const;

 private:
  const Token token_;
  const VersionRange versions_;
  const HelloBinding binding_;
  HelloMessage challenge_{};
};

class HelloCaller {
 public:
  HelloCaller(const Token& token, VersionRange versions, Role role, Random& random, HelloBinding binding = {});
  // Returns InvalidArgument/VersionMismatch, with both sides' ranges, if these do not overlap.
  Result<HelloMessage> answer(const HelloMessage& challenge);
  // Returns the agreed version, or an error.
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
