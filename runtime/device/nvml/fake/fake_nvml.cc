#include "runtime/device/nvml/fake/fake_nvml.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace shoal::runtime {

namespace {

using Fake = FakeNvml::Fake;

Fake& fake(NvmlHandle handle) { return *reinterpret_cast<Fake*>(handle); }
NvmlHandle handle_of(Fake& fake) { return reinterpret_cast<NvmlHandle>(&fake); }

// The device's own failure, or what `read` returns.
template <class Read>
NvmlStatus of(NvmlHandle handle, const Read& read) {
  if (fake(handle).status != nvml::kSuccess) return fake(handle).status;
  return read(fake(handle));
}

NvmlStatus put(const std::string& text, char* out, unsigned bytes) {
  if (text.size() >= bytes) return nvml::kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return nvml::kSuccess;
}

NvmlStatus by_index(unsigned index, NvmlHandle* device) {
  auto& devices = FakeNvml::machine().devices;
  if (index >= devices.size()) return nvml::kInvalidArgument;
  if (devices[index].status == nvml::kLost) return nvml::kLost;
  *device = handle_of(devices[index]);
  return nvml::kSuccess;
}

NvmlStatus processes(NvmlHandle device, unsigned* count, NvmlProcess* out) {
  return of(device, [&](const Fake& f) {
    const auto room = *count;
    *count = static_cast<unsigned>(f.processes.size());
    if (f.processes.size() > room) return nvml::kInsufficientSize;
    std::copy(f.processes.begin(), f.processes.end(), out);
    return nvml::kSuccess;
  });
}

NvmlApi make_api() {
  NvmlApi api;
  api.path = "the fake";
  api.init = [] { return nvml::kSuccess; };
  api.error_string = [](NvmlStatus status) { return status == nvml::kLost ? "GPU is lost" : "Unknown Error"; };
  api.count = [](unsigned* count) {
    *count = static_cast<unsigned>(FakeNvml::machine().devices.size());
    return nvml::kSuccess;
  };
  api.by_index = by_index;
  api.name = [](NvmlHandle d, char* out, unsigned bytes) { return of(d, [&](const Fake& f) { return put(f.name, out, bytes); }); };
  api.uuid = [](NvmlHandle d, char* out, unsigned bytes) { return of(d, [&](const Fake& f) { return put(f.uuid, out, bytes); }); };
  api.memory = [](NvmlHandle d, NvmlMemory* out) {
    return of(d, [&](const Fake& f) {
      *out = {f.total, f.total - f.used, f.used};
      return nvml::kSuccess;
    });
  };
  api.utilization = [](NvmlHandle d, NvmlUtilization* out) {
    return of(d, [&](const Fake& f) {
      *out = {f.busy, 0};
      return f.mig ? nvml::kNotSupported : nvml::kSuccess;
    });
  };
  api.compute_mode = [](NvmlHandle d, int* out) {
    return of(d, [&](const Fake& f) {
      *out = f.compute_mode;
      return nvml::kSuccess;
    });
  };
  api.ecc_errors = [](NvmlHandle d, int kind, int counter, unsigned long long* out) {
    if (kind != nvml::kUncorrected || counter != nvml::kSinceDriver) return nvml::kInvalidArgument;
    return of(d, [&](const Fake& f) {
      *out = f.ecc_errors;
      return nvml::kSuccess;
    });
  };
  api.retirement_pending = [](NvmlHandle d, int* out) {
    return of(d, [&](const Fake& f) {
      *out = f.retirement_pending;
      return nvml::kSuccess;
    });
  };
  api.processes = processes;
  api.remapped_rows = [](NvmlHandle d, unsigned* correctable, unsigned* uncorrectable, unsigned* pending, unsigned* failed) {
    return of(d, [&](const Fake& f) {
      *correctable = *uncorrectable = 0;
      *pending = f.remapping_pending;
      *failed = f.remapping_failed;
      return nvml::kSuccess;
    });
  };
  api.mig_mode = [](NvmlHandle d, unsigned* current, unsigned* pending) {
    return of(d, [&](const Fake& f) {
      *current = f.mig;
      *pending = f.mig_next;
      return nvml::kSuccess;
    });
  };
  api.max_slices = [](NvmlHandle, unsigned* count) {
    *count = 7;
    return nvml::kSuccess;
  };
  api.slice = [](NvmlHandle d, unsigned index, NvmlHandle* out) {
    if (index == 0) return nvml::kNotFound;  // a gap between slices, as on hardware
    auto& slices = fake(d).slices;
    if (index > slices.size()) return nvml::kNotFound;
    *out = handle_of(slices[index - 1]);
    return nvml::kSuccess;
  };
  return api;
}

}  // namespace

FakeNvml& FakeNvml::machine() {
  static auto* const machine = new FakeNvml;  // never destroyed, as the library outlives a process's objects
  return *machine;
}

const NvmlApi& FakeNvml::api() {
  static const NvmlApi api = make_api();
  return api;
}

void FakeNvml::read(const std::string& text) {
  devices.clear();
  std::istringstream all(text);
  for (std::string line; std::getline(all, line, ';');) {
    Fake device;
    device.uuid = "GPU-" + std::to_string(devices.size());
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const auto at = word.find('=');
      const auto kind = word.substr(0, at);
      const auto number = at == std::string::npos ? 0u : static_cast<unsigned>(std::stoul(word.substr(at + 1)));
      if (kind == "lost") device.status = nvml::kLost;
      if (kind == "ecc") device.ecc_errors = number;
      if (kind == "pid") device.processes.push_back({number, 2ULL << 30, 0, 0});
      if (kind == "mig") device.mig = device.mig_next = true;
      for (unsigned i = 0; kind == "mig" && i < number; ++i) {
        Fake slice;
        slice.name = device.name + " MIG 1g.10gb";
        slice.uuid = "MIG-" + std::to_string(devices.size()) + "-" + std::to_string(i);
        slice.total = 10ULL << 30;
        device.slices.push_back(slice);
      }
    }
    devices.push_back(device);
  }
}

}  // namespace shoal::runtime
