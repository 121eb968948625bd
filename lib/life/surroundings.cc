// SPDX-License-Identifier: Apache-2.0
// surroundings.cc - see surroundings.h.
#include "life/surroundings.h"

#include <sys/prctl.h>
#include <sys/un.h>

#include <cerrno>

#include "base/space/room.h"
#include "base/sys.h"
#include "ctl/proto.h"
#include "family/open_fds.h"

namespace postern {
namespace {

// The stack, the sender of doorbells, the line to posternd, and what a few peers take.
constexpr uint64_t kNumbersNeeded = 64;

// Numbers of the library's are beyond the program's limit, or there are more than it will miss.
bool HasNumbers() {
  rlimit limit = {0, 0};
  (void)sys::Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), nullptr, &limit);
  if (limit.rlim_cur > sys::AboveLimit::kHighest) return true;
  if (limit.rlim_cur <= sys::AboveLimit::kSmall) {
    const sys::AboveLimit above;
    if (above.raised()) return true;
  }
  uint64_t open = 0;
  EachOpen([&](int) { open++; });
  return open + kNumbersNeeded <= limit.rlim_cur;
}

}  // namespace

const char* WhyNoStack(Family& fam) {
  if (!AddressesLeft().HoldAStack()) return "RLIMIT_AS leaves too little address space";
  if (!HasNumbers()) return "RLIMIT_NOFILE leaves too few descriptors";
  if (BellSender(fam.bells) < 0) return "it may have no Unix sockets";
  if (MayBeSandboxed() && !RingsOthers(fam)) return "its sandbox keeps it from other programs";
  return nullptr;
}

bool MayBeSandboxed() {
  return sys::Call(SYS_prctl, static_cast<long>(PR_GET_NO_NEW_PRIVS), 0L, 0L, 0L, 0L) == 1;
}

// posternd has such a name beside that of its socket.
bool RingsOthers(const Family& fam) {
  const int fd = sys::Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fd == -EMFILE || fd == -ENFILE;
  sockaddr_un a = {};
  const socklen_t len = ctl::AbstractName(fam.socket_path, a);
  const long r = sys::Call(SYS_connect, fd, &a, static_cast<long>(len));
  sys::Close(fd);
  return r != -EPERM && r != -EACCES;
}

}  // namespace postern
