// SPDX-License-Identifier: Apache-2.0
// mover.h - moves a known stream both ways over one descriptor, by one of several kinds of calls,
// and checks each byte.
#pragma once
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../../unit/kit/known_stream.h"

namespace postern {

struct Job {
  int fd;
  uint64_t out_seed, in_seed;
  uint64_t bytes;
  const char* how;  // block, direct, poll, epoll, uring, ping, pong
};

[[noreturn]] inline void Fail(const char* what, long r) {
  fprintf(stderr, "%d: %s: %ld, errno %d: %s\n", getpid(), what, r, errno, strerror(errno));
  exit(1);
}

// A system call of the program's own, which no library sees: a stranger's. A program with the
// library that has io_uring_setup among them would leave all its sockets to the kernel.
#if defined(LEVEL2_STRANGER)
inline long Direct(long n, long a, long b, long c) {
#if defined(__x86_64__)
  long r;
  asm volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  if (r < 0) errno = static_cast<int>(-r);
  return r < 0 ? -1 : r;
#else
  return syscall(n, a, b, c);
#endif
}
#endif
inline bool IsDirect(const Job& job) { return strcmp(job.how, "direct") == 0; }
inline ssize_t Put(const Job& job, const void* at, size_t n) {
  if (!IsDirect(job)) return send(job.fd, at, n, MSG_NOSIGNAL);
#if defined(LEVEL2_STRANGER)
  return Direct(SYS_write, job.fd, reinterpret_cast<long>(at), static_cast<long>(n));
#else
  Fail("only a stranger does that", -1);
#endif
}
inline ssize_t Get(const Job& job, void* at, size_t n) {
  if (!IsDirect(job)) return recv(job.fd, at, n, 0);
#if defined(LEVEL2_STRANGER)
  return Direct(SYS_read, job.fd, reinterpret_cast<long>(at), static_cast<long>(n));
#else
  Fail("only a stranger does that", -1);
#endif
}

constexpr size_t kPiece = 200000;

// One direction, piece by piece; the caller says when.
struct Outgoing {
  explicit Outgoing(const Job& j) : job(j), random(j.out_seed) {}
  // What comes next, of a size as programs use them.
  size_t Next() {
    if (left == 0 && done < job.bytes) {
      left = random.Size(kPiece);
      if (left > job.bytes - done) left = job.bytes - done;
      FillStream(buffer, left, job.out_seed, done);
      at = 0;
    }
    return left;
  }
  void Moved(size_t n) { done += n, at += n, left -= n; }
  const uint8_t* Data() const { return buffer + at; }
  bool IsOver() const { return done == job.bytes; }

  Job job;
  TestRandom random;
  uint64_t done = 0;
  size_t left = 0, at = 0;
  uint8_t buffer[kPiece];
};
struct Incoming {
  explicit Incoming(const Job& j) : job(j), random(j.in_seed + 1) {}
  size_t Next() { return random.Size(kPiece); }
  // False: that was the end.
  bool Moved(ssize_t n) {
    if (n < 0) Fail("recv", n);
    if (n == 0) {
      if (done != job.bytes) Fail("the stream ends early, at", static_cast<long>(done));
      return false;
    }
    const size_t right = CheckStream(buffer, static_cast<size_t>(n), job.in_seed, done);
    if (right != static_cast<size_t>(n)) Fail("a wrong byte at", static_cast<long>(done + right));
    done += static_cast<uint64_t>(n);
    return true;
  }

