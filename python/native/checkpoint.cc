#include "python/native/bindings.h"
#include "storage/checksum.h"

namespace shoal::python {

namespace {

void add(storage::Checksum& sum, const ReadBuffer& bytes) {
  const GilReleased release;
  sum.add(span_of(bytes));
}

std::vector<std::string> add_chunks(storage::ChunkChecksums& sums, const ReadBuffer& bytes, const std::vector<std::size_t>& ends) {
  const GilReleased release;
  return sums.add(span_of(bytes), ends);
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  nb::class_<storage::Checksum>(m, "Checksum", "A checksum of a checkpoint's bytes against damage: GMAC with a key and a nonce of zeros.")
      .def(nb::init<>())
      .def("update", &add, nb::arg("bytes"), "Adds bytes, without the GIL.")
      .def("hexdigest", &storage::Checksum::hex, "Returns 32 hexadecimal digits. Call it once, and add nothing afterwards.");
  nb::class_<storage::ChunkChecksums>(m, "ChunkChecksums", "The checksums of successive chunks of a stream of bytes.")
      .def(nb::init<>())
      .def("add", &add_chunks, nb::arg("bytes"), nb::arg("ends"),
           "Adds bytes, in which chunks end before the positions `ends`, without the GIL. Returns the checksums of these chunks.");
}

}  // namespace shoal::python
