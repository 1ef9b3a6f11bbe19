// How ranks on several hosts reach each other: what Python chooses, and the network of messages made from it.
#pragma once

#include <string>

#include "actors/session/folder/credentials.h"
#include "python/native/transport/py_backend.h"
#include "runtime/transport/choice/make_message_layer.h"

namespace shoal::python {

// A rank's choices; shoal._distributed.ranks makes them from the environment.
struct PyNetwork {
  std::string kind;         // as in MessageNetwork, or the name of a torch backend, "gloo", that moves the bytes between hosts instead
  std::string interface;    // as in MessageNetwork
  std::string host;         // as in MessageNetwork; empty: this host's address in its cluster
  bool sealed = false;      // all ranks have the token of one cluster, with which their exchanges are encrypted
  std::string ucx_library;  // as in MessageNetwork
  double unanswered = 0;    // seconds; as in MessageNetwork
};

// `call`: as in make_py_exchange; it outlives the network.
runtime::MessageNetwork message_network(const actors::Credentials& credentials, int rank, int world_size, const PyNetwork& network,
                                        const PyExchange& call, const std::string& name);

}  // namespace shoal::python