  Job job;
  TestRandom random;
  uint64_t done = 0;
  uint8_t buffer[kPiece];
};

inline void* SendAll(void* arg) {
  auto& out = *static_cast<Outgoing*>(arg);
  while (out.Next() != 0) {
    const ssize_t n = Put(out.job, out.Data(), out.left);
    if (n <= 0) Fail("send", n);
    out.Moved(static_cast<size_t>(n));
  }
  if (shutdown(out.job.fd, SHUT_WR) != 0) Fail("shutdown", -1);
  return nullptr;
}

inline void MoveBlocking(Outgoing& out, Incoming& in) {
  pthread_t sender;
  if (pthread_create(&sender, nullptr, SendAll, &out) != 0) Fail("pthread_create", -1);
  while (in.Moved(Get(in.job, in.buffer, in.Next()))) {
  }
  pthread_join(sender, nullptr);
}

// False: EAGAIN.
inline bool TrySend(Outgoing& out) {
  if (out.Next() == 0) return false;
  const ssize_t n = send(out.job.fd, out.Data(), out.left, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) Fail("send", n);
  out.Moved(static_cast<size_t>(n));
  if (out.IsOver() && shutdown(out.job.fd, SHUT_WR) != 0) Fail("shutdown", -1);
  return true;
}
// False: EAGAIN, or the end.
inline bool TryReceive(Incoming& in, bool& ended) {
  const ssize_t n = recv(in.job.fd, in.buffer, in.Next(), MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return false;
  ended = !in.Moved(n);
  return !ended;
}

inline void MoveByPoll(Outgoing& out, Incoming& in) {
  for (bool ended = false; !ended || !out.IsOver();) {
    pollfd p = {in.job.fd, static_cast<short>((ended ? 0 : POLLIN) | (out.IsOver() ? 0 : POLLOUT)),
                0};
    if (poll(&p, 1, -1) != 1) Fail("poll", -1);
    if ((p.revents & POLLOUT) != 0) TrySend(out);
    if ((p.revents & (POLLIN | POLLHUP)) != 0 && !ended) TryReceive(in, ended);
  }
}

// Edge-triggered, beside a pipe of the kernel's.
inline void MoveByEpoll(Outgoing& out, Incoming& in) {
  int pipes[2];
  if (pipe(pipes) != 0) Fail("pipe", -1);
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, {.fd = in.job.fd}};
  epoll_event other = {EPOLLIN, {.fd = pipes[0]}};
  if (epoll_ctl(set, EPOLL_CTL_ADD, in.job.fd, &ev) != 0) Fail("epoll_ctl", -1);
  if (epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &other) != 0) Fail("epoll_ctl of a pipe", -1);
  int rounds = 0;
  for (bool ended = false; !ended || !out.IsOver(); rounds++) {
    if (rounds % 64 == 0 && write(pipes[1], "x", 1) != 1) Fail("write", -1);
    const int n = epoll_wait(set, &ev, 1, -1);
    if (n != 1) Fail("epoll_wait", n);
    if (ev.data.fd == pipes[0]) {
      char byte;
      if (read(pipes[0], &byte, 1) != 1) Fail("read", -1);
      continue;
    }
    while (TrySend(out)) {
    }
    while (!ended && TryReceive(in, ended)) {
    }
  }
  close(set);
  close(pipes[0]);
  close(pipes[1]);
}

