// listener_check.h - what a listening socket really is, asked of the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// This is what keeps a program from claiming a port that it does not have: the address that is
// published is the kernel socket's own, and holding that socket proves the right to it.
#pragma once
#include <sys/types.h>

#include <set>
#include <vector>

#include "directory.h"

namespace postern::daemon {

// Fills local, family, v6only, netns_ino, cookie and shares_port. 0; -ENOTSOCK or -EINVAL when it
// is not a listening TCP socket, or one of a single device; -EPERM when it is not, or not provably,
// in that network namespace (inode); -EBUSY when its user `whose` keeps it from answering.
int CheckListener(int fd, pid_t owner, uid_t whose, uint64_t netns, Listener& listener);

// Whether there is such a listener, of that user, in our network namespace; asked of sock_diag(7).
// 0, -ENOENT, or -errno. The one that the kernel finds at its address; or among all that listen,
// which takes as long as there are many.
int FindListener(const Listener& listener, uid_t uid);
int FindInList(const Listener& listener, uid_t uid);

// Whether the socket that is known by its cookie still listens, in our network namespace. 0;
// -ENOENT: no, whatever listens there now; or -errno: the kernel does not say.
int StillListens(const Listener& listener);

// The same of many, by their cookies: what is in neither the kernel does not say.
struct WhichListen {
  std::set<uint64_t> listening, ended;
};
WhichListen LookWhichListen(const std::vector<Listener>& all);

}  // namespace postern::daemon
