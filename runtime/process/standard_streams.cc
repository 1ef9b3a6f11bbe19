#include "runtime/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace shoal::runtime {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Gets the lowest free number; without O_CLOEXEC, because children inherit standard streams.
    const int opened = open("/dev/null", O_RDWR);
    if (opened > 2) close(opened);  // another thread has taken the number meanwhile
  }
}

}  // namespace shoal::runtime
