// SPDX-License-Identifier: Apache-2.0
// one_thread.cc - for programs that no build with ThreadSanitizer runs: it refuses threads. Without
// any there is no race between them to find, and what else that sanitizer sees, ASan sees too.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

// The program's own comes before libc's, for libstdc++ and for a sanitizer as well.
extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  fputs("a thread in a program of one thread: tests with threads are in the list of unit_threads\n", stderr);
  abort();
}
