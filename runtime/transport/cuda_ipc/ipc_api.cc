#include "runtime/transport/cuda_ipc/ipc_api.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

using Kind = IpcOperation::Kind;

struct Comm {
  std::unique_ptr<IpcComm> ranks;
  bool finalized = false;
};

// The process's communicators by handle: the functions of NCCL's table get only a handle.
struct Machine {
  const CudaApi* cuda = nullptr;
  IpcComm::Options options;
  std::mutex mutex;
  std::map<NcclComm, std::shared_ptr<Comm>> comms;
  // Ended communicators, whose memory another rank may still read. A sweep takes one out while it tries to close it: `num_swept` of them.
  struct {
    std::deque<std::shared_ptr<Comm>> comms;
    std::size_t num_swept = 0;
  } ended;
};
Machine& machine() {
  static auto* const machine = new Machine;  // never destroyed: the driver ends before this process's objects do
  return *machine;
}

// The calling thread's group, and its last error.
thread_local int depth = 0;
thread_local std::vector<std::pair<NcclComm, IpcOperation>> grouped;
thread_local std::string error_text;

NcclStatus failed(const Error& error) {
  error_text = error.message();
  if (error.reason() == "ActorDied") return nccl::kRemoteError;
  return error.code() == Code::kInvalidArgument ? nccl::kInvalidArgument : nccl::kUnhandledCudaError;
}

std::shared_ptr<Comm> find(NcclComm handle) {
  const std::lock_guard lock(machine().mutex);
  const auto found = machine().comms.find(handle);
  return found == machine().comms.end() ? nullptr : found->second;
}

NcclStatus get_version(int* version) {
  *version = 0;
  return nccl::kSuccess;
}

const char* error_string(NcclStatus status) {
  switch (status) {
    case nccl::kInvalidArgument:
      return "invalid argument";
    case nccl::kUnhandledCudaError:
      return "an error of CUDA";
    case nccl::kRemoteError:
      return "another rank's process has ended";
    default:
      return "a call in the wrong order";
  }
}

const char* last_error(NcclComm) { return error_text.c_str(); }

// ---- communicators -----------------------------------------------------------------------------------------------------------------

NcclStatus get_unique_id(NcclUniqueId* id) {
  (void)sweep_cuda_ipc();
  std::uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) return nccl::kSystemError;
  *id = {};
  const auto name = fmt::format("/shoal-devices-{}-{:016x}{:016x}", getpid(), random[0], random[1]);
  std::memcpy(id->bytes, name.data(), name.size());
  return nccl::kSuccess;
}

NcclStatus comm_init(NcclComm* out, int num_ranks, NcclUniqueId id, int rank, NcclConfig*) {
  (void)sweep_cuda_ipc();
  id.bytes[sizeof id.bytes - 1] = 0;
  if (std::strncmp(id.bytes, "/shoal-devices-", 15) != 0 || rank < 0 || rank >= num_ranks) return nccl::kInvalidArgument;
  int number = 0;
  if (auto found = check_cuda(*machine().cuda, machine().cuda->context_device(&number), "asking for the device"); !found)
    return failed(found.error());
  auto device = Device::open(*machine().cuda, number);
  if (!device) return failed(device.error());
  auto ranks = IpcComm::join(*std::move(device), id.bytes, num_ranks, rank, machine().options);
  if (!ranks) return failed(ranks.error());
  const auto comm = std::make_shared<Comm>();
  comm->ranks = *std::move(ranks);
  *out = reinterpret_cast<NcclComm>(comm.get());
  const std::lock_guard lock(machine().mutex);
  machine().comms[*out] = comm;
  return nccl::kInProgress;
}

NcclStatus comm_async_error(NcclComm handle, NcclStatus* status) {
  const auto comm = find(handle);
  if (comm == nullptr) return nccl::kInvalidArgument;
  const auto through = comm->ranks->advance();
  *status = !through ? failed(through.error()) : *through ? nccl::kSuccess : nccl::kInProgress;
  return nccl::kSuccess;
}

NcclStatus comm_finalize(NcclComm handle) {
  const auto comm = find(handle);
  if (comm == nullptr) return nccl::kInvalidArgument;
  comm->finalized = true;
  return nccl::kSuccess;
}

NcclStatus end(NcclComm handle) {
  std::shared_ptr<Comm> comm;
  {
    const std::lock_guard lock(machine().mutex);
    const auto found = machine().comms.find(handle);
    if (found == machine().comms.end()) return nccl::kInvalidArgument;
    comm = std::move(found->second);
    machine().comms.erase(found);
  }
  comm->ranks->end();
  {
    const std::lock_guard lock(machine().mutex);
    machine().ended.comms.push_back(std::move(comm));
  }
  (void)sweep_cuda_ipc();
  return nccl::kSuccess;
}

