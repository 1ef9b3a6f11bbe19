// Main function and fixture of a test program that is both the driver and the workers of its own cluster, with a temporary SHOAL_HOME.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "actors/api/shoal.h"
#include "actors/session/session.h"

inline shoal::Context* driver = nullptr;  // set while the tests run

template <typename... Classes>
int run_program(int argc, char** argv, shoal::MainOptions options = {}) {
  std::string home = "/tmp/shoal-cpp.XXXXXX";
  // only a worker has SHOAL_NODE; the rest of its environment is the driver's
  const bool is_worker = std::getenv("SHOAL_NODE") != nullptr;
  if (!is_worker) {
    if (mkdtemp(home.data()) == nullptr) return 1;
    setenv("SHOAL_HOME", home.c_str(), 1);
    unsetenv("SHOAL_ADDRESS");
  }
  options.num_cpus = 4;
  options.print_logs = false;
  const int code = shoal::main<Classes...>(
      argc, argv,
      [&](shoal::Context& context) {
        driver = &context;
        testing::InitGoogleTest(&argc, argv);
        return RUN_ALL_TESTS();
      },
      options);
  if (!is_worker) std::filesystem::remove_all(home);
  return code;
}

inline void touch(const std::string& file) { std::ofstream(file) << "x"; }
inline bool there(const std::string& file) { return access(file.c_str(), F_OK) == 0; }
inline bool await_file(const std::string& file) {
  while (!there(file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return true;
}

// A test with a folder of its own.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  template <class T>
  static std::string reason(const shoal::Future<T>& future) {
    const auto result = future.get();
    if (result) return "";
    return result.error().reason();
  }
  std::string folder_ = "/tmp/shoal-cpp.XXXXXX";
};
