// closer.h - closes descriptors that came from other processes, in threads of its own.
// SPDX-License-Identifier: Apache-2.0
//
// close() of what another process has made takes as long as that process likes: a socket with
// SO_LINGER and unsent data sleeps for the time that its maker chose, a file of FUSE until its
// server answers, and a Unix socket closes all descriptors in the messages that nobody has read.
// So the daemon's thread closes none of them. It hands them in here, by way of UniqueFd, which
// knows whose they are (kit/fd.h).
//
//   UniqueFd --CloseElsewhere()--> queue of that uid --> one thread for each uid that has a queue
//
// A thread serves one uid at a time, and no uid has two: closes of one uid that are stuck hold up
// that uid alone. Each thread is interrupted by a timer while it closes, which ends a socket's
// linger (the kernel sends what is unsent all the same). FUSE can't be interrupted.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace postern::daemon {

void CloseElsewhere(int fd, uid_t from);
// A socket of TCP, here and now: by the time that this returns its port is free. The same timer
// ends its linger.
void CloseTcp(int fd);

// For tests that count descriptors: until all that was handed in is closed.
void AwaitCloses();

enum class CloserRoom : uint8_t {
  kThere,
  kLater,  // so many wait to be closed that this uid's next message should wait, too
  kNone,   // and the close that is under way is stuck: refuse what carries descriptors
};
// What is to be done about the next message of this uid.
CloserRoom RoomToClose(uid_t from);

}  // namespace postern::daemon
