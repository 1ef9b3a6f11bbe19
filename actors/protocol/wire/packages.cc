#include "actors/protocol/wire/packages.h"

#include "actors/protocol/wire/packages.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

using runtime::text;

Bytes to_bytes(const PackagePart& v) {
  return runtime::write<wire::PackagePart>([&](wire::PackagePart::Builder m) {
    m.setName(v.name);
    m.setTotal(v.total);
    m.setOffset(v.offset);
    m.setData({reinterpret_cast<const kj::byte*>(v.data.data()), v.data.size()});
  });
}
template <>
Result<PackagePart> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::PackagePart>(bytes, [](wire::PackagePart::Reader m) {
    const auto data = m.getData();
    return PackagePart{text(m.getName()), m.getTotal(), m.getOffset(),
                       std::string(reinterpret_cast<const char*>(data.begin()), data.size())};
  });
}

Bytes to_bytes(const HasPackage& v) {
  return runtime::write<wire::HasPackage>([&](wire::HasPackage::Builder m) { m.setWhole(v.whole); });
}
template <>
Result<HasPackage> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::HasPackage>(bytes, [](wire::HasPackage::Reader m) { return HasPackage{m.getWhole()}; });
}

}  // namespace shoal::actors
