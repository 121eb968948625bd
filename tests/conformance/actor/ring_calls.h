// SPDX-License-Identifier: Apache-2.0
// ring_calls.h - the calls that commands make: libc's, or under `ring HOW` the thread's own ring's.
// Results and errno are as libc has them.
#pragma once
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <string>

struct io_uring_sqe;
struct io_uring_cqe;

namespace conform::by {

// How this thread makes its calls, as a list of words: `libc`; or `ring`, fixed (the descriptor is
// a registered file), sqpoll (a thread of the kernel's takes the entries), async (another one makes
// the call), link (an entry before has to be done first), zc (without a copy), within (is ended
// after 20 ms). A signal ends what would go on.
class With {
 public:
  explicit With(const std::string& how);
  ~With();
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  const std::string before_;
};

int Socket(int domain, int type, int protocol);
int Bind(int fd, const sockaddr* name, socklen_t len);
int Listen(int fd, int backlog);
int Connect(int fd, const sockaddr* name, socklen_t len);
int Accept(int fd, sockaddr* name, socklen_t* len, int flags);
int Shutdown(int fd, int how);
int Close(int fd);
ssize_t Send(int fd, const void* data, size_t bytes, int flags);
ssize_t Recv(int fd, void* data, size_t bytes, int flags);
ssize_t Write(int fd, const void* data, size_t bytes);
ssize_t Read(int fd, void* data, size_t bytes);
ssize_t Writev(int fd, const iovec* pieces, int count);
ssize_t Readv(int fd, const iovec* pieces, int count);
ssize_t Sendmsg(int fd, const msghdr* message, int flags);
ssize_t Recvmsg(int fd, msghdr* message, int flags);
ssize_t Splice(int from, int to, size_t bytes, unsigned flags);
int Poll(pollfd* fds, nfds_t count, int ms);  // by a ring if it is one
int EpollCtl(int set, int operation, int fd, epoll_event* event);
int EpollWait(int set, epoll_event* events, int room, int ms);

// An entry that ends more than once. `next` is given each end until it says that it has enough, or
// there are no more: then the entry is cancelled. The last result.
int Repeatedly(const io_uring_sqe& entry, const std::function<bool(const io_uring_cqe&)>& next);
// One entry, as it is: its result, or -errno.
int Once(const io_uring_sqe& entry);

void ForgetRings();  // the thread's

}  // namespace conform::by
