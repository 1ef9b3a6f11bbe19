// Main function of a test program that is driver and workers of a cluster of its own, with a temporary SHOAL_HOME.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "actors/api/shoal.h"

inline shoal::Context* driver = nullptr;  // set while the tests run

template <typename... Classes>
int run_program(int argc, char** argv, shoal::MainOptions options = {}) {
  std::string home = "/tmp/shoal-cpp.XXXXXX";
  const bool is_worker = std::getenv("SHOAL_NODE") != nullptr;  // a worker inherits the driver's environment
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
