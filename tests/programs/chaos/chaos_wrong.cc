// SPDX-License-Identifier: Apache-2.0
// chaos_wrong.cc - errors that are committed inside the library, through no fault of its own: what
// a sanitizer that is said to watch it has to report.
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "chaos.h"

namespace chaos {
namespace {

constexpr size_t kBytes = 64;

// Both ends of a connection to ourselves, with kBytes to read in the first.
void Pair(int ends[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t len = sizeof at;
  char bytes[kBytes] = {};
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), len) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&at), &len) != 0)
    Bad(nullptr, "listen", errno);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(ends[0], reinterpret_cast<sockaddr*>(&at), len) != 0) Bad(nullptr, "connect", errno);
  ends[1] = accept(listener, nullptr, nullptr);
  if (send(ends[1], bytes, kBytes, 0) != kBytes) Bad(nullptr, "send", errno);
}

// More is read than the buffer holds.
void Overrun() {
  int ends[2];
  Pair(ends);
  auto* small = static_cast<char*>(malloc(kBytes / 2));
  recv(ends[0], small, kBytes, 0);
  free(small);
}

// Two threads read into the same buffer.
void Race() {
  static char shared[kBytes];
  int a[2], b[2];
  Pair(a);
  Pair(b);
  std::thread other([&] { recv(a[0], shared, kBytes, 0); });
  recv(b[0], shared, kBytes, 0);
  other.join();
}

}  // namespace

bool DoWrong(const char* what) {
  const bool overrun = strcmp(what, "overrun") == 0;
  if (!overrun && strcmp(what, "race") != 0) return false;
  overrun ? Overrun() : Race();
  return true;
}

}  // namespace chaos
