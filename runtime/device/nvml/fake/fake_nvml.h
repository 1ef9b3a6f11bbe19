// NVML for tests: devices in the state that a test gives them. There is one machine per process, because NVML's functions have no
// argument that could name one of several. Not for several threads at once.
#pragma once

#include <string>
#include <vector>

#include "runtime/device/nvml/nvml_api.h"

namespace shoal::runtime {

class FakeNvml {
 public:
  static FakeNvml& machine();
  static const NvmlApi& api();

  struct Fake {
    std::string name = "NVIDIA H100 80GB HBM3";
    std::string uuid = {};               // empty: made from the device's index
    NvmlStatus status = nvml::kSuccess;  // each call on it returns this
    unsigned long long used = 1ULL << 30, total = 80ULL << 30;
    unsigned busy = 25;  // in percent
    unsigned long long ecc_errors = 0;
    bool retirement_pending = false, remapping_pending = false, remapping_failed = false;
    bool mig = false, mig_next = false;
    int compute_mode = 0;
    std::vector<NvmlProcess> processes = {};
    std::vector<Fake> slices = {};
  };
  std::vector<Fake> devices;

  // Makes devices of a text: "ecc=3 pid=17; lost; mig=2; plain" are four.
  void read(const std::string& text);
};

}  // namespace shoal::runtime
