// FakeNccl's implementations of the functions in NcclApi (nccl_api.h). They record a caller's misuse as a violation.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/transport/nccl/fake/fake_nccl.h"

namespace shoal::runtime {

namespace {

using Kind = FakeOperation::Kind;

FakeNccl& machine() { return FakeNccl::machine(); }

// The calling thread's group.
thread_local int depth = 0;
thread_local std::vector<std::pair<NcclComm, FakeOperation>> grouped;

}  // namespace

struct FakeNcclFunctions {
  // The communicator, if it is live; else records a violation.
  static std::shared_ptr<FakeComm> find(NcclComm comm, const char* function) {
    {
      const std::lock_guard lock(machine().mutex_);
      const auto found = machine().comms_.find(comm);
      if (found != machine().comms_.end()) return found->second;
    }
    machine().violation(fmt::format("{} on a communicator that is aborted or destroyed", function));
    return nullptr;
  }

  static NcclStatus get_version(int* version) {
    *version = 22703;
    return nccl::kSuccess;
  }
  static const char* error_string(NcclStatus status) {
    constexpr const char* kTexts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "in progress",
                                      "timeout"};
    return kTexts[status];
  }
  static const char* last_error(NcclComm) { return ""; }

  // ---- communicators ----

  static NcclStatus get_unique_id(NcclUniqueId* id) {
    if (const auto status = machine().take_failure("ncclGetUniqueId"); status != nccl::kSuccess) return status;
    const std::lock_guard lock(machine().mutex_);
    const std::uint64_t number = ++machine().num_ids_;
    *id = {};
    std::memcpy(id->bytes, &number, sizeof number);
    return nccl::kSuccess;
  }

  static NcclStatus comm_init(NcclComm* out, int num_ranks, NcclUniqueId id, int rank, NcclConfig* config) {
    if (const auto status = machine().take_failure("ncclCommInitRankConfig"); status != nccl::kSuccess) return status;
    if (config->magic != 0xcafebeef || config->size < 24) return nccl::kInvalidArgument;
    if (config->blocking != 0) return machine().refuse(nccl::kInvalidUsage, "a communicator that blocks");
    if (rank < 0 || rank >= num_ranks) return nccl::kInvalidArgument;
    const int device = FakeCuda::machine().current_device();
    if (device < 0) return machine().refuse(nccl::kUnhandledCudaError, "a communicator without a current device");
    std::uint64_t number = 0;
    std::memcpy(&number, id.bytes, sizeof number);
    std::unique_lock lock(machine().mutex_);
    machine().read_settings(*config);
    machine().init_.wait(lock, [] { return !machine().hold_init_; });
    if (number == 0 || number > machine().num_ids_) return nccl::kInvalidArgument;
    auto& clique = machine().cliques_[number];
    if (clique == nullptr) clique = std::make_shared<FakeClique>(num_ranks, [](std::string what) { machine().violation(std::move(what)); });
    if (clique->num_ranks() != num_ranks) return nccl::kInvalidUsage;
    for (const auto& [handle, other] : machine().comms_) {
      if (other->clique == clique && other->member.rank == rank) return nccl::kInvalidUsage;
    }
    const auto comm = std::make_shared<FakeComm>();
    comm->clique = clique;
    comm->member.rank = rank;
    comm->device = device;
    comm->number = number;
    machine().comms_[comm.get()] = comm;
    *out = comm.get();
    return nccl::kInProgress;
  }

  // With the machine's mutex: whether all ranks are there, and each has a device of its own.
  static NcclStatus connecting(const FakeComm& comm) {
    if (machine().hang_) return nccl::kInProgress;
    std::vector<int> devices;
    for (const auto& [handle, other] : machine().comms_) {
      if (other->clique == comm.clique) devices.push_back(other->device);
    }
    std::sort(devices.begin(), devices.end());
    if (std::adjacent_find(devices.begin(), devices.end()) != devices.end()) return nccl::kInvalidUsage;
    return comm.connected || devices.size() == static_cast<std::size_t>(comm.clique->num_ranks()) ? nccl::kSuccess : nccl::kInProgress;
  }

