// The transports under test: each has to pass collectives_test.cc and failures_test.cc.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// A group under test, each of whose ranks is a thread.
class TestGroup {
 public:
  virtual ~TestGroup() = default;
  // Makes a rank's communicator. The rank's thread calls it.
  virtual std::shared_ptr<Communicator> join(int rank) = 0;
  // Ends a rank, as the death of its process would.
  virtual void kill(int rank, const std::string& cause) = 0;
};

struct TestedTransport {
  std::string name;
  std::function<std::unique_ptr<TestGroup>(int world_size)> make;
  // kMessages: windows and reform() return Unimplemented. kNoWindows: only windows do.
  enum class Scope { kMessages, kNoWindows, kWhole } scope = Scope::kWhole;
  // False: the library below may end the process when connections are made anew, so failures are not tested in an ordinary run.
  bool fails_safely = true;
  bool checks_forks = true;    // true: refuses calls in a forked child; false where ranks are threads with common locks
  bool reduces_bits = true;    // false: bitwise reductions return Unimplemented
  bool takes_overlaps = true;  // false: an input overlaps its output only as NCCL permits
  std::string missing = {};    // the reason why this machine cannot run it, for skipped tests; empty: it can
};
std::ostream& operator<<(std::ostream& out, const TestedTransport& transport);

std::vector<TestedTransport> tested_transports();

// Runs `program` once per rank, each in its own thread with its own communicator.
void run_ranks(TestGroup& group, int world_size, const std::function<void(Communicator&)>& program);

// A tensor's memory as input or output of an operation.
inline std::span<const std::byte> in(const std::vector<float>& v) { return std::as_bytes(std::span(v)); }
inline std::span<std::byte> out(std::vector<float>& v) { return std::as_writable_bytes(std::span(v)); }

}  // namespace shoal::runtime
