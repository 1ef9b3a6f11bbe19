#include "runtime/net/tls/certificates.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "runtime/core/id.h"

namespace shoal::runtime {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <class T, auto Free>
using Owned = std::unique_ptr<T, Freed<Free>>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Certificate = Owned<X509, X509_free>;
using SigningRequest = Owned<X509_REQ, X509_REQ_free>;
using Text = Owned<BIO, BIO_free>;

constexpr std::string_view kPrefix = "sha256:";
constexpr int kSerialBytes = 16;
constexpr std::size_t kMaxText = 64 << 10;

Error failed(const std::string& what) {
  const auto code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return internal(what + (reason != nullptr ? std::string(": ") + reason : ""));
}

Text reading(const std::string& text) { return Text(BIO_new_mem_buf(text.data(), static_cast<int>(std::min(text.size(), kMaxText)))); }

std::string written(const Text& bio) {
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio.get(), &data);
  return n > 0 ? std::string(data, static_cast<std::size_t>(n)) : "";
}

Result<Key> make_key() {
  Key key(EVP_EC_gen("P-256"));
  if (!key) return fail(failed("cannot make a key"));
  return key;
}

Result<std::string> pem_of(const Key& key) {
  const Text out(BIO_new(BIO_s_mem()));
  if (!out || PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return fail(failed("cannot write a key"));
  }
  return written(out);
}

Result<std::string> pem_of(const Certificate& certificate) {
  const Text out(BIO_new(BIO_s_mem()));
  if (!out || PEM_write_bio_X509(out.get(), certificate.get()) != 1) return fail(failed("cannot write a certificate"));
  return written(out);
}

Result<Certificate> read_certificate(const std::string& text) {
  const Text in = reading(text);
  Certificate out(in ? PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  if (!out) return fail(invalid_argument("malformed certificate"));
  return out;
}

bool set_name(X509_NAME* name, const std::string& text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const auto n = static_cast<int>(std::min<std::size_t>(text.size(), 64));  // limit of a common name
  return X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8, bytes, n, -1, 0) == 1;
}

bool add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_serial(X509* certificate, unsigned char (&bytes)[kSerialBytes]) {
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 1);  // a serial number has to be positive
  const Owned<BIGNUM, BN_free> number(BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_serial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  return RAND_bytes(bytes, sizeof bytes) == 1 && set_serial(certificate, bytes);
}

bool set_validity(X509* certificate, Validity validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), validity.from) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), validity.until) != nullptr;
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Checks the characters of a host name; a comma would start another entry of the extension.
bool is_name(const std::string& host) {
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
  });
}

}  // namespace

Result<Fingerprint> Fingerprint::parse(std::string_view text) {
  Fingerprint out;
  const auto bad = [&] {
    return fail(invalid_argument("'" + std::string(text.substr(0, 100)) +
                                 "' is not a fingerprint: a fingerprint is sha256: and 64 hexadecimal digits"));
  };
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + 2 * kBytes) return bad();
  for (std::size_t i = 0; i < kBytes; ++i) {
    const auto byte = parse_hex(text.substr(kPrefix.size() + 2 * i, 2));
    if (!byte) return bad();
    out.bytes_[i] = static_cast<std::uint8_t>(*byte);
  }
  return out;
}

Result<Fingerprint> Fingerprint::from_certificate(const std::string& certificate) {
  SHOAL_TRY(const Certificate parsed, read_certificate(certificate));
  Fingerprint out;
  unsigned n = 0;
  if (X509_digest(parsed.get(), EVP_sha256(), out.bytes_.data(), &n) != 1 || n != kBytes) return fail(failed("no SHA-256"));
  return out;
}

std::string Fingerprint::to_string() const {
  std::string out(kPrefix);
  for (const auto b : bytes_) out += shoal::hex(b).substr(14);
  return out;
}

namespace {

constexpr std::int64_t kDerivedUntil = 4102444800;  // the year 2100

// The digest of signatures by this key; Ed25519 has its own.
const EVP_MD* digest_for(const Key& key) { return EVP_PKEY_get_id(key.get()) == EVP_PKEY_ED25519 ? nullptr : EVP_sha256(); }

Result<KeyedCertificate> self_signed(const Key& key, const std::string& name, Validity validity, unsigned char (&serial)[kSerialBytes]) {
  const Certificate certificate(X509_new());
  X509* const x = certificate.get();
  if (!certificate || X509_set_version(x, X509_VERSION_3) != 1 || !set_serial(x, serial) || !set_validity(x, validity) ||
      !set_name(X509_get_subject_name(x), name) || X509_set_issuer_name(x, X509_get_subject_name(x)) != 1 ||
      X509_set_pubkey(x, key.get()) != 1 || !add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(x, x, NID_key_usage, "critical,keyCertSign") || !add_extension(x, x, NID_subject_key_identifier, "hash") ||
      X509_sign(x, key.get(), digest_for(key)) == 0) {
    return fail(failed("cannot make the cluster's certificate authority"));
  }
  KeyedCertificate out;
  SHOAL_TRY(out.certificate, pem_of(certificate));
  SHOAL_TRY(out.key, pem_of(key));
  return out;
}

}  // namespace

