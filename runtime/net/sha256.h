// The SHA-256 of what comes in parts.
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
  // Of all that was added: 64 hexadecimal digits. Once.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::runtime
