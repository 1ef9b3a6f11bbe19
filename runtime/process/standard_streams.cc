#include "runtime/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace shoal::runtime {

void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = open("/dev/null", O_RDWR);  // the lowest number that is free; inherited by children, as standard streams are
    if (opened > 2) close(opened);                 // another thread was sooner
  }
}

}  // namespace shoal::runtime
