#include "actors/protocol/wire/joining.h"

#include "actors/protocol/wire/joining.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

using runtime::text;

Bytes to_bytes(const SignCertificate& v) {
  return runtime::write<wire::SignCertificate>([&](wire::SignCertificate::Builder m) {
    m.setRequest(v.request);
    m.setHost(v.host);
  });
}
template <>
Result<SignCertificate> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::SignCertificate>(
      bytes, [](wire::SignCertificate::Reader m) { return SignCertificate{text(m.getRequest()), text(m.getHost())}; });
}

Bytes to_bytes(const SignedCertificate& v) {
  return runtime::write<wire::SignedCertificate>([&](wire::SignedCertificate::Builder m) {
    m.setCertificate(v.certificate);
    m.setDataTls(v.data_tls);
  });
}
template <>
Result<SignedCertificate> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::SignedCertificate>(
      bytes, [](wire::SignedCertificate::Reader m) { return SignedCertificate{text(m.getCertificate()), m.getDataTls()}; });
}

}  // namespace shoal::actors
