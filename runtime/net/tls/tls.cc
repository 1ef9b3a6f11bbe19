#include "runtime/net/tls/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/core/check.h"

namespace shoal::runtime {
namespace {

constexpr std::size_t kReadAheadBytes = 64 << 10;  // four TLS records in one system call
constexpr char kBindingLabel[] = "EXPORTER-shoal-hello";
constexpr int kOtherAuthority = X509_V_ERR_APPLICATION_VERIFICATION;

SSL_CTX* context(void* pointer) { return static_cast<SSL_CTX*>(pointer); }
SSL* ssl(void* pointer) { return static_cast<SSL*>(pointer); }

// Returns the first error in OpenSSL's queue, and clears the queue.
std::string first_reason() {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* text = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return text != nullptr ? text : "";
}

// ---- the socket BIO. OpenSSL's own would raise SIGPIPE in the user's program.

TlsWire& wire_of(BIO* bio) { return *static_cast<TlsWire*>(BIO_get_data(bio)); }

int bio_write(BIO* bio, const char* data, std::size_t n, std::size_t* written) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(wire_of(bio).socket, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) BIO_set_retry_write(bio);
    return 0;
  }
  *written = static_cast<std::size_t>(sent);
  return 1;
}

int bio_read(BIO* bio, char* data, std::size_t n, std::size_t* got) {
  BIO_clear_retry_flags(bio);
  TlsWire& wire = wire_of(bio);
  const ssize_t received = ::recv(wire.socket, data, n, MSG_DONTWAIT);
  wire.drained = received < static_cast<ssize_t>(n);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  if (received == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  if (received <= 0) return 0;
  *got = static_cast<std::size_t>(received);
  return 1;
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
  return 0;
}

const BIO_METHOD* bio_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "shoal socket");
    SHOAL_CHECK(m != nullptr, "no memory for OpenSSL");
    BIO_meth_set_write_ex(m, bio_write);
    BIO_meth_set_read_ex(m, bio_read);
    BIO_meth_set_ctrl(m, bio_control);
    return m;
  }();
  return method;
}

// ---- trust

// Finds the authority, by fingerprint, among the certificates that the peer sent, and trusts only that one; system authorities play no
// part.
int verify(X509_STORE_CTX* store, void* authority) {
  const auto& wanted = *static_cast<const Fingerprint*>(authority);
  STACK_OF(X509)* const sent = X509_STORE_CTX_get0_untrusted(store);
  X509* found = nullptr;
  for (int i = 0; i < sk_X509_num(sent) && found == nullptr; ++i) {
    std::array<std::uint8_t, Fingerprint::kBytes> digest{};
    unsigned n = 0;
    X509* const certificate = sk_X509_value(sent, i);
    if (X509_digest(certificate, EVP_sha256(), digest.data(), &n) == 1 && digest == wanted.bytes()) found = certificate;
  }
  if (found == nullptr) {
    X509_STORE_CTX_set_error(store, kOtherAuthority);
    return 0;
  }
  STACK_OF(X509)* const trusted = sk_X509_new_null();
  if (trusted == nullptr) return 0;
  const bool ok = sk_X509_push(trusted, found) > 0 && (X509_STORE_CTX_set0_trusted_stack(store, trusted), X509_verify_cert(store) == 1);
  X509_STORE_CTX_set0_trusted_stack(store, nullptr);
  sk_X509_free(trusted);
  return ok ? 1 : 0;
}

