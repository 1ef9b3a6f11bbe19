#include "runtime/log/log.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

TEST(Log, AMessageIsOneEntryAndHasNoControlCharacters) {
  const auto path = std::filesystem::path(testing::TempDir()) / "log_test.log";
  std::filesystem::remove(path);
  {
    const auto log = make_file_log("head", path);
    ASSERT_TRUE(log) << log.error().to_string();
    (*log)->info("job={} name={}", 7, "x\n2026-01-01T00:00:00.000 error head FORGED\x1b]52;c;eA==\a\r");
    (*log)->info("job={} name={}", 8, "d\u00e9j\u00e0");
  }
  std::ifstream file(path);
  std::stringstream lines;
  for (std::string line; std::getline(file, line);) lines << line.substr(line.starts_with("20") ? 24 : 0) << "\n";
  EXPECT_EQ(lines.str(),
            "info head job=7 name=x\n"
            "  | 2026-01-01T00:00:00.000 error head FORGED\\x1b]52;c;eA==\\x07\\r\n"
            "info head job=8 name=d\u00e9j\u00e0\n");
}

}  // namespace
}  // namespace shoal::runtime
