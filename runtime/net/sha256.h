// SHA-256 over data that arrives in parts.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace shoal::runtime {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void add(std::span<const std::byte> bytes);
  // Returns the digest of all added bytes as 64 hexadecimal digits. Call it once, and add nothing afterwards.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::runtime