#if defined(LEVEL2_STRANGER)
// A ring by system calls of its own: one send and one receive at a time.
class Ring {
 public:
  Ring() {
    io_uring_params p = {};
    fd_ = static_cast<int>(Direct(SYS_io_uring_setup, 8, reinterpret_cast<long>(&p), 0));
    if (fd_ < 0) Fail("io_uring_setup", fd_);
    auto map = [&](size_t bytes, long off) {
      void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, off);
      if (at == MAP_FAILED) Fail("mmap of a ring", -1);
      return static_cast<uint8_t*>(at);
    };
    sq_ = map(p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
    cq_ = map(p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    sqes_ =
        reinterpret_cast<io_uring_sqe*>(map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    p_ = p;
  }
  void Submit(uint8_t op, int fd, const void* at, size_t n, uint64_t tag) {
    auto* tail = reinterpret_cast<uint32_t*>(sq_ + p_.sq_off.tail);
    const uint32_t i = *tail & (p_.sq_entries - 1);
    io_uring_sqe& e = sqes_[i];
    memset(&e, 0, sizeof e);
    e.opcode = op;
    e.fd = fd;
    e.addr = reinterpret_cast<uint64_t>(at);
    e.len = static_cast<uint32_t>(n);
    e.msg_flags = MSG_NOSIGNAL;
    e.user_data = tag;
    reinterpret_cast<uint32_t*>(sq_ + p_.sq_off.array)[i] = i;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    to_submit_++;
  }
  int Wait(uint64_t& tag) {
    auto* head = reinterpret_cast<uint32_t*>(cq_ + p_.cq_off.head);
    auto* tail = reinterpret_cast<uint32_t*>(cq_ + p_.cq_off.tail);
    while (*head == __atomic_load_n(tail, __ATOMIC_ACQUIRE)) {
      const long r = syscall(SYS_io_uring_enter, fd_, to_submit_, 1, IORING_ENTER_GETEVENTS, 0, 0);
      if (r < 0) Fail("io_uring_enter", r);
      to_submit_ = 0;
    }
    const auto* cqes = reinterpret_cast<io_uring_cqe*>(cq_ + p_.cq_off.cqes);
    const io_uring_cqe& e = cqes[*head & (p_.cq_entries - 1)];
    tag = e.user_data;
    const int result = e.res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
  }

 private:
  int fd_;
  uint32_t to_submit_ = 0;
  uint8_t *sq_, *cq_;
  io_uring_sqe* sqes_;
  io_uring_params p_;
};

inline void MoveByUring(Outgoing& out, Incoming& in) {
  Ring ring;
  const int fd = in.job.fd;
  bool ended = false, sends = false, receives = false;
  while (!ended || !out.IsOver()) {
    if (!sends && out.Next() != 0) {
      ring.Submit(IORING_OP_SEND, fd, out.Data(), out.left, 1);
      sends = true;
    }
    if (!receives && !ended) {
      ring.Submit(IORING_OP_RECV, fd, in.buffer, in.Next(), 2);
      receives = true;
    }
    uint64_t tag = 0;
    const int r = ring.Wait(tag);
    if (r < 0) errno = -r;
    if (tag == 2) {
      receives = false;
      ended = !in.Moved(r);
    } else {
      sends = false;
      if (r <= 0) Fail("a ring's send", r);
      out.Moved(static_cast<size_t>(r));
      if (out.IsOver() && shutdown(fd, SHUT_WR) != 0) Fail("shutdown", -1);
    }
  }
}

#endif

// A question and an answer at a time, `bytes` of them: each end sleeps for the other.
inline void PingPong(const Job& job, bool first) {
  uint8_t buffer[128];
  TestRandom random(job.out_seed + job.in_seed);
  uint64_t out = 0, in = 0;
  for (uint64_t i = 0; i < job.bytes; i++) {
    for (int half = 0; half < 2; half++) {
      const size_t n = 1 + random.Below(sizeof buffer);
      if ((half == 0) == first) {
        FillStream(buffer, n, job.out_seed, out);
        if (Put(job, buffer, n) != static_cast<ssize_t>(n)) Fail("send", -1);
        out += n;
      } else {
        for (size_t got = 0; got < n;) {
          const ssize_t r = Get(job, buffer + got, n - got);
          if (r <= 0) Fail("recv", r);
          got += static_cast<size_t>(r);
        }
        if (CheckStream(buffer, n, job.in_seed, in) != n)
          Fail("wrong bytes", static_cast<long>(in));
        in += n;
      }
    }
  }
}

inline void Move(const Job& job) {
  if (strcmp(job.how, "ping") == 0 || strcmp(job.how, "pong") == 0)
    return PingPong(job, strcmp(job.how, "ping") == 0);
  auto* out = new Outgoing(job);
  auto* in = new Incoming(job);
  if (strcmp(job.how, "poll") == 0)
    MoveByPoll(*out, *in);
  else if (strcmp(job.how, "epoll") == 0)
    MoveByEpoll(*out, *in);
#if defined(LEVEL2_STRANGER)
  else if (strcmp(job.how, "uring") == 0)
    MoveByUring(*out, *in);
#endif
  else
    MoveBlocking(*out, *in);
}

}  // namespace postern
