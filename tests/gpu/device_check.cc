// Shoal's own CUDA code on one GPU: the bandwidth of fused AdamW and SGD, NCCL with one rank, 2 and 4 processes with one device. These
// gather and add each other's shards, by plain copies and by the communicator. Prints a JSON line for each part, then `N passed, N failed`.
// Without a GPU: exit code 2 and one sentence.
//
// With --fake, threads on the fakes of CUDA and NCCL take the place of processes and GPU: that tests this program.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "fsdp/kernels/cuda/device_optim.h"
#include "fsdp/kernels/cuda/on_host.h"
#include "runtime/device/kernels/device_kernels.h"
#include "runtime/device/kernels/on_host.h"
#include "runtime/loop/loop.h"
#include "runtime/shm/memory.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/conformance/test_host.h"
#include "runtime/transport/nccl/fake/fake_nccl.h"

namespace shoal {
namespace {

using runtime::CudaApi;
using runtime::Device;
using runtime::DeviceKernels;
using runtime::DeviceMemory;
using runtime::Event;
using runtime::Stream;

constexpr double kGiga = 1e9;

struct Setting {
  const CudaApi* cuda;
  const runtime::NcclApi* nccl;  // null: loaded
  bool fake;
  std::size_t numel;  // elements of each array or shard
};

// Milliseconds on the device of one `run`: the least of five, after one that is not counted.
Result<float> measure(const Device& device, const Stream& stream, const std::function<Result<void>()>& run) {
  SHOAL_TRY(const auto begin, device.make_event(Device::EventUse::kTiming));
  SHOAL_TRY(const auto end, device.make_event(Device::EventUse::kTiming));
  float least = 0;
  for (int i = 0; i < 6; ++i) {
    SHOAL_OK(device.record(begin, stream.get()));
    SHOAL_OK(run());
    SHOAL_OK(device.record(end, stream.get()));
    SHOAL_OK(device.synchronize(stream.get()));
    SHOAL_TRY(const float ms, device.milliseconds(begin, end));
    if (i > 0 && (i == 1 || ms < least)) least = ms;
  }
  return least;
}

double gigabytes_per_second(double bytes, float ms) { return ms > 0 ? bytes / (ms / 1e3) / kGiga : 0; }

// ---- one process -------------------------------------------------------------------------------------------------------------------

// One step on this shard by the kernels of an optimizer, in the order of the stream.
using Update = Result<void> (*)(const fsdp::DeviceOptim& optim, const fsdp::Shard& shard, const Stream& stream);

// An update reads `num_arrays` arrays, and writes all of them but the gradient.
Result<bool> update_bandwidth(const Setting& setting, const char* part, std::size_t num_arrays, Update update) {
  SHOAL_TRY(const auto device, Device::open(*setting.cuda, 0));
  SHOAL_TRY(const auto optim, fsdp::DeviceOptim::load(device, setting.fake ? "fake" : fsdp::DeviceOptim::embedded()));
  SHOAL_TRY(const auto stream, device->make_stream());
  const std::size_t bytes = setting.numel * sizeof(float);
  std::vector<DeviceMemory> arrays;
  fsdp::Shard shard;
  shard.numel = setting.numel;
  for (std::size_t a = 0; a < num_arrays; ++a) {
    SHOAL_TRY(auto memory, device->allocate(bytes));
    SHOAL_OK(device->zero(memory.get().data(), bytes, stream.get()));
    shard.at[a] = memory.get().data();
    arrays.push_back(std::move(memory));
  }
  const auto* const from = arrays[1].get().data();
  auto* const to = arrays[0].get().data();
  SHOAL_TRY(const float copy_ms, measure(*device, stream, [&] { return device->copy(to, from, bytes, stream.get()); }));
  SHOAL_TRY(const float update_ms, measure(*device, stream, [&] { return update(optim, shard, stream); }));
  const auto size = static_cast<double>(bytes), moved = static_cast<double>(2 * num_arrays - 1);
  const double copy = gigabytes_per_second(2 * size, copy_ms), updated = gigabytes_per_second(moved * size, update_ms);
  const double ratio = copy > 0 ? updated / copy : 0;
  const bool passed = setting.fake || ratio >= 0.85;
  fmt::print(
      "{{\"part\": \"{}\", \"device\": \"{}\", \"numel\": {}, \"ms\": {:.3f}, \"gb_per_s\": {:.0f}, \"copy_gb_per_s\": {:.0f}, "
      "\"of_copy\": {:.2f}, \"passed\": {}}}\n",
      part, device->name(), setting.numel, update_ms, updated, copy, ratio, passed);
  return passed;
}

Result<void> adamw(const fsdp::DeviceOptim& optim, const fsdp::Shard& shard, const Stream& stream) {
  return optim.adam({}, 1, {}, {&shard, 1}, stream.get());
}

Result<void> sgd(const fsdp::DeviceOptim& optim, const fsdp::Shard& shard, const Stream& stream) {
  return optim.sgd({.momentum = 0.9}, {}, {&shard, 1}, stream.get());
}

Result<bool> nccl_alone(const Setting& setting) {
  runtime::Loop loop;
  runtime::TestHost host;
  runtime::CommunicatorRequest request;
  request.name = "alone";
  request.nccl = runtime::NcclTransport{.device = 0, .current_stream = nullptr, .cuda = setting.cuda, .api = setting.nccl};
  request.memory.emplace().open = [&](const std::string& name, std::size_t bytes, int) { return host.open(name, bytes); };
  SHOAL_TRY(auto communicator, runtime::make_communicator(std::move(request), runtime::make_real_clock(loop)));
  SHOAL_TRY(const auto device, Device::open(*setting.cuda, 0));
  SHOAL_TRY(const auto stream, device->make_stream());
  SHOAL_TRY(const auto memory, device->allocate(4096));
  std::vector<float> values(1024, 3), got(1024);
  SHOAL_OK(device->copy(memory.get().data(), values.data(), 4096, stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  SHOAL_OK(communicator->barrier({})->wait());
  SHOAL_OK(communicator->all_reduce(memory.get(), memory.get(), DType::kFloat32, runtime::ReduceOp::kSum, {})->wait());
  SHOAL_TRY(communicator, communicator->reform());
  const std::size_t counts[] = {4096};
  SHOAL_OK(communicator->all_gather(memory.get(), memory.get(), counts, DType::kFloat32, {})->wait());
  SHOAL_OK(device->copy(got.data(), memory.get().data(), 4096, stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  const bool passed = got == values && communicator->generation() == 2;
  fmt::print("{{\"part\": \"nccl, 1 rank\", \"passed\": {}}}\n", passed);
  return passed;
}

// ---- several processes on one device -----------------------------------------------------------------------------------------------

constexpr int kMaxRanks = 4;

// Shared by the ranks.
struct Meeting {
  pthread_barrier_t barrier;
  runtime::CudaIpcHandle memory[kMaxRanks];
  double gb_per_s[kMaxRanks], copy_gb_per_s[kMaxRanks];
  bool passed[kMaxRanks];
  int run;  // number of this meeting, in the names of shared memory
};

// Opens memory of the host that all ranks share, by its name in this run.
Result<std::shared_ptr<runtime::Mapping>> open_shared(const Meeting& meeting, std::string name, std::size_t bytes) {
  std::replace(name.begin(), name.end(), '/', '-');
  name = fmt::format("/shoal-device-check-{}-{}", meeting.run, name);
  const Fd memory(shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return fail(unavailable("no shared memory " + name));
  SHOAL_TRY(auto mapping, runtime::map(memory, bytes, runtime::Access::kReadWrite));
  return std::make_shared<runtime::Mapping>(std::move(mapping));
}

Result<void> gather_from_peers(const Setting& setting, Meeting& meeting, int rank, int world) {
  const auto meet = [&] { (void)pthread_barrier_wait(&meeting.barrier); };
  SHOAL_TRY(const auto device, Device::open(*setting.cuda, 0));
  SHOAL_TRY(const auto kernels, DeviceKernels::load(device, setting.fake ? "fake" : DeviceKernels::embedded()));
  SHOAL_TRY(const auto stream, device->make_stream());
  const std::size_t numel = setting.numel / static_cast<std::size_t>(world), bytes = numel * sizeof(float);
  SHOAL_TRY(const auto own, device->allocate(bytes));
  SHOAL_TRY(const auto whole, device->allocate(bytes * static_cast<std::size_t>(world)));
  SHOAL_TRY(const auto sum, device->allocate(bytes));
  std::vector<float> values(numel, static_cast<float>(rank + 1));
  SHOAL_OK(device->copy(own.get().data(), values.data(), bytes, stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  SHOAL_TRY(meeting.memory[rank], device->share(own));
  meet();
  std::vector<runtime::PeerMemory> peers;
  std::vector<const void*> sources;
  for (int r = 0; r < world; ++r) {
    if (r == rank) {
      sources.push_back(own.get().data());
      continue;
    }
    SHOAL_TRY(auto peer, device->open_shared(meeting.memory[r], bytes));
    sources.push_back(peer.get().data());
    peers.push_back(std::move(peer));
  }
  const auto gather = [&]() -> Result<void> {
    for (std::size_t r = 0; r < sources.size(); ++r)
      SHOAL_OK(device->copy(whole.get().data() + r * bytes, sources[r], bytes, stream.get()));
    return {};
  };
  meet();
  SHOAL_TRY(const float gather_ms, measure(*device, stream, gather));
  meet();
  // The limit in the same run: as many ranks at once, each copying its own memory.
  const auto copy = [&]() -> Result<void> {
    for (int r = 0; r < world; ++r)
      SHOAL_OK(device->copy(whole.get().data() + static_cast<std::size_t>(r) * bytes, own.get().data(), bytes, stream.get()));
    return {};
  };
  SHOAL_TRY(const float copy_ms, measure(*device, stream, copy));
  meet();
  SHOAL_OK(gather());
  SHOAL_OK(kernels.sum(DType::kFloat32, sources, 1, false, DType::kFloat32, sum.get().data(), numel, stream.get()));
  std::vector<float> all(numel * static_cast<std::size_t>(world)), added(numel);
  SHOAL_OK(device->copy(all.data(), whole.get().data(), bytes * static_cast<std::size_t>(world), stream.get()));
  SHOAL_OK(device->copy(added.data(), sum.get().data(), bytes, stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  bool right = true;
  for (std::size_t i = 0; i < all.size(); ++i) right = right && all[i] == static_cast<float>(i / numel + 1);
  for (const float x : added) right = right && x == static_cast<float>(world * (world + 1) / 2);
  const double moved = 2.0 * static_cast<double>(bytes) * world;
  meeting.gb_per_s[rank] = gigabytes_per_second(moved, gather_ms);
  meeting.copy_gb_per_s[rank] = gigabytes_per_second(moved, copy_ms);
  meeting.passed[rank] = right;
  peers.clear();
  meet();  // a rank keeps its memory until the others have closed it
  return {};
}

// The same by Shoal's communicator: gathers through memory that the ranks share, in chunks, and reductions in the order of ranks.
Result<void> communicate_by_copies(const Setting& setting, Meeting& meeting, int rank, int world) {
  runtime::Loop loop;
  SHOAL_TRY(const auto device, Device::open(*setting.cuda, 0));
  SHOAL_TRY(const auto stream, device->make_stream());
  runtime::CommunicatorRequest request;
  request.rank = rank;
  request.world_size = world;
  request.name = "copies";
  request.timeout = std::chrono::seconds(60);
  request.nccl = runtime::NcclTransport{.device = 0,
                                        .cuda_ipc = true,
                                        .current_stream = [&] { return stream.get(); },
                                        .cuda = setting.cuda,
                                        .kernels = setting.fake ? "fake" : nullptr};
  auto& shared = request.memory.emplace();
  shared.spins = 0;
  shared.open = [&](const std::string& name, std::size_t bytes, int) { return open_shared(meeting, name, bytes); };
  SHOAL_TRY(const auto communicator, runtime::make_communicator(std::move(request), runtime::make_real_clock(loop)));
  const std::size_t numel = setting.numel / static_cast<std::size_t>(world), bytes = numel * sizeof(float);
  const std::vector<std::size_t> counts(static_cast<std::size_t>(world), bytes);
  SHOAL_TRY(const auto own, device->allocate(bytes));
  SHOAL_TRY(const auto whole, device->allocate(bytes * counts.size()));
  SHOAL_TRY(const auto limit, device->allocate(bytes * counts.size()));
  std::vector<float> values(numel, static_cast<float>(rank + 1)), all(numel * counts.size()), sum(numel);
  SHOAL_OK(device->copy(own.get().data(), values.data(), bytes, stream.get()));
  const auto gather = [&]() -> Result<void> {
    return communicator->order_after(*communicator->all_gather(own.get(), whole.get(), counts, DType::kFloat32, {}), stream.get());
  };
  SHOAL_TRY(const float gather_ms, measure(*device, stream, gather));
  SHOAL_OK(communicator->barrier({})->wait());
  const auto copy = [&]() -> Result<void> {  // the limit in the same run, by all ranks at once
    for (std::size_t r = 0; r < counts.size(); ++r)
      SHOAL_OK(device->copy(limit.get().data() + r * bytes, own.get().data(), bytes, stream.get()));
    return {};
  };
  SHOAL_TRY(const float copy_ms, measure(*device, stream, copy));
  const double moved = 2.0 * static_cast<double>(bytes) * world;
  meeting.gb_per_s[rank] = gigabytes_per_second(moved, gather_ms);
  meeting.copy_gb_per_s[rank] = gigabytes_per_second(moved, copy_ms);
  SHOAL_OK(device->copy(all.data(), whole.get().data(), bytes * counts.size(), stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  SHOAL_OK(communicator->reduce_scatter(whole.get(), own.get(), counts, DType::kFloat32, runtime::ReduceOp::kSum, {})->wait());
  SHOAL_OK(communicator->all_reduce(own.get(), own.get(), DType::kFloat32, runtime::ReduceOp::kSum, {})->wait());
  SHOAL_OK(device->copy(sum.data(), own.get().data(), bytes, stream.get()));
  SHOAL_OK(device->synchronize(stream.get()));
  bool right = true;
  for (std::size_t i = 0; i < all.size(); ++i) right = right && all[i] == static_cast<float>(i / numel + 1);
  for (const float x : sum) right = right && x == static_cast<float>(world * world * (world + 1) / 2);
  meeting.passed[rank] = right;
  return communicator->barrier({})->wait();  // a rank keeps its memory until the others have used it
}

// Runs `program` in a process per rank. Returns false if one of them fails, which ends the others: they would wait for it.
bool in_processes(int world, const std::function<bool(int rank)>& program) {
  std::fflush(nullptr);
  std::vector<pid_t> ranks;
  for (int r = 0; r < world; ++r) {
    const pid_t pid = fork();
    if (pid == 0) _exit(program(r) ? 0 : 1);
    ranks.push_back(pid);
  }
  bool passed = true;
  for (int ended = 0; ended < world; ++ended) {
    int status = 0;
    const pid_t pid = wait(&status);
    if (status == 0) continue;
    for (const pid_t other : ranks) {
      if (passed && other != pid) (void)kill(other, SIGTERM);
    }
    passed = false;
  }
  return passed;
}

bool in_threads(int world, const std::function<bool(int rank)>& program) {
  std::vector<std::thread> ranks;
  std::atomic<bool> passed = true;
  for (int r = 0; r < world; ++r) {
    ranks.emplace_back([&, r] {
      if (!program(r)) passed = false;
    });
  }
  for (auto& rank : ranks) rank.join();
  return passed;
}

// The ranks' exchange. Its bandwidth is at least the share `at_least` of that of plain copies.
using Exchange = Result<void> (*)(const Setting& setting, Meeting& meeting, int rank, int world);

bool peers(const Setting& setting, int world, const char* part, Exchange exchange, double at_least) {
  static int runs = static_cast<int>(getpid()) * 16;
  void* const shared = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  auto& meeting = *new (shared) Meeting{};
  meeting.run = ++runs;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting.barrier, &attributes, static_cast<unsigned>(world));
  const auto program = [&](int rank) {
    auto own = setting;
    if (!setting.fake) own.cuda = CudaApi::load().value_or(nullptr);
    const auto ended = own.cuda == nullptr ? fail(CudaApi::load().error()) : exchange(own, meeting, rank, world);
    if (!ended) fmt::print(stderr, "rank {}: {}\n", rank, ended.error().to_string());
    return ended.has_value();
  };
  bool passed = setting.fake ? in_threads(world, program) : in_processes(world, program);
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().filename().string().rfind(fmt::format("shoal-device-check-{}-", meeting.run), 0) == 0) std::filesystem::remove(file);
  }
  double gathered = 0, copied = 0;
  for (int r = 0; r < world; ++r) {
    passed = passed && meeting.passed[r];
    gathered += meeting.gb_per_s[r];
    copied += meeting.copy_gb_per_s[r];
  }
  const double ratio = copied > 0 ? gathered / copied : 0;
  passed = passed && (setting.fake || ratio >= at_least);
  fmt::print("{{\"part\": \"{}, {} processes\", \"gb_per_s\": {:.0f}, \"copy_gb_per_s\": {:.0f}, \"of_copy\": {:.2f}, \"passed\": {}}}\n",
             part, world, gathered, copied, ratio, passed);
  return passed;
}

// The reason why there is no GPU; empty if there is one. Asked in another process, because a process that has started CUDA must not fork.
std::string missing_gpu() {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  (void)in_processes(1, [&](int) {
    const auto loaded = CudaApi::load();
    const auto count = loaded ? Device::count(**loaded) : fail(loaded.error());
    const std::string why = !count ? count.error().message() : *count == 0 ? "the driver sees no device" : "";
    return write(ends[1], why.data(), why.size()) == static_cast<ssize_t>(why.size());
  });
  close(ends[1]);
  std::string out(1000, '\0');
  out.resize(static_cast<std::size_t>(std::max<ssize_t>(read(ends[0], out.data(), out.size()), 0)));
  close(ends[0]);
  return out;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  using namespace shoal;
  const bool fake = argc == 2 && std::string(argv[1]) == "--fake";
  Setting setting{nullptr, nullptr, fake, fake ? std::size_t{1} << 14 : std::size_t{1} << 28};
  int passed = 0, failed = 0;
  const auto count = [&](const char* part, const Result<bool>& result) {
    if (!result) fmt::print("{{\"part\": \"{}\", \"passed\": false}}\n{}\n", part, result.error().to_string());
    (result && *result ? passed : failed) += 1;
  };
  if (fake) {
    runtime::add_device_kernels();
    fsdp::add_optim_kernels();
    setting.cuda = &runtime::FakeCuda::machine().api();
    setting.nccl = &runtime::FakeNccl::machine().api();
  }
  if (const auto missing = fake ? "" : missing_gpu(); !missing.empty()) {
    fmt::print("tests/gpu: {}; nothing was tested\n", missing);
    return 2;
  }
  // Before this process opens the device: a context does not survive a fork.
  for (const int world : {2, 4}) {
    count("shards", peers(setting, world, "shards", gather_from_peers, 0.8));
    count("cuda_ipc", peers(setting, world, "cuda_ipc", communicate_by_copies, 0));
  }
  if (!fake) setting.cuda = runtime::CudaApi::load().value();
  count("adamw", update_bandwidth(setting, "adamw", 4, adamw));
  count("sgd", update_bandwidth(setting, "sgd", 3, sgd));
  if (const auto nccl = runtime::NcclApi::load(); fake || nccl) {
    count("nccl", nccl_alone(setting));
  } else {
    fmt::print("NCCL was not tested: {}\n", nccl.error().message());
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
