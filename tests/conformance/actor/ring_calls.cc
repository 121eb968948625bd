// SPDX-License-Identifier: Apache-2.0
// ring_calls.cc - see ring_calls.h.
#include "ring_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "ring_way.h"

namespace conform::by {
namespace {

// Of newer kernels' interfaces (include/uapi/linux/io_uring.h).
constexpr uint8_t kOpSocket = 45, kOpSendZc = 47, kOpBind = 56, kOpListen = 57, kOpEpollWait = 59;
constexpr uint64_t kMain = 1, kOther = 2;
constexpr int kWithinMs = 20;

struct How {
  bool ring = false, fixed = false, sqpoll = false, async = false, link = false, zc = false;
  int within_ms = -1;
};
thread_local How how;
thread_local std::string how_words = "libc";  // what that is

void Set(const std::string& words) {
  const std::string all = "," + words + ",";
  const auto is = [&](const char* word) { return all.find(word) != all.npos; };
  how_words = words;
  how = {.ring = !is(",libc,"),
         .fixed = is(",fixed,"),
         .sqpoll = is(",sqpoll,"),
         .async = is(",async,"),
         .link = is(",link,"),
         .zc = is(",zc,"),
         .within_ms = is(",within,") ? kWithinMs : -1};
}

// A child of fork() makes its own.
struct Rings {
  std::unique_ptr<Way> one[2];  // the second with a thread of the kernel's
  pid_t owner = 0;
  Way* Get(bool sqpoll) {
    if (owner != getpid()) {
      for (auto& ring : one) (void)ring.release();  // the parent's
      owner = getpid();
    }
    auto& ring = one[sqpoll ? 1 : 0];
    if (ring == nullptr) ring = Way::Make(sqpoll ? IORING_SETUP_SQPOLL : 0);
    return ring.get();
  }
};
thread_local Rings rings;

void Cancel(Way* ring) {
  io_uring_sqe* const entry = ring->Next();
  entry->opcode = IORING_OP_ASYNC_CANCEL;
  entry->fd = -1;
  entry->addr = kMain;
  entry->user_data = kOther;
}

// Submits what there is, and waits for `ends` ends of entries. `seen` is given those of the main
// entry; when it says so, or a signal comes, that is cancelled.
void WaitFor(Way* ring, unsigned ends, const std::function<bool(const io_uring_cqe&)>& seen) {
  bool cancelled = false;
  const auto cancel = [&] {
    if (cancelled) return;
    cancelled = true;
    Cancel(ring);
    ends++;
  };
  int r = ring->Submit(1);
  while (ends > 0) {
    io_uring_cqe end;
    while (ends > 0 && ring->Take(&end)) {
      if ((end.flags & IORING_CQE_F_MORE) == 0) ends--;
      if (end.user_data == kMain && !seen(end)) cancel();
    }
    if (r == -EINTR) cancel();
    if (ends > 0) r = ring->Submit(1);
  }
}

// What comes before the entry, and after it.
unsigned Queue(Way* ring, const io_uring_sqe& request, int ms) {
  unsigned ends = 1;
  if (how.link) {
    io_uring_sqe* const before = ring->Next();
    before->opcode = IORING_OP_NOP;
    before->fd = -1;
    before->flags = IOSQE_IO_LINK;
    before->user_data = kOther;
    ends++;
  }
  io_uring_sqe* const entry = ring->Next();
  *entry = request;
  entry->user_data = kMain;
  if (how.async) entry->flags |= IOSQE_ASYNC;
  if (ms < 0) return ends;
  static thread_local __kernel_timespec time;
  time = {ms / 1000, ms % 1000 * 1000000LL};
  entry->flags |= IOSQE_IO_LINK;
  io_uring_sqe* const after = ring->Next();
  after->opcode = IORING_OP_LINK_TIMEOUT;
  after->fd = -1;
  after->addr = reinterpret_cast<uint64_t>(&time);
  after->len = 1;
  after->user_data = kOther;
  return ends + 1;
}

bool IsOfFile(uint8_t op) { return op != kOpSocket && op != IORING_OP_CLOSE; }

int All(io_uring_sqe request, int ms, const std::function<bool(const io_uring_cqe&)>& next) {
  Way* const ring = rings.Get(how.sqpoll);
  if (ring == nullptr) return -errno;
  const bool fixed = how.fixed && IsOfFile(request.opcode);
  if (fixed) {
    int fd = request.fd;
    const int r = ring->Register(IORING_REGISTER_FILES, &fd, 1);
    if (r < 0) return r;
    request.fd = 0;
    request.flags |= IOSQE_FIXED_FILE;
  }
  int result = 0;
  WaitFor(ring, Queue(ring, request, ms), [&](const io_uring_cqe& end) {
    if ((end.flags & IORING_CQE_F_NOTIF) != 0) return true;
    result = end.res;
    return next(end);
  });
  if (fixed) (void)ring->Register(IORING_UNREGISTER_FILES, nullptr, 0);
  return result;
}

int Do(const io_uring_sqe& request, int ms) {
  return All(request, ms, [](const io_uring_cqe&) { return true; });
}

long Result(const io_uring_sqe& request) {
  const int r = Do(request, how.within_ms);
  if (r >= 0) return r;
  errno = -r;
  return -1;
}

io_uring_sqe Request(uint8_t op, int fd, const void* at = nullptr, size_t bytes = 0) {
  io_uring_sqe request{};
  request.opcode = op;
  request.fd = fd;
  request.addr = reinterpret_cast<uint64_t>(at);
  request.len = static_cast<uint32_t>(bytes);
  return request;
}

io_uring_sqe AtPosition(uint8_t op, int fd, const void* at, size_t bytes) {
  io_uring_sqe request = Request(op, fd, at, bytes);
  request.off = ~0ull;
  return request;
}

io_uring_sqe WithFlags(io_uring_sqe request, int flags) {
  request.msg_flags = static_cast<uint32_t>(flags);
  return request;
}

}  // namespace

With::With(const std::string& words) : before_(how_words) { Set(words); }
With::~With() { Set(before_); }

int Socket(int domain, int type, int protocol) {
  if (!how.ring) return socket(domain, type, protocol);
  io_uring_sqe request = Request(kOpSocket, domain, nullptr, static_cast<size_t>(protocol));
  request.off = static_cast<decltype(request.off)>(type);
  return static_cast<int>(Result(request));
}

int Bind(int fd, const sockaddr* name, socklen_t len) {
  if (!how.ring) return bind(fd, name, len);
  io_uring_sqe request = Request(kOpBind, fd, name);
  request.off = len;
  return static_cast<int>(Result(request));
}

int Listen(int fd, int backlog) {
  if (!how.ring) return listen(fd, backlog);
  return static_cast<int>(Result(Request(kOpListen, fd, nullptr, static_cast<size_t>(backlog))));
}

int Connect(int fd, const sockaddr* name, socklen_t len) {
  if (!how.ring) return connect(fd, name, len);
  io_uring_sqe request = Request(IORING_OP_CONNECT, fd, name);
  request.off = len;
  return static_cast<int>(Result(request));
}

int Accept(int fd, sockaddr* name, socklen_t* len, int flags) {
  if (!how.ring) return accept4(fd, name, len, flags);
  io_uring_sqe request = Request(IORING_OP_ACCEPT, fd, name);
  request.addr2 = reinterpret_cast<uint64_t>(len);
  request.accept_flags = static_cast<uint32_t>(flags);
  return static_cast<int>(Result(request));
}

int Shutdown(int fd, int what) {
  if (!how.ring) return shutdown(fd, what);
  return static_cast<int>(
      Result(Request(IORING_OP_SHUTDOWN, fd, nullptr, static_cast<size_t>(what))));
}

int Close(int fd) {
  return how.ring ? static_cast<int>(Result(Request(IORING_OP_CLOSE, fd))) : close(fd);
}

ssize_t Send(int fd, const void* data, size_t bytes, int flags) {
  if (!how.ring) return send(fd, data, bytes, flags);
  const uint8_t op = how.zc ? kOpSendZc : static_cast<uint8_t>(IORING_OP_SEND);
  return Result(WithFlags(Request(op, fd, data, bytes), flags));
}

ssize_t Recv(int fd, void* data, size_t bytes, int flags) {
  if (!how.ring) return recv(fd, data, bytes, flags);
  return Result(WithFlags(Request(IORING_OP_RECV, fd, data, bytes), flags));
}

ssize_t Write(int fd, const void* data, size_t bytes) {
  if (!how.ring) return write(fd, data, bytes);
  return Result(AtPosition(IORING_OP_WRITE, fd, data, bytes));
}

ssize_t Read(int fd, void* data, size_t bytes) {
  if (!how.ring) return read(fd, data, bytes);
  return Result(AtPosition(IORING_OP_READ, fd, data, bytes));
}

ssize_t Writev(int fd, const iovec* pieces, int count) {
  if (!how.ring) return writev(fd, pieces, count);
  return Result(AtPosition(IORING_OP_WRITEV, fd, pieces, static_cast<size_t>(count)));
}

ssize_t Readv(int fd, const iovec* pieces, int count) {
  if (!how.ring) return readv(fd, pieces, count);
  return Result(AtPosition(IORING_OP_READV, fd, pieces, static_cast<size_t>(count)));
}

ssize_t Sendmsg(int fd, const msghdr* message, int flags) {
  if (!how.ring) return sendmsg(fd, message, flags);
  return Result(WithFlags(Request(IORING_OP_SENDMSG, fd, message, 1), flags));
}

ssize_t Recvmsg(int fd, msghdr* message, int flags) {
  if (!how.ring) return recvmsg(fd, message, flags);
  return Result(WithFlags(Request(IORING_OP_RECVMSG, fd, message, 1), flags));
}

ssize_t Splice(int from, int to, size_t bytes, unsigned flags) {
  if (!how.ring) return splice(from, nullptr, to, nullptr, bytes, flags);
  io_uring_sqe request = AtPosition(IORING_OP_SPLICE, to, nullptr, bytes);
  request.splice_off_in = ~0ull;
  request.splice_fd_in = from;
  request.splice_flags = flags;
  return Result(request);
}

int Poll(pollfd* fds, nfds_t count, int ms) {
  if (!how.ring || count != 1 || fds->fd < 0) return poll(fds, count, ms);
  how.async = false;  // with no time to wait it would be cancelled before it has looked
  io_uring_sqe request = Request(IORING_OP_POLL_ADD, fds->fd);
  request.poll32_events = static_cast<uint16_t>(fds->events);
  const int r = Do(request, ms);
  fds->revents = static_cast<short>(r == -EBADF ? POLLNVAL : r > 0 ? r : 0);
  if (r >= 0 || r == -EBADF) return 1;
  errno = -r;
  return r == -ECANCELED ? 0 : -1;
}

int EpollCtl(int set, int operation, int fd, epoll_event* event) {
  if (!how.ring) return epoll_ctl(set, operation, fd, event);
  io_uring_sqe request = Request(IORING_OP_EPOLL_CTL, set, event, static_cast<size_t>(operation));
  request.off = static_cast<decltype(request.off)>(fd);
  return static_cast<int>(Result(request));
}

int EpollWait(int set, epoll_event* events, int room, int ms) {
  if (!how.ring) return epoll_wait(set, events, room, ms);
  how.async = false;
  const int r = Do(Request(kOpEpollWait, set, events, static_cast<size_t>(room)), ms);
  if (r >= 0) return r;
  errno = -r;
  return r == -ECANCELED ? 0 : -1;
}

int Repeatedly(const io_uring_sqe& entry, const std::function<bool(const io_uring_cqe&)>& next) {
  return All(entry, -1, next);
}

int Once(const io_uring_sqe& entry) { return Do(entry, -1); }

void ForgetRings() {
  if (rings.owner != getpid()) return;
  for (auto& ring : rings.one) ring.reset();
}

}  // namespace conform::by
