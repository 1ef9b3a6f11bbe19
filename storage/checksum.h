// A checksum of a checkpoint's bytes against damage. It is a GMAC (NIST SP 800-38D) whose key and nonce, being zeros, are no secret: each
// change of up to 16 adjacent bytes changes it, and any other with a probability of 1 - 2^-108. It is several times as fast as SHA-256.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace shoal::storage {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::span<const std::byte> bytes);
  // Returns the checksum of all added bytes as 32 hexadecimal digits. Call it once, and add nothing afterwards.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The checksums of successive chunks of a stream of bytes.
class ChunkChecksums {
 public:
  // Adds the next bytes, in which chunks end before the positions `ends`, in order. Returns the checksums of these chunks.
  std::vector<std::string> add(std::span<const std::byte> bytes, std::span<const std::size_t> ends);

 private:
  Checksum current_;
};

}  // namespace shoal::storage
