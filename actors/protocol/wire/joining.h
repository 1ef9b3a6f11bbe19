// The request that a host sends to the head to join its cluster, and the answer.
#pragma once

#include <string>

#include "actors/protocol/wire/from_bytes.h"

namespace shoal::actors {

struct SignCertificate {
  std::string request, host;
};
struct SignedCertificate {
  std::string certificate;
  bool data_tls = false;  // ranks on several hosts exchange their data in TLS only
};

Bytes to_bytes(const SignCertificate& m);
Bytes to_bytes(const SignedCertificate& m);
template <>
Result<SignCertificate> from_bytes(const Bytes& bytes);
template <>
Result<SignedCertificate> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
