// The checksum of checkpoints: equal to GMAC as others compute it, however the bytes are divided, and changed by any flipped bit.
#include "storage/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace shoal::storage {
namespace {

std::vector<std::byte> counting(std::size_t size) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251);
  return out;
}

std::string of(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.hex();
}

// Test case 1 of the GCM specification (McGrew and Viega, 2004): no bytes. The others come from `openssl mac`, as in
// openssl mac -cipher AES-128-GCM -macopt hexkey:00..00 -macopt hexiv:00..00 -in FILE GMAC
TEST(Checksum, is_the_gmac_with_a_key_and_a_nonce_of_zeros) {
  EXPECT_EQ(of({}), "58e2fccefa7e3061367f1d57a4e7455a");
  EXPECT_EQ(of(counting(1)), "be70fdb0190bf22a98eba0195c4586e2");
  EXPECT_EQ(of(counting(1000)), "a061271282d68897ecf8e81d0d793ffe");
}

TEST(Checksum, does_not_depend_on_how_the_bytes_are_divided) {
  const auto bytes = counting(100'003);
  const std::string whole = of(bytes);
  for (const std::size_t step : {1, 15, 16, 17, 4096, 65'537}) {
    Checksum sum;
    for (std::size_t at = 0; at < bytes.size(); at += step) sum.add(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
    EXPECT_EQ(sum.hex(), whole) << step;
  }
}

TEST(Checksum, is_changed_by_any_flipped_bit_and_by_the_length) {
  auto bytes = counting(1000);
  const std::string whole = of(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_NE(of(bytes), whole) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_EQ(of(bytes), whole);
  EXPECT_NE(of(std::vector<std::byte>(16)), of(std::vector<std::byte>(32)));
  EXPECT_NE(of({}), of(std::vector<std::byte>(1)));
}

TEST(ChunkChecksums, are_those_of_the_chunks_however_the_stream_is_divided) {
  const auto bytes = counting(1000);
  const std::vector<std::size_t> ends = {1, 300, 300, 999, 1000};
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    expected.push_back(of(std::span(bytes).subspan(begin, ends[i] - begin)));
  }
  for (const std::size_t step : {1, 7, 299, 300, 1000}) {
    ChunkChecksums sums;
    std::vector<std::string> found;
    std::size_t next = 0;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const std::size_t size = std::min(step, bytes.size() - at);
      std::vector<std::size_t> here;
      for (; next < ends.size() && ends[next] <= at + size; ++next) here.push_back(ends[next] - at);
      for (const auto& sum : sums.add(std::span(bytes).subspan(at, size), here)) found.push_back(sum);
    }
    EXPECT_EQ(found, expected) << step;
  }
}

}  // namespace
}  // namespace shoal::storage