NcclStatus comm_destroy(NcclComm handle) {
  const auto comm = find(handle);
  if (comm == nullptr) return nccl::kInvalidArgument;
  return comm->finalized ? end(handle) : nccl::kInvalidUsage;
}

// ---- operations --------------------------------------------------------------------------------------------------------------------

NcclStatus group_start() {
  ++depth;
  return nccl::kSuccess;
}

NcclStatus group_end() {
  if (depth == 0) return nccl::kInvalidUsage;
  if (--depth > 0) return nccl::kSuccess;
  const auto calls = std::exchange(grouped, {});
  std::map<NcclComm, std::vector<IpcOperation>> by_comm;
  for (const auto& [handle, operation] : calls) by_comm[handle].push_back(operation);
  for (const auto& [handle, operations] : by_comm) {
    const auto comm = find(handle);
    if (comm == nullptr) return nccl::kInvalidArgument;
    comm->ranks->begin(operations);
  }
  return calls.empty() ? nccl::kSuccess : nccl::kInProgress;
}

NcclStatus call(NcclComm handle, const IpcOperation& operation) {
  const auto comm = find(handle);
  if (comm == nullptr) return nccl::kInvalidArgument;
  if (operation.other >= comm->ranks->num_ranks() || (operation.message() && operation.other == comm->ranks->rank()))
    return nccl::kInvalidArgument;
  (void)group_start();
  grouped.emplace_back(handle, operation);
  return group_end();
}

const std::byte* in(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* out(void* data) { return static_cast<std::byte*>(data); }

NcclStatus all_gather(const void* i, void* o, std::size_t count, NcclType type, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kAllGather, in(i), out(o), count, type, 0, -1, stream});
}
NcclStatus reduce_scatter(const void* i, void* o, std::size_t count, NcclType type, NcclOp op, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kReduceScatter, in(i), out(o), count, type, op, -1, stream});
}
NcclStatus all_reduce(const void* i, void* o, std::size_t count, NcclType type, NcclOp op, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kAllReduce, in(i), out(o), count, type, op, -1, stream});
}
NcclStatus reduce(const void* i, void* o, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kReduce, in(i), out(o), count, type, op, root, stream});
}
NcclStatus broadcast(const void* i, void* o, std::size_t count, NcclType type, int root, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kBroadcast, in(i), out(o), count, type, 0, root, stream});
}
NcclStatus send(const void* i, std::size_t count, NcclType type, int to, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kSend, in(i), nullptr, count, type, 0, to, stream});
}
NcclStatus receive(void* o, std::size_t count, NcclType type, int from, NcclComm comm, CudaStream stream) {
  return call(comm, {Kind::kReceive, nullptr, out(o), count, type, 0, from, stream});
}

}  // namespace

// The driver may take long to close memory. Meanwhile other groups go on, and other threads look at the other communicators.
std::size_t sweep_cuda_ipc(bool overdue) {
  auto& [ended, num_swept] = machine().ended;
  std::unique_lock lock(machine().mutex);
  // After each communicator that was closed, a whole round begins again: other communicators of this process may have waited for that.
  for (std::size_t left = ended.size(); left > 0 && !ended.empty();) {
    auto comm = std::move(ended.front());
    ended.pop_front();
    ++num_swept;
    lock.unlock();
    const bool closed = comm->ranks->try_close(overdue);
    if (closed) comm.reset();
    lock.lock();
    --num_swept;
    if (comm != nullptr) ended.push_back(std::move(comm));
    left = closed ? ended.size() : left - 1;
  }
  return ended.size() + num_swept;
}

const NcclApi& cuda_ipc_api(const CudaApi& cuda, const IpcComm::Options& options) {
  {
    const std::lock_guard lock(machine().mutex);
    if (machine().cuda == nullptr) {
      machine().cuda = &cuda;
      machine().options = options;
    }
  }
  static const NcclApi table{.path = "",
                             .version = 0,
                             .name = "cuda_ipc",
                             .shares_devices = true,
                             .issues_in_polls = true,
                             .drain = [](bool overdue) { (void)sweep_cuda_ipc(overdue); },
                             .get_version = get_version,
                             .error_string = error_string,
                             .last_error = last_error,
                             .get_unique_id = get_unique_id,
                             .comm_init = comm_init,
                             .comm_async_error = comm_async_error,
                             .comm_finalize = comm_finalize,
                             .comm_destroy = comm_destroy,
                             .comm_abort = end,
                             .group_start = group_start,
                             .group_end = group_end,
                             .all_gather = all_gather,
                             .reduce_scatter = reduce_scatter,
                             .all_reduce = all_reduce,
                             .reduce = reduce,
                             .broadcast = broadcast,
                             .send = send,
                             .receive = receive};
  return table;
}

}  // namespace shoal::runtime
