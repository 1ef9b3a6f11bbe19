// A Communicator as Python holds it, with the node's memory that it uses, if any.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/session/node_memory.h"
#include "fsdp/shard/sharded_model.h"
#include "python/native/session.h"
#include "runtime/transport/communicator.h"

namespace shoal::python {

class PyCommunicator {
 public:
  PyCommunicator(std::shared_ptr<runtime::Communicator> communicator, std::shared_ptr<actors::NodeMemory> memory)
      : communicator_(std::move(communicator)), memory_(std::move(memory)) {}

  // Of ranks that share the node's memory.
  static std::unique_ptr<PyCommunicator> place(PySession& session, const std::string& gang, int rank, int world_size, double timeout,
                                               double warn_after, bool spins, std::vector<int> ranks);
  // Of ranks for whom a Python object moves bytes (shoal._process_group).
  static std::unique_ptr<PyCommunicator> over(nb::object mover, int rank, int world_size, const std::string& transport);

  runtime::Communicator& get() const { return *communicator_; }
  const std::shared_ptr<runtime::Communicator>& shared() const { return communicator_; }
  std::unique_ptr<PyCommunicator> reform() const;
  // The session closes: nothing is given back to it any more.
  void close();

 private:
  std::shared_ptr<runtime::Communicator> communicator_;
  std::shared_ptr<actors::NodeMemory> memory_;
};

// This process's sharded models learn where its program waits (ShardedModel::wait_elsewhere).
void add_waiting(std::weak_ptr<fsdp::ShardedModel> model);
Result<void> wait_elsewhere(int job_rank, const std::string& what);

}  // namespace shoal::python
