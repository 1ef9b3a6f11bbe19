// The process that made an object. A forked child inherits a copy of the object, but no threads, and must not use the object's connections.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace shoal {

// A field of an object that has to detect its use in a forked child.
class OwnerProcess {
 public:
  OwnerProcess() : pid_(::getpid()) {}
  // True in a child that was forked after the object was made.
  bool forked() const { return ::getpid() != pid_; }

 private:
  pid_t pid_;
};

}  // namespace shoal
