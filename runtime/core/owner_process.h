// The process that made an object. A child that it forks inherits a copy of the object, but neither threads nor a use of its connections.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace shoal {

// To be a field of that object.
class OwnerProcess {
 public:
  OwnerProcess() : pid_(::getpid()) {}
  // True in a child that was forked after the object was made.
  bool forked() const { return ::getpid() != pid_; }

 private:
  pid_t pid_;
};

}  // namespace shoal
