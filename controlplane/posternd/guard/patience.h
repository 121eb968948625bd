// patience.h - questions to the kernel that another user can keep from being answered.
// SPDX-License-Identifier: Apache-2.0
//
// Locks of the kernel are held over an access to the memory of the process whose call it is: a
// socket's during setsockopt() or send(), an inode's during write(), a process's address space
// during a page fault. That access takes as long as its page, which may be of a file system that
// the same user serves. Whoever asks something that takes the same lock sleeps for as long, and can
// not be woken: getsockname() of a socket, pwrite() to a memfd, /proc/PID/maps.
//
// So what is another user's is asked in a thread of its own, for which the daemon's thread waits as
// long as it works, and no longer. A user whose questions get stuck is not asked for a while.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace postern::daemon {

// Runs `work`. False: it does not come to an end, or `whose` user's did not lately, or too many
// threads are stuck; it may run, then, or come to its end later, and must own what it uses. Of the
// daemon's own user, and of root, it is done here. For the event loop's thread.
bool DoneInTime(uid_t whose, std::function<void()> work);

// What `ask` returns; nothing: as above.
template <typename Ask>
auto AnswerInTime(uid_t whose, Ask ask) {
  using Answer = decltype(ask());
  const auto place = std::make_shared<std::optional<Answer>>();
  const bool done = DoneInTime(whose, [place, ask = std::move(ask)] { *place = ask(); });
  return done ? std::move(*place) : std::nullopt;
}

// getsockname() of a socket that this user has sent: 0 or -errno; -EBUSY: it does not answer.
int SocketName(int fd, uid_t whose, sockaddr_storage& name, socklen_t& size);

}  // namespace postern::daemon