Result<SSL_CTX*> make_context(const SSL_METHOD* method) {
  SSL_CTX* const out = SSL_CTX_new(method);
  if (out == nullptr) return fail(internal("cannot set TLS up: " + first_reason()));
  SSL_CTX_set_min_proto_version(out, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(out, TLS1_3_VERSION);
  SSL_CTX_set_options(out, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(out, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(out, 0);
  SSL_CTX_set_mode(out, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_read_ahead(out, 1);
  SSL_CTX_set_default_read_buffer_len(out, kReadAheadBytes);
  SSL_CTX_set_ciphersuites(out, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  return out;
}

// Loads the certificate, its chain, and the key.
Result<void> load(SSL_CTX* into, const KeyedCertificate& own, const Fingerprint& authority) {
  BIO* const certificates = BIO_new_mem_buf(own.certificate.data(), static_cast<int>(own.certificate.size()));
  bool first = true, ok = certificates != nullptr, leads = false;
  while (ok) {
    X509* const x = PEM_read_bio_X509(certificates, nullptr, nullptr, nullptr);
    if (x == nullptr) break;
    std::array<std::uint8_t, Fingerprint::kBytes> digest{};
    unsigned n = 0;
    leads |= X509_digest(x, EVP_sha256(), digest.data(), &n) == 1 && digest == authority.bytes();
    ok = first ? SSL_CTX_use_certificate(into, x) == 1 : SSL_CTX_add1_chain_cert(into, x) == 1;
    first = false;
    X509_free(x);
  }
  BIO_free(certificates);
  BIO* const key_text = BIO_new_mem_buf(own.key.data(), static_cast<int>(own.key.size()));
  EVP_PKEY* const key = key_text != nullptr ? PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr) : nullptr;
  ok = ok && !first && key != nullptr && SSL_CTX_use_PrivateKey(into, key) == 1 && SSL_CTX_check_private_key(into) == 1;
  EVP_PKEY_free(key);
  BIO_free(key_text);
  ERR_clear_error();
  if (!ok) return fail(invalid_argument("the certificate and the key do not belong together"));
  if (!leads) return fail(invalid_argument("the certificate comes without the cluster's authority"));
  return {};
}

Error refused_certificate(long why, const Fingerprint& wanted) {
  if (why == kOtherAuthority) {
    return invalid_argument("the process that listens there is not in the cluster with the given fingerprint, " + wanted.to_string())
        .with_reason("CertificateRefused")
        .with_hint("compare address and fingerprint with what `shoal start --head` printed; nothing was sent to it");
  }
  const bool at_present = why == X509_V_ERR_CERT_HAS_EXPIRED || why == X509_V_ERR_CERT_NOT_YET_VALID;
  return invalid_argument("the certificate of the process that listens there cannot be trusted: " +
                          std::string(X509_verify_cert_error_string(why)))
      .with_reason(at_present ? "CertificateExpired" : "CertificateRefused")
      .with_hint("if it has expired, let its host join again (shoal start --address); compare the clocks of both hosts");
}

}  // namespace

Result<std::shared_ptr<const Tls>> Tls::make(const Fingerprint& authority, const KeyedCertificate& own) {
  const std::shared_ptr<Tls> out(new Tls(authority));
  SHOAL_TRY(out->client_, make_context(TLS_client_method()));
  SSL_CTX_set_verify(context(out->client_), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(context(out->client_), verify, const_cast<Fingerprint*>(&out->authority_));
  if (own.certificate.empty()) return out;
  SHOAL_TRY(out->server_, make_context(TLS_server_method()));
  SHOAL_OK(load(context(out->server_), own, authority));
  return out;
}

Tls::~Tls() {
  SSL_CTX_free(context(client_));
  SSL_CTX_free(context(server_));
}

TlsSession::TlsSession(std::shared_ptr<const Tls> tls, int socket, Side side)
    : tls_(std::move(tls)), wire_(std::make_unique<TlsWire>(TlsWire{socket})), calls_(side == Side::kCalls) {
  ssl_ = SSL_new(context(calls_ ? tls_->client_ : tls_->server_));
  BIO* const bio = BIO_new(bio_method());
  SHOAL_CHECK(ssl_ != nullptr && bio != nullptr, "no memory for a TLS session");
  BIO_set_data(bio, wire_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl(ssl_), bio, bio);
  if (calls_) {
    SSL_set_connect_state(ssl(ssl_));
  } else {
    SSL_set_accept_state(ssl(ssl_));
  }
}

TlsSession::TlsSession(TlsSession&& other) noexcept
    : tls_(std::move(other.tls_)), wire_(std::move(other.wire_)), ssl_(std::exchange(other.ssl_, nullptr)), calls_(other.calls_) {}

TlsSession::~TlsSession() {
  SSL_free(ssl(ssl_));
  ERR_clear_error();
}

Result<TlsSession::Step> TlsSession::handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl(ssl_));
  if (result == 1) return Step::kComplete;
  switch (SSL_get_error(ssl(ssl_), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kReadable;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWritable;
    default:
      return fail(failure("the TLS handshake"));
  }
}

bool TlsSession::begun() const { return SSL_get_state(ssl(ssl_)) != TLS_ST_BEFORE; }

Error TlsSession::failure(const char* what) {
  const int error = errno;
  const auto code = ERR_peek_error();
  if (const long why = SSL_get_verify_result(ssl(ssl_)); calls_ && why != X509_V_OK) {
    ERR_clear_error();
    return refused_certificate(why, tls_->authority_);
  }
  const std::string reason = first_reason();
  switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE:
      if (SSL_is_init_finished(ssl(ssl_))) break;
      return invalid_argument("the other side does not speak TLS")
          .with_reason("NotTls")
          .with_hint("check address and port; between hosts a cluster accepts no clear text");
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return invalid_argument("the other side does not speak TLS 1.3").with_reason("TlsVersion");
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return unavailable(std::string(what) + ": the other side closed the connection").with_reason("HungUp");
    default:
      break;
  }
  if (code == 0 && error == 0) return unavailable(std::string(what) + ": the other side closed the connection").with_reason("HungUp");
  if (code == 0 || ERR_GET_LIB(code) == ERR_LIB_SYS) return from_errno(error, what).with_reason("Disconnected");
  return data_loss(std::string(what) + ": " + reason).with_reason("Disconnected");
}

Result<TlsSession::Moved> TlsSession::read(std::span<std::byte> room) {
  ERR_clear_error();
  errno = 0;
  std::size_t n = 0;
  const int result = SSL_read_ex(ssl(ssl_), room.data(), room.size(), &n);
  if (result == 1) return Moved{n, Step::kComplete, false};
  switch (SSL_get_error(ssl(ssl_), result)) {
    case SSL_ERROR_WANT_READ:
      return Moved{0, Step::kReadable, false};
    case SSL_ERROR_WANT_WRITE:
      return Moved{0, Step::kWritable, false};
    case SSL_ERROR_ZERO_RETURN:
      return Moved{0, Step::kComplete, true};
    default:
      break;
  }
  // EOF without close_notify counts as a normal end, because frames carry their lengths.
  if (ERR_GET_LIB(ERR_peek_error()) == ERR_LIB_SSL && ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    ERR_clear_error();
    return Moved{0, Step::kComplete, true};
  }
  return fail(failure("the connection broke"));
}

Result<TlsSession::Moved> TlsSession::write(std::span<const std::byte> bytes) {
  ERR_clear_error();
  errno = 0;
  std::size_t n = 0;
  const int result = SSL_write_ex(ssl(ssl_), bytes.data(), bytes.size(), &n);
  if (result == 1) {
    num_records_ += 1 + n / SSL3_RT_MAX_PLAIN_LENGTH;
    if (num_records_ >= records_of_key_ && SSL_key_update(ssl(ssl_), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
      num_records_ = 0;  // the next write announces the new key first
      ++num_key_updates_;
    }
    return Moved{n, Step::kComplete, false};
  }
  switch (SSL_get_error(ssl(ssl_), result)) {
    case SSL_ERROR_WANT_READ:
      return Moved{0, Step::kReadable, false};
    case SSL_ERROR_WANT_WRITE:
      return Moved{0, Step::kWritable, false};
    default:
      return fail(failure("the connection broke"));
  }
}

bool TlsSession::has_buffered() const { return SSL_has_pending(ssl(ssl_)) == 1; }

TlsBinding TlsSession::binding() const {
  TlsBinding out{};
  const int exported =
      SSL_export_keying_material(ssl(ssl_), out.data(), out.size(), kBindingLabel, sizeof kBindingLabel - 1, nullptr, 0, 0);
  SHOAL_CHECK(exported == 1, "a TLS session without a key");
  return out;
}

}  // namespace shoal::runtime
