// Interposed calls of the C library, for tests of verdicts: a disk that is slow, and a time of day that jumps.
//
// A process under LD_PRELOAD looks for the files that the variables name. Once TROUBLES_SLOW exists, each fsync of rank TROUBLES_RANK
// takes its number of milliseconds more. Once TROUBLES_CLOCK exists, the time of day is its number of seconds later.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// The number in the file that a variable names; 0 without it.
long number_in(const char* variable) {
  const char* const path = getenv(variable);
  FILE* const file = path == nullptr ? nullptr : std::fopen(path, "re");
  if (file == nullptr) return 0;
  long out = 0;
  if (std::fscanf(file, "%ld", &out) != 1) out = 0;
  std::fclose(file);
  return out;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  const char *const rank = getenv("RANK"), *const slow = getenv("TROUBLES_RANK");
  if (rank != nullptr && slow != nullptr && std::strcmp(rank, slow) == 0)
    usleep(static_cast<useconds_t>(1000 * number_in("TROUBLES_SLOW")));
  return real(fd);
}

int clock_gettime(clockid_t clock, timespec* out) {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int code = real(clock, out);
  if (code == 0 && clock == CLOCK_REALTIME) out->tv_sec += number_in("TROUBLES_CLOCK");
  return code;
}

int gettimeofday(timeval* __restrict out, void* __restrict zone) {
  static auto* const real = next<int(timeval*, void*)>("gettimeofday");
  const int code = real(out, zone);
  if (code == 0) out->tv_sec += number_in("TROUBLES_CLOCK");
  return code;
}

time_t time(time_t* out) {
  static auto* const real = next<time_t(time_t*)>("time");
  const time_t now = real(nullptr) + number_in("TROUBLES_CLOCK");
  if (out != nullptr) *out = now;
  return now;
}

}  // extern "C"
