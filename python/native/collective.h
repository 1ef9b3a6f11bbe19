// A Communicator for Python, with its memory of the node, if any.
#pragma once

#include <memory>
#include <string>

#include "actors/session/node_memory.h"
#include "python/native/session/session.h"
#include "runtime/transport/communicator.h"

namespace shoal::python {

class PyCommunicator {
 public:
  PyCommunicator(std::shared_ptr<runtime::Communicator> communicator, std::shared_ptr<actors::NodeMemory> memory)
      : communicator_(std::move(communicator)), memory_(std::move(memory)) {}

  // For ranks that share the node's memory.
  static std::unique_ptr<PyCommunicator> place(PySession& session, const std::string& gang, int rank, int world_size, double timeout,
                                               double warn_after, bool spins);
  // For ranks whose bytes a Python object moves (shoal._process_group).
  static std::unique_ptr<PyCommunicator> over(nb::object mover, int rank, int world_size, const std::string& transport);

  runtime::Communicator& get() const { return *communicator_; }
  const std::shared_ptr<runtime::Communicator>& shared() const { return communicator_; }
  std::unique_ptr<PyCommunicator> reform() const;
  // The session closes: the node gets nothing back afterwards.
  void close();

 private:
  std::shared_ptr<runtime::Communicator> communicator_;
  std::shared_ptr<actors::NodeMemory> memory_;
};

}  // namespace shoal::python
