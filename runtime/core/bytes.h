// A byte buffer with one owner. It is aligned to 16 bytes and not zeroed; it can be moved, and only copy_of() and clone() copy it.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace shoal {

class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : data_(size ? new std::byte[size] : nullptr), size_(size) {}
  Bytes(Bytes&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Bytes& operator=(Bytes&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  static Bytes copy_of(const void* data, std::size_t size) {
    Bytes out(size);
    if (size) std::memcpy(out.data(), data, size);
    return out;
  }
  static Bytes copy_of(std::string_view text) { return copy_of(text.data(), text.size()); }
  Bytes clone() const { return copy_of(data(), size()); }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const std::byte> span() const { return {data(), size()}; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data()), size()}; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

}  // namespace shoal
