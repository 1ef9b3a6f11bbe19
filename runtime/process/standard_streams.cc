#include "runtime/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace shoal::runtime {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = open("/dev/null", O_RDWR);  // lowest free number; inherited by children like standard streams
    if (opened > 2) close(opened);                 // another thread took the number
  }
}

}  // namespace shoal::runtime