  static NcclStatus comm_async_error(NcclComm handle, NcclStatus* status) {
    if (depth > 0) return machine().refuse(nccl::kInvalidUsage, "ncclCommGetAsyncError inside a group: ncclGroupEnd is missing");
    const auto comm = find(handle, "ncclCommGetAsyncError");
    if (comm == nullptr) return nccl::kInvalidArgument;
    std::vector<FakeOperation> launched;
    {
      const std::lock_guard lock(machine().mutex_);
      if (comm->state == nccl::kInProgress) {
        if (!comm->connected) {
          comm->state = connecting(*comm);
          for (auto& [other_handle, other] : machine().comms_) {
            if (comm->state != nccl::kSuccess || other->clique != comm->clique || other->connected) continue;
            other->connected = true;  // its ranks have met: this holds for all of them, also once one of them is gone
            other->state = nccl::kSuccess;
          }
        } else if (comm->finalized) {
          if (comm->clique->num_running(comm->member) == 0) comm->state = nccl::kSuccess;
        } else if (!machine().connects(*comm) && ++comm->polls >= machine().launching_poll_) {
          comm->state = nccl::kSuccess;
          ++comm->num_launched;
          launched = std::exchange(comm->begun, {});
        }
      }
      *status = comm->state;
    }
    if (!launched.empty()) launch(comm, std::move(launched));
    return nccl::kSuccess;
  }

  static void launch(const std::shared_ptr<FakeComm>& comm, std::vector<FakeOperation> operations) {
    auto& member = comm->member;
    const auto first = member.num_collectives;
    member.num_collectives +=
        static_cast<std::uint64_t>(std::count_if(operations.begin(), operations.end(), [](auto& o) { return !o.message(); }));
    comm->clique->count_running(member, 1);
    const auto stream = operations.front().stream;
    FakeCuda::machine().enqueue(stream,
                                [comm, first, operations = std::move(operations)] { comm->clique->run(comm->member, first, operations); });
  }

  static NcclStatus comm_finalize(NcclComm handle) {
    const auto comm = find(handle, "ncclCommFinalize");
    if (comm == nullptr) return nccl::kInvalidArgument;
    const std::lock_guard lock(machine().mutex_);
    comm->finalized = true;
    comm->state = nccl::kInProgress;
    return nccl::kInProgress;
  }
  static NcclStatus comm_destroy(NcclComm handle) {
    const auto comm = find(handle, "ncclCommDestroy");
    if (comm == nullptr) return nccl::kInvalidArgument;
    const std::lock_guard lock(machine().mutex_);
    if (!comm->finalized || comm->state != nccl::kSuccess) {
      machine().violations_.push_back("ncclCommDestroy of a communicator that is not finalized");
      return nccl::kInvalidUsage;
    }
    machine().comms_.erase(handle);
    machine().ended_.push_back(comm);
    return nccl::kSuccess;
  }
  static NcclStatus comm_abort(NcclComm handle) {
    if (depth > 0) machine().violation("ncclCommAbort inside a group: ncclGroupEnd is missing");
    const auto comm = find(handle, "ncclCommAbort");
    if (comm == nullptr) return nccl::kInvalidArgument;
    comm->clique->abort(comm->member);
    const std::lock_guard lock(machine().mutex_);
    machine().comms_.erase(handle);
    machine().ended_.push_back(comm);
    machine().ends_.notify_all();
    return nccl::kSuccess;
  }

  // ---- operations ----

  static NcclStatus group_start() {
    ++depth;
    return nccl::kSuccess;
  }
  static NcclStatus group_end() {
    if (depth == 0) return machine().refuse(nccl::kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--depth > 0) return nccl::kSuccess;
    const auto calls = std::exchange(grouped, {});
    if (const auto status = machine().take_failure("ncclGroupEnd"); status != nccl::kSuccess) return status;
    std::unique_lock lock(machine().mutex_);
    std::set<NcclComm> group;
    for (const auto& [handle, operation] : calls) group.insert(handle);
    for (const auto& handle : group) {
      if (machine().comms_.at(handle)->device != machine().blocked_device_) continue;
      ++machine().num_blocked_;
      machine().ends_.wait(lock, [&, handle = handle] { return machine().comms_.count(handle) == 0; });
      --machine().num_blocked_;
      return nccl::kUnhandledCudaError;
    }
    for (const auto& handle : group) machine().note_issue(*machine().comms_.at(handle), group);
    for (const auto& [handle, operation] : calls) {
      auto& comm = *machine().comms_.at(handle);
      if (!comm.begun.empty() && comm.begun.front().stream != operation.stream) {
        machine().violations_.push_back("a group with two streams for one communicator");
        return nccl::kInvalidUsage;
      }
      comm.begun.push_back(operation);
      comm.state = nccl::kInProgress;
      comm.polls = 0;
    }
    return calls.empty() ? nccl::kSuccess : nccl::kInProgress;
  }

