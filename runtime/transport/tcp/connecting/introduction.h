// The first message each way on a data connection. The caller names itself and the connection, and both prove that they have the token
// of the called rank. Pure: bytes in, bytes or an Error out.
//
// The caller proves itself with one message: while the called rank computes, no thread could answer with a challenge. Within TLS the proofs
// cover a secret of that TLS session, so a man in the middle cannot forward them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/result.h"
#include "runtime/loop/random.h"
#include "runtime/net/hello.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

struct Introduction {
  static constexpr std::size_t kBytes = 72;
  using Message = std::array<std::byte, kBytes>;

  std::uint32_t caller = 0, called = 0;  // ranks
  std::uint32_t number = 0;              // which of the connections between them
  std::uint32_t epoch = 0;
  std::array<std::uint64_t, 2> nonce{};

  static Message encode(const Introduction& introduction, const Token& token, const TlsBinding& binding);
  // InvalidArgument/TokenRefused unless its sender has the token.
  static Result<Introduction> decode(const Message& message, const Token& token, const TlsBinding& binding);
};

// The answer of the called rank.
struct Welcome {
  static constexpr std::size_t kBytes = 40;
  using Message = std::array<std::byte, kBytes>;
  // kLate: the called rank is in a later epoch, and this connection is of no use.
  enum class Verdict : std::uint32_t { kWelcome = 1, kLate = 2 };

  static Message encode(Verdict verdict, const Introduction& to, const Token& token, const TlsBinding& binding);
  static Result<Verdict> decode(const Message& message, const Introduction& to, const Token& token, const TlsBinding& binding);
};

}  // namespace shoal::runtime
