// TLS 1.3 over a connected, non-blocking socket, for connections between hosts.
//
// Trust rests on the fingerprint of the cluster's authority. Listeners send that authority's certificate with their own; a caller
// verifies both before it sends anything. Callers have no certificates: they prove the token in the hello. The hello is bound to the TLS
// session (TlsSession::binding), so that a man in the middle cannot forward it. Loop thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/core/result.h"
#include "runtime/net/tls/certificates.h"

namespace shoal::runtime {

// Configuration of one end. Without a certificate it can only call.
class Tls {
 public:
  // Returns InvalidArgument if certificate and key do not match, or are not of that authority.
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

// 32 secret bytes that both ends of one TLS session derive; they differ between sessions (RFC 8446, 7.5).
using TlsBinding = std::array<std::uint8_t, 32>;

// The socket behind OpenSSL's BIO.
struct TlsWire {
  int socket;
  bool drained = false;  // the last read emptied the socket
};

class TlsSession {
 public:
  enum class Side { kCalls, kListens };
  // The caller owns `socket`, which outlives the session.
  TlsSession(std::shared_ptr<const Tls> tls, int socket, Side side);
  ~TlsSession();  // sends no close_notify: frames carry their lengths
  TlsSession(TlsSession&& other) noexcept;
  TlsSession& operator=(TlsSession&&) = delete;

  // Outcome of an operation: progress, or the socket's event that it waits for.
  enum class Step { kComplete, kReadable, kWritable };
  // Errors: InvalidArgument/NotTls, InvalidArgument/CertificateRefused, InvalidArgument/CertificateExpired (also for one that is not valid
  // yet), InvalidArgument/TlsVersion, Unavailable/HungUp.
  Result<Step> handshake();
  bool begun() const;  // the peer has sent its first message of the handshake

  struct Moved {
    std::size_t bytes = 0;
    Step step = Step::kComplete;
    bool ended = false;  // the peer has closed
  };
  // Returns Unavailable if the connection broke, DataLoss if the received bytes fail authentication.
  Result<Moved> read(std::span<std::byte> room);
  Result<Moved> write(std::span<const std::byte> bytes);  // after a wait, repeat it with the same bytes or more
  // A key of AES-GCM is safe for 2^24.5 records (RFC 8446, 5.5): after so many, this end writes with another key.
  static constexpr std::uint64_t kRecordsOfKey = 1 << 22;
  void set_records_of_key(std::uint64_t records) { records_of_key_ = records; }  // for tests
  std::uint64_t num_key_updates() const { return num_key_updates_; }
  bool has_buffered() const;  // the next read may return data although the socket has none
  bool drained() const { return wire_->drained; }

  TlsBinding binding() const;

 private:
  Error failure(const char* what);

  std::shared_ptr<const Tls> tls_;
  std::unique_ptr<TlsWire> wire_;  // outlives ssl_
  void* ssl_ = nullptr;            // SSL
  const bool calls_;
  std::uint64_t records_of_key_ = kRecordsOfKey, num_records_ = 0, num_key_updates_ = 0;
};

}  // namespace shoal::runtime