  static NcclStatus check(const FakeComm& comm, const FakeOperation& operation, const char* function) {
    bool in_progress = false, finalized = false;
    {
      const std::lock_guard lock(machine().mutex_);
      in_progress = comm.state == nccl::kInProgress;
      finalized = comm.finalized;
    }
    if (in_progress) return machine().refuse(nccl::kInvalidUsage, fmt::format("{} before the call before it has ended", function));
    if (finalized) return machine().refuse(nccl::kInvalidUsage, fmt::format("{} after ncclCommFinalize", function));
    const int world = comm.clique->num_ranks(), rank = comm.member.rank;
    const int device = FakeCuda::machine().device_of(operation.stream);
    if (device != comm.device)
      return machine().refuse(nccl::kInvalidUsage, fmt::format("{} on a stream of device {}, not {}", function, device, comm.device));
    if (operation.other >= world || (operation.message() && operation.other < 0)) return nccl::kInvalidArgument;
    const auto n = static_cast<std::size_t>(world);
    const std::size_t bytes = operation.bytes();
    const bool reads = operation.kind != Kind::kReceive && (operation.kind != Kind::kBroadcast || operation.other == rank);
    const bool writes = operation.kind != Kind::kSend && (operation.kind != Kind::kReduce || operation.other == rank);
    const std::size_t in = bytes * (operation.kind == Kind::kReduceScatter ? n : 1),
                      out = bytes * (operation.kind == Kind::kAllGather ? n : 1);
    const auto& cuda = FakeCuda::machine();
    if ((reads && !cuda.on_device(operation.input, in, device)) || (writes && !cuda.on_device(operation.output, out, device)))
      return machine().refuse(nccl::kInvalidArgument, fmt::format("{} with a buffer that is not memory of device {}", function, device));
    return nccl::kSuccess;
  }

  static NcclStatus call(NcclComm handle, FakeOperation operation, const char* function) {
    const auto comm = find(handle, function);
    if (comm == nullptr) return nccl::kInvalidArgument;
    if (const auto status = machine().take_failure(function); status != nccl::kSuccess) return status;
    if (const auto status = check(*comm, operation, function); status != nccl::kSuccess) return status;
    if (operation.count == 0) return nccl::kSuccess;
    (void)group_start();
    grouped.emplace_back(handle, operation);
    return group_end();
  }

  static NcclStatus all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm, CudaStream stream) {
    return call(comm, {Kind::kAllGather, in, out, count, type, 0, -1, stream}, "ncclAllGather");
  }
  static NcclStatus reduce_scatter(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                                   CudaStream stream) {
    return call(comm, {Kind::kReduceScatter, in, out, count, type, op, -1, stream}, "ncclReduceScatter");
  }
  static NcclStatus all_reduce(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm, CudaStream stream) {
    return call(comm, {Kind::kAllReduce, in, out, count, type, op, -1, stream}, "ncclAllReduce");
  }
  static NcclStatus reduce(const void* in, void* out, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm,
                           CudaStream stream) {
    return call(comm, {Kind::kReduce, in, out, count, type, op, root, stream}, "ncclReduce");
  }
  static NcclStatus broadcast(const void* in, void* out, std::size_t count, NcclType type, int root, NcclComm comm, CudaStream stream) {
    return call(comm, {Kind::kBroadcast, in, out, count, type, 0, root, stream}, "ncclBroadcast");
  }
  static NcclStatus send(const void* data, std::size_t count, NcclType type, int to, NcclComm comm, CudaStream stream) {
    return call(comm, {Kind::kSend, data, nullptr, count, type, 0, to, stream}, "ncclSend");
  }
  static NcclStatus receive(void* data, std::size_t count, NcclType type, int from, NcclComm comm, CudaStream stream) {
    return call(comm, {Kind::kReceive, nullptr, data, count, type, 0, from, stream}, "ncclRecv");
  }
};

const NcclApi& FakeNccl::api() const {
  using F = FakeNcclFunctions;
  static const NcclApi table{.path = "the fake",
                             .version = 22703,
                             .get_version = F::get_version,
                             .error_string = F::error_string,
                             .last_error = F::last_error,
                             .get_unique_id = F::get_unique_id,
                             .comm_init = F::comm_init,
                             .comm_async_error = F::comm_async_error,
                             .comm_finalize = F::comm_finalize,
                             .comm_destroy = F::comm_destroy,
                             .comm_abort = F::comm_abort,
                             .group_start = F::group_start,
                             .group_end = F::group_end,
                             .all_gather = F::all_gather,
                             .reduce_scatter = F::reduce_scatter,
                             .all_reduce = F::all_reduce,
                             .reduce = F::reduce,
                             .broadcast = F::broadcast,
                             .send = F::send,
                             .receive = F::receive};
  return table;
}

}  // namespace shoal::runtime
