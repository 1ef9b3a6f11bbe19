// Linked into tests that are marked as single-threaded: takes the place of the C library's function.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs("this test creates a thread: declare it as cc_test, not as single_threaded_test, so that it runs under TSan\n", stderr);
  std::abort();
}
