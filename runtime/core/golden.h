// Compares a transcript with a golden one, a file of the test's testdata, line by line. The test also writes the new text to its undeclared
// outputs (bazel-testlogs/<folder>/<test>/test.outputs), from where an intended change is copied.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace shoal {

// `path`: of the golden file, from the repository's root.
inline void expect_golden(const std::string& text, const std::string& path) {
  std::ifstream file(path);
  const std::string golden{std::istreambuf_iterator<char>(file), {}};
  if (const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR"))
    std::ofstream(std::string(outputs) + path.substr(path.rfind('/'))) << text;
  std::istringstream is(text), was(golden);
  std::string line, expected;
  for (int number = 1; std::getline(is, line); ++number) {
    ASSERT_TRUE(std::getline(was, expected)) << "line " << number << " is new: " << line;
    ASSERT_EQ(line, expected) << "line " << number;
  }
  EXPECT_FALSE(std::getline(was, expected)) << "the story ends before: " << expected;
}

}  // namespace shoal
