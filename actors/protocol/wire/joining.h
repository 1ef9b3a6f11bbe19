// The request that a host sends to the head to join its cluster, and the answer.
#pragma once

#include <string>

#include "actors/protocol/wire/message.h"

namespace shoal::actors {

struct SignCertificate {
  std::string request, host;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.request, Request);
    SHOAL_FIELD(v.host, Host);
  }
};
SHOAL_MESSAGE(SignCertificate, SignCertificate);
struct SignedCertificate {
  std::string certificate;
  bool data_tls = false;  // ranks on several hosts exchange their data in TLS only
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.certificate, Certificate);
    SHOAL_FIELD(v.data_tls, DataTls);
  }
};
SHOAL_MESSAGE(SignedCertificate, SignedCertificate);

SHOAL_METHOD(kSignCertificate, 40, Signature<SignCertificate, SignedCertificate>);  // to the head, by a host without a certificate

}  // namespace shoal::actors