Result<KeyedCertificate> make_authority(const std::string& name, Validity validity) {
  SHOAL_TRY(const Key key, make_key());
  unsigned char serial[kSerialBytes];
  if (RAND_bytes(serial, sizeof serial) != 1) return fail(failed("no random numbers"));
  return self_signed(key, name, validity, serial);
}

Result<KeyedCertificate> derive_authority(const std::string& secret) {
  const std::string text = "shoal certificate authority " + secret;
  unsigned char seed[32];
  unsigned char serial[kSerialBytes] = {};
  unsigned n = 0;
  if (EVP_Digest(text.data(), text.size(), seed, &n, EVP_sha256(), nullptr) != 1 || n != sizeof seed) return fail(failed("no SHA-256"));
  const Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed, sizeof seed));
  if (!key) return fail(failed("cannot derive a key"));
  return self_signed(key, "shoal", {0, kDerivedUntil}, serial);
}

Result<CertificateRequest> make_certificate_request(const std::string& name) {
  SHOAL_TRY(const Key key, make_key());
  const SigningRequest request(X509_REQ_new());
  const Text text(BIO_new(BIO_s_mem()));
  if (!request || !text || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      !set_name(X509_REQ_get_subject_name(request.get()), name) || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0 || PEM_write_bio_X509_REQ(text.get(), request.get()) != 1) {
    return fail(failed("cannot ask for a certificate"));
  }
  CertificateRequest out;
  out.request = written(text);
  SHOAL_TRY(out.key, pem_of(key));
  return out;
}

Result<std::string> sign_certificate(const KeyedCertificate& authority, const std::string& request, const std::string& host,
                                     Validity validity) {
  if (!is_address(host) && !is_name(host)) return fail(invalid_argument("'" + host.substr(0, 100) + "' is not a host's name or address"));
  SHOAL_TRY(const Certificate issuer, read_certificate(authority.certificate));
  const Text key_text = reading(authority.key);
  const Key key(key_text ? PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr) : nullptr);
  if (!key) return fail(failed("the cluster's certificate authority has no key"));
  const Text in = reading(request);
  const SigningRequest parsed(in ? PEM_read_bio_X509_REQ(in.get(), nullptr, nullptr, nullptr) : nullptr);
  EVP_PKEY* const wanted = parsed ? X509_REQ_get0_pubkey(parsed.get()) : nullptr;
  if (wanted == nullptr || X509_REQ_verify(parsed.get(), wanted) != 1) {
    ERR_clear_error();
    return fail(invalid_argument("malformed certificate request"));
  }
  const Certificate certificate(X509_new());
  X509* const x = certificate.get();
  if (!certificate || X509_set_version(x, X509_VERSION_3) != 1 || !set_serial(x) || !set_validity(x, validity) ||
      !set_name(X509_get_subject_name(x), "shoal " + host) || X509_set_issuer_name(x, X509_get_subject_name(issuer.get())) != 1 ||
      X509_set_pubkey(x, wanted) != 1 || !add_extension(x, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(x, issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !add_extension(x, issuer.get(), NID_ext_key_usage, "serverAuth") ||
      !add_extension(x, issuer.get(), NID_subject_alt_name, (is_address(host) ? "IP:" : "DNS:") + host) ||
      X509_sign(x, key.get(), digest_for(key)) == 0) {
    return fail(failed("cannot sign a certificate"));
  }
  SHOAL_TRY(std::string out, pem_of(certificate));
  return out + authority.certificate;
}

Result<KeyedCertificate> make_certificate(const KeyedCertificate& authority, const std::string& host, Validity validity) {
  SHOAL_TRY(CertificateRequest requested, make_certificate_request("shoal " + host));
  KeyedCertificate out;
  SHOAL_TRY(out.certificate, sign_certificate(authority, requested.request, host, validity));
  out.key = std::move(requested.key);
  return out;
}

}  // namespace shoal::runtime
