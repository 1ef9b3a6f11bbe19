#include "actors/api/build_id.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::actors::api {
namespace {

std::vector<std::byte> note(std::uint32_t name_bytes, std::uint32_t content_bytes, std::uint32_t type, const std::string& rest) {
  const std::uint32_t header[] = {name_bytes, content_bytes, type};
  std::vector<std::byte> out(sizeof header + rest.size());
  std::memcpy(out.data(), header, sizeof header);
  std::memcpy(out.data() + sizeof header, rest.data(), rest.size());
  return out;
}

const std::string kGnu("GNU\0", 4);

TEST(BuildIdTest, ThisProgramHasOne) {
  const std::string id = own_build_id();
  EXPECT_GE(id.size(), 32u);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
}

TEST(BuildIdTest, ItIsFoundAfterOtherNotes) {
  auto notes = note(4, 5, 1, kGnu + std::string("abcde\0\0\0", 8));
  const auto id = note(4, 3, NT_GNU_BUILD_ID, kGnu + std::string("\x01\xab\xff\0", 4));
  notes.insert(notes.end(), id.begin(), id.end());
  EXPECT_EQ(build_id_in(notes), "01abff");
}

TEST(BuildIdTest, MalformedNotesHaveNone) {
  EXPECT_FALSE(build_id_in({}));
  EXPECT_FALSE(build_id_in(note(4, 0, NT_GNU_BUILD_ID, kGnu)));
  EXPECT_FALSE(build_id_in(note(4, 20, NT_GNU_BUILD_ID, kGnu + "short")));
  EXPECT_FALSE(build_id_in(note(~0u, 4, NT_GNU_BUILD_ID, kGnu)));
  EXPECT_FALSE(build_id_in(note(4, ~0u, NT_GNU_BUILD_ID, kGnu)));
  EXPECT_FALSE(build_id_in(note(4, 4, NT_GNU_BUILD_ID, std::string("gnu\0abcd", 8))));
  EXPECT_FALSE(build_id_in(note(4, 100, NT_GNU_BUILD_ID, kGnu + std::string(100, 'x'))));
}

}  // namespace
}  // namespace shoal::actors::api
