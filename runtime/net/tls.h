// TLS 1.3 over a connected, non-blocking socket: what bytes between hosts travel through.
//
// Trust is one thing: the fingerprint of the cluster's authority. Listeners send that certificate with their own; a caller takes nothing
// that does not come from it, and says nothing before. Callers have no certificates: they prove the token in the hello, which is bound to
// the TLS session (TlsSession::binding), so that nobody in between can pass it on. Loop thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/result.h"
#include "runtime/net/certificates.h"

namespace shoal::runtime {

// What an end needs. Without a certificate it only calls.
class Tls {
 public:
  // InvalidArgument when certificate and key are not a pair, or do not lead to that authority.
  static Result<std::shared_ptr<const Tls>> make(const Fingerprint& authority, const KeyedCertificate& own = {});
  ~Tls();

  const Fingerprint& authority() const { return authority_; }
  bool listens() const { return server_ != nullptr; }

 private:
  friend class TlsSession;
  explicit Tls(const Fingerprint& authority) : authority_(authority) {}
  const Fingerprint authority_;
  void *client_ = nullptr, *server_ = nullptr;  // SSL_CTX
};

// 32 bytes that both ends of one TLS session know, and nobody else, nor any other session (RFC 8446, 7.5).
using TlsBinding = std::array<std::uint8_t, 32>;

// The socket as OpenSSL reads it.
struct TlsWire {
  int socket;
  bool drained = false;  // the last read took all that it had at that time
};

class TlsSession {
 public:
  enum class Side { kCalls, kListens };
  // The socket is the caller's; it outlives this.
  TlsSession(std::shared_ptr<const Tls> tls, int socket, Side side);
  ~TlsSession();  // without a good-bye: each frame says how long it is
  TlsSession(TlsSession&& other) noexcept;
  TlsSession& operator=(TlsSession&&) = delete;

  // What an operation came to: it went on, or it waits for the socket.
  enum class Step { kDone, kReadable, kWritable };
  // Errors: InvalidArgument/NotTls, InvalidArgument/CertificateRefused, InvalidArgument/TlsVersion, Unavailable/HungUp.
  Result<Step> handshake();

  struct Moved {
    std::size_t bytes = 0;
    Step step = Step::kDone;
    bool ended = false;  // the other end has closed
  };
  // Unavailable when the connection broke, DataLoss when what came was not sent by the other end.
  Result<Moved> read(std::span<std::byte> room);
  Result<Moved> write(std::span<const std::byte> bytes);  // one that waits is made again with the same bytes, or more
  bool has_buffered() const;                              // the next read may bring something, whatever the socket says
  bool drained() const { return wire_->drained; }

  TlsBinding binding() const;

 private:
  Error failure(const char* what);

  std::shared_ptr<const Tls> tls_;
  std::unique_ptr<TlsWire> wire_;  // outlives ssl_
  void* ssl_ = nullptr;            // SSL
  const bool calls_;
};

}  // namespace shoal::runtime
