// A cluster's own certificates: an authority that lives as long as the cluster's session, and the certificates that it signs.
//
// Keys are EC P-256, unless stated otherwise; texts are PEM. A host that joins gets the fingerprint of the authority beforehand, as with
// `kubeadm join`. Pure functions, but for OpenSSL's random numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace shoal::runtime {

// The SHA-256 of a certificate (DER), written as `sha256:` and 64 hexadecimal digits.
class Fingerprint {
 public:
  static constexpr std::size_t kBytes = 32;
  static Result<Fingerprint> parse(std::string_view text);
  static Result<Fingerprint> from_certificate(const std::string& certificate);  // the first certificate in a PEM text
  std::string to_string() const;
  const std::array<std::uint8_t, kBytes>& bytes() const { return bytes_; }
  bool operator==(const Fingerprint&) const = default;

 private:
  std::array<std::uint8_t, kBytes> bytes_{};
};

// Seconds since 1970.
struct Validity {
  std::int64_t from = 0;
  std::int64_t until = 0;
};
// Certificates are backdated by this much, so that hosts whose clocks are behind accept a fresh one.
inline constexpr std::int64_t kClockSkewSeconds = 24 * 3600;
inline constexpr std::int64_t kAuthoritySeconds = 3650LL * 24 * 3600;
inline constexpr std::int64_t kCertificateSeconds = 397LL * 24 * 3600;  // for a node, which gets a new one when it joins again
inline Validity valid_from(std::int64_t now, std::int64_t seconds) { return {now - kClockSkewSeconds, now + seconds}; }

struct KeyedCertificate {
  std::string certificate;  // followed by its chain up to the authority, if any
  std::string key;
};

Result<KeyedCertificate> make_authority(const std::string& name, Validity validity);

// Returns the authority that follows from a secret: everyone who has the secret knows its fingerprint, and can sign. Its key is Ed25519,
// whose signatures follow from the key, too.
Result<KeyedCertificate> derive_authority(const std::string& secret);

struct CertificateRequest {
  std::string request;  // PKCS#10
  std::string key;      // never leaves the requesting process
};
Result<CertificateRequest> make_certificate_request(const std::string& name);

// Returns a certificate for a server at `host` (a name or an address), followed by the authority's own. Returns InvalidArgument if the
// request is malformed or not signed by its own key; its other fields are ignored.
Result<std::string> sign_certificate(const KeyedCertificate& authority, const std::string& request, const std::string& host,
                                     Validity validity);

// Makes a request and signs it in one process: the head's own certificate.
Result<KeyedCertificate> make_certificate(const KeyedCertificate& authority, const std::string& host, Validity validity);

}  // namespace shoal::runtime
