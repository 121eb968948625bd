// here.cc - limits and sandboxes that a command without a network of its own never notices.
// SPDX-License-Identifier: Apache-2.0
#include "here.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "abi/postern_abi.h"
#include "base/space/room.h"

namespace postern::wrapper {
namespace {

bool HasUnixSockets() {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// The loader complains of a library that it may not map.
bool IsExecutable(const std::string& library) {
  struct statvfs place {};
  return statvfs(library.c_str(), &place) != 0 || (place.f_flag & ST_NOEXEC) == 0;
}

// What posternd needs to serve a few programs.
constexpr rlim_t kDescriptors = 256;

rlim_t DescriptorsMax() {
  rlimit limit = {kDescriptors, kDescriptors};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_max;
}

}  // namespace

std::string WhyNotHere(const std::string& library) {
  if (access("/proc/self/stat", R_OK) != 0) return "there is no /proc";
  if (!IsExecutable(library)) return library + " is where nothing may be executed";
  if (!HasUnixSockets()) return "Unix sockets are denied";
  if (DescriptorsMax() < kDescriptors) return "RLIMIT_NOFILE is too low";
  // Memory that is shared counts as a file.
  if (FileRoom() < PSTN_LGR_BYTES) return "RLIMIT_FSIZE is too low";
  if (!AddressesLeft().HoldAStack()) return "RLIMIT_AS is too low";
  return "";
}

}  // namespace postern::wrapper
