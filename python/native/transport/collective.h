// A Communicator for Python.
#pragma once

#include <memory>
#include <string>

#include "python/native/session/session.h"
#include "python/native/transport/network.h"
#include "runtime/transport/communicator.h"

namespace shoal::python {

// The memory that a group's collectives take: of the host, or of the CUDA device with this number in its process.
struct PyDevice {
  std::string transport;  // "": of the host; else "nccl" or "cuda_ipc"
  int number = 0;
  std::string kernels;  // the image of the kernels that reduce, for "cuda_ipc"; empty: this build's
};

class PyCommunicator {
 public:
  explicit PyCommunicator(std::shared_ptr<runtime::Communicator> communicator) : communicator_(std::move(communicator)) {}

  // Chooses the transport (runtime/transport/choice/make_communicator.h): shared memory, else messages, else the Python object that
  // `open_backend` makes (shoal._distributed.process_group), named `backend`. `exchange`: as in make_py_exchange; `network.kind`: may name
  // the backend. With a device's transport, the hosts agree over the transport so chosen.
  static std::unique_ptr<PyCommunicator> make(PySession& session, const std::string& name, int rank, int world_size, bool shares_memory,
                                              nb::object exchange, const PyNetwork& network, const std::string& backend,
                                              nb::callable open_backend, double timeout, double warn_after, bool spins,
                                              const PyDevice& device);

  runtime::Communicator& get() const { return *communicator_; }
  const std::shared_ptr<runtime::Communicator>& shared() const { return communicator_; }
  std::unique_ptr<PyCommunicator> reform() const;

 private:
  std::shared_ptr<runtime::Communicator> communicator_;
};

}  // namespace shoal::python
