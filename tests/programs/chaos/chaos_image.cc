// SPDX-License-Identifier: Apache-2.0
// chaos_image.cc - a stream goes on in another program: this one, started anew, or its static twin,
// which no preloaded library gets into.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "chaos.h"

namespace chaos {
namespace {

constexpr uint64_t kTwinSeldom = 4;  // what the twin gets leaves shared memory
constexpr int kSpawned = 100;        // the stream's number in a spawned program
constexpr size_t kTextBytes = 2 * sizeof(Stream) + 1;

char self[PATH_MAX], twin[PATH_MAX];  // twin: empty if it was not built

void ToText(const Stream& s, char* text) {
  const auto* from = reinterpret_cast<const unsigned char*>(&s);
  for (size_t i = 0; i < sizeof s; i++) snprintf(text + 2 * i, 3, "%02x", from[i]);
}

Stream FromText(const char* text) {
  Stream s{};
  auto* to = reinterpret_cast<unsigned char*>(&s);
  for (size_t i = 0; i < sizeof s; i++) {
    unsigned byte = 0;
    if (sscanf(text + 2 * i, "%2x", &byte) != 1) Bad(nullptr, "no stream", 0);
    to[i] = static_cast<unsigned char>(byte);
  }
  return s;
}

// An environment of the program's own making, as nginx makes one for its successor. A sanitizer
// needs its options.
char** BareEnvironment(char** room, size_t most) {
  size_t n = 0;
  for (char** e = environ; *e != nullptr && n + 1 < most; e++) {
    if (strstr(*e, "SAN_OPTIONS=") != nullptr) room[n++] = *e;
  }
  room[n] = nullptr;
  return room;
}

pid_t Spawn(const Stream& s, const char* path, char** argv, char** env, bool sweep) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (s.fd != kSpawned) {
    posix_spawn_file_actions_adddup2(&actions, s.fd, kSpawned);
    posix_spawn_file_actions_addclose(&actions, s.fd);
  }
  if (sweep) posix_spawn_file_actions_addclosefrom_np(&actions, kSpawned + 1);
  pid_t child = -1;
  const int error = posix_spawn(&child, path, &actions, nullptr, argv, env);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Bad(&s, "posix_spawn", error);
  return child;
}

// The child of vfork may share this memory: nothing is changed in it.
__attribute__((noinline)) pid_t ForkExec(const Stream& s, Start how, const char* path,
                                         char* const* argv, char* const* env) {
  const pid_t child = how == Start::kVfork ? vfork() : fork();
  if (child == 0) {
    execve(path, argv, env);
    _exit(3);
  }
  if (child < 0) Bad(&s, "fork", errno);
  return child;
}

}  // namespace

void KnowImages(const char* name) {
  if (realpath(name, self) == nullptr) Bad(nullptr, "where am I", errno);
  const int n = snprintf(twin, sizeof twin, "%s_static", self);
  if (n < 0 || static_cast<size_t>(n) >= sizeof twin || access(twin, X_OK) != 0) twin[0] = 0;
}

// A copy of the number that is closed by exec must not take the connection along.
bool ToImage(Stream& s, Start how) {
  char* room[64];
  char** env = Below(s.rng, 2) != 0 ? BareEnvironment(room, 64) : environ;
  const char* path = twin[0] != 0 && Below(s.rng, kTwinSeldom) == 0 ? twin : self;
  const bool sweep = Below(s.rng, 2) != 0;
  const int closed_by_exec = Below(s.rng, 2) != 0 ? fcntl(s.fd, F_DUPFD_CLOEXEC, 3) : -1;
  Stream there = s;
  if (how == Start::kSpawn) there.fd = kSpawned;
  char text[kTextBytes], role[] = "carry";
  ToText(there, text);
  char* argv[] = {const_cast<char*>(path), role, text, nullptr};
  pid_t child;
  if (how == Start::kSpawn) {
    if (fcntl(s.fd, F_SETFD, s.fd == kSpawned ? 0 : FD_CLOEXEC) != 0) Bad(&s, "F_SETFD", errno);
    child = Spawn(s, path, argv, env, sweep);
  } else {
    if (fcntl(s.fd, F_SETFD, 0) != 0) Bad(&s, "F_SETFD", errno);
    child = ForkExec(s, how, path, argv, env);
  }
  if (closed_by_exec >= 0) close(closed_by_exec);
  close(s.fd);
  AwaitChild(s, child);
  return true;
}

void Carry(const char* text) {
  Stream s = FromText(text);
  if (Below(s.rng, 2) != 0) StartSignals(s.rng);
  Exchange(s);
  _exit(0);
}

}  // namespace chaos
