// A cluster's own certificates: an authority that lives as long as the cluster's session, and what it signs.
//
// Keys are EC P-256. Whoever shall trust a cluster is told the fingerprint of its authority beforehand, as `kubeadm join` does it. Texts
// are PEM. Pure, but for OpenSSL's random numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/core/result.h"

namespace shoal::runtime {

// SHA-256 over a certificate (DER), written `sha256:` and 64 hexadecimal digits.
class Fingerprint {
 public:
  static constexpr std::size_t kBytes = 32;
  static Result<Fingerprint> parse(std::string_view text);
  static Result<Fingerprint> of(const std::string& certificate);  // of the first one in a PEM text
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
// Clocks of two hosts may differ by so much before a fresh certificate is one of the future.
inline constexpr std::int64_t kClockSkewSeconds = 24 * 3600;
inline constexpr std::int64_t kAuthoritySeconds = 3650LL * 24 * 3600;
inline constexpr std::int64_t kCertificateSeconds = 397LL * 24 * 3600;  // of a node; joining again gives it a new one
inline Validity valid_from(std::int64_t now, std::int64_t seconds) { return {now - kClockSkewSeconds, now + seconds}; }

struct KeyedCertificate {
  std::string certificate;  // followed by those that lead to the authority, if any
  std::string key;
};

Result<KeyedCertificate> make_authority(const std::string& name, Validity validity);

struct CertificateRequest {
  std::string request;  // PKCS#10
  std::string key;      // stays where it was made
};
Result<CertificateRequest> make_certificate_request(const std::string& name);

// For a server at `host` (a name or an address), followed by the authority's own. InvalidArgument when the request is none, or is not
// signed by its own key; what else it asks for is ignored.
Result<std::string> sign_certificate(const KeyedCertificate& authority, const std::string& request, const std::string& host,
                                     Validity validity);

// A request and its answer in one process: the head's own.
Result<KeyedCertificate> make_certificate(const KeyedCertificate& authority, const std::string& host, Validity validity);

}  // namespace shoal::runtime
