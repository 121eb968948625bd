// SPDX-License-Identifier: Apache-2.0
// t_stream.cc - bytes through the module's sockets: calls, flags, waiting, ends, and the library at
// the other end.
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <linux/sockios.h>

#include <pthread.h>

#include <initializer_list>

#include "kmod_world.h"

namespace postern {
namespace {

constexpr size_t kBulk = 24 << 20;

// A thread that sends or receives `bytes` of a stream by blocking calls of many sizes.
struct Mover {
  int fd;
  uint64_t seed;
  size_t bytes;
  bool sends;
  size_t done = 0, wrong = 0;
  pthread_t thread = {};

  static void* Run(void* self) {
    static_cast<Mover*>(self)->Move();
    return nullptr;
  }
  void Start() { pthread_create(&thread, nullptr, Run, this); }
  void Join() { pthread_join(thread, nullptr); }
  void Move() {
    TestRandom random(seed);
    auto* buffer = static_cast<uint8_t*>(malloc(300000));
    while (done < bytes) {
      size_t n = 1 + random.Next() % (random.Next() % 4 == 0 ? 300000 : 3000);
      if (n > bytes - done) n = bytes - done;
      if (sends) FillStream(buffer, n, seed, done);
      const ssize_t r = sends ? send(fd, buffer, n, 0) : recv(fd, buffer, n, 0);
      if (r <= 0) break;
      if (!sends &&
          CheckStream(buffer, static_cast<size_t>(r), seed, done) != static_cast<size_t>(r))
        wrong++;
      done += static_cast<size_t>(r);
    }
    free(buffer);
  }
};

void* SendLater(void* arg) {
  usleep(100000);
  EXPECT_IS(send(*static_cast<int*>(arg), "late", 4, 0), 4);
  return nullptr;
}

// An address at which nothing is; the compiler does not know.
char* Nowhere() {
  static char* volatile at = nullptr;  // tidy-allow: so that it does not know
  return at;
}

template <typename Fn>
void WhileSenderComes(int fd, Fn fn) {
  pthread_t thread;
  pthread_create(&thread, nullptr, SendLater, &fd);
  fn();
  pthread_join(thread, nullptr);
}

}  // namespace

KMOD_TEST(every_call_that_moves_bytes) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  char t[64] = {};
  EXPECT_IS(write(a, "one", 3), 3);
  EXPECT_IS(recv(b, t, 2, MSG_PEEK), 2);
  EXPECT_IS(read(b, t, sizeof t), 3);
  EXPECT(memcmp(t, "one", 3) == 0);
  iovec out[3] = {{const_cast<char*>("ab"), 2}, {nullptr, 0}, {const_cast<char*>("cde"), 3}};
  EXPECT_IS(writev(a, out, 3), 5);
  iovec in[2] = {{t, 1}, {t + 10, 30}};
  EXPECT_IS(readv(b, in, 2), 5);
  EXPECT(t[0] == 'a' && memcmp(t + 10, "bcde", 4) == 0);
  EXPECT_ERRNO(recv(b, t, 1, MSG_DONTWAIT), EAGAIN);
  EXPECT_IS(send(a, "0123456789", 10, 0), 10);
  int waiting = 0;
  EXPECT_IS(ioctl(b, FIONREAD, &waiting), 0);
  EXPECT_IS(waiting, 10);
  EXPECT_IS(ioctl(a, SIOCOUTQ, &waiting), 0);
  EXPECT_IS(waiting, 64);  // a line of the ring
  EXPECT_IS(ioctl(b, SIOCOUTQ, &waiting), 0);
  EXPECT_IS(waiting, 0);
  EXPECT_IS(recv(b, Nowhere(), 4, MSG_TRUNC), 4);  // dropped
  EXPECT_IS(recv(b, t, 6, MSG_WAITALL), 6);
  EXPECT(memcmp(t, "456789", 6) == 0);
  EXPECT_ERRNO(recv(b, t, 1, MSG_OOB), EINVAL);
  EXPECT_ERRNO(send(a, t, 1, MSG_OOB), EOPNOTSUPP);
  EXPECT_IS(send(a, t, 0, 0), 0);
  mmsghdr two[2] = {};
  two[0].msg_hdr.msg_iov = out, two[0].msg_hdr.msg_iovlen = 1;
  two[1].msg_hdr.msg_iov = out + 2, two[1].msg_hdr.msg_iovlen = 1;
  EXPECT_IS(sendmmsg(a, two, 2, 0), 2);
  EXPECT_IS(recv(b, t, sizeof t, 0), 5);
  EXPECT(memcmp(t, "abcde", 5) == 0);
  sockaddr_storage from;
  socklen_t len = sizeof from;
  EXPECT_IS(write(a, "x", 1), 1);
  EXPECT_IS(recvfrom(b, t, sizeof t, 0, reinterpret_cast<sockaddr*>(&from), &len), 1);
  EXPECT_IS(len, 0);  // as TCP: no name
}

KMOD_TEST(splice_and_sendfile) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  const int file = memfd_create("file", 0);
  static uint8_t data[100000], back[100000];
  FillStream(data, sizeof data, 5, 0);
  EXPECT_IS(write(file, data, sizeof data), sizeof data);
  off_t at = 0;
  size_t sent = 0;
  while (sent < sizeof data) {
    const ssize_t n = sendfile(a, file, &at, sizeof data - sent);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  EXPECT_IS(sent, sizeof data);
  int ends[2];
  EXPECT_IS(pipe(ends), 0);
  size_t got = 0;
  while (got < sizeof data) {
    const ssize_t n = splice(b, nullptr, ends[1], nullptr, 4000, 0);
    if (n <= 0) {
      Wrong(__FILE__, __LINE__, "splice", n);
      break;
    }
    EXPECT_IS(read(ends[0], back + got, static_cast<size_t>(n)), n);
    got += static_cast<size_t>(n);
  }
  EXPECT_IS(CheckStream(back, sizeof back, 5, 0), sizeof back);
  // From a pipe into the socket.
  EXPECT_IS(write(ends[1], "piped", 5), 5);
  EXPECT_IS(splice(ends[0], nullptr, a, nullptr, 5, 0), 5);
  EXPECT_IS(recv(b, back, 5, MSG_WAITALL), 5);
  EXPECT(memcmp(back, "piped", 5) == 0);
}

KMOD_TEST(bulk_in_both_directions) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  Mover movers[4] = {
      {a, 1, kBulk, true}, {b, 1, kBulk, false}, {b, 2, kBulk, true}, {a, 2, kBulk, false}};
  for (Mover& m : movers) m.Start();
  for (Mover& m : movers) {
    m.Join();
    EXPECT_IS(m.done, m.bytes);
    EXPECT_IS(m.wrong, 0);
  }
}

// The library's ring at one end, the module at the other, each direction.
KMOD_TEST(bulk_with_the_library) {
  KmodWorld w;
  const int a = w.Socket(0);
  const ConnEnd lib = w.End(1);
  // The library's end has a socket, too, by which it rings.
  const int bell = w.Socket(1);
  static uint8_t buffer[50000];
  Mover in = {a, 3, kBulk, false};
  in.Start();
  TestRandom random(7);
  int rung = 0;
  for (size_t done = 0; done < kBulk;) {
    size_t n = 1 + random.Next() % (random.Next() % 4 == 0 ? sizeof buffer : 2000);
    if (n > kBulk - done) n = kBulk - done;
    FillStream(buffer, n, 3, done);
    const size_t wrote = w.Write(lib, buffer, n);
    done += wrote;
    rung += w.Tell(lib, bell, PSTN_RING_DATA);
    if (wrote == 0) sched_yield();
  }
  in.Join();
  EXPECT_IS(in.done, kBulk);
  EXPECT_IS(in.wrong, 0);
  printf("  %d calls to wake the reader\n", rung);
  Mover out = {a, 4, kBulk, true};
  out.Start();
  size_t done = 0, wrong = 0;
  for (int idle = 0; done < kBulk && idle < 20000;) {
    const ReadResult r = w.Read(lib, buffer, 1 + random.Next() % sizeof buffer);
    if (r.bytes == 0) {
      idle++;
      usleep(200);
      continue;
    }
    idle = 0;
    if (CheckStream(buffer, r.bytes, 4, done) != r.bytes) wrong++;
    done += r.bytes;
    (void)w.Tell(lib, bell, PSTN_RING_SPACE);
  }
  out.Join();
  EXPECT_IS(done, kBulk);
  EXPECT_IS(wrong, 0);
}

KMOD_TEST(bell_only_for_sleepers) {
  KmodWorld w;
  const int a = w.Socket(0), bell = w.Socket(1);
  const ConnEnd lib = w.End(1);
  char t[16];
  // Nobody sleeps: no call, however often.
  for (int i = 0; i < 100; i++) {
    EXPECT_IS(w.Write(lib, "x", 1), 1);
    EXPECT_IS(w.Tell(lib, bell, PSTN_RING_DATA), 0);
    EXPECT_IS(read(a, t, 1), 1);
  }
  const auto wake = [&](auto wait) {
    struct Writer {
      KmodWorld& w;
      const ConnEnd& lib;
      int bell, rung;
    } writer = {w, lib, bell, 0};
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void* arg) -> void* {
          auto& self = *static_cast<Writer*>(arg);
          for (int i = 0;
               i < 500 && (LoadRelaxed(self.lib.peer_ctl().rx_wait) & PSTN_RXW_MODULE) == 0; i++)
            usleep(10000);
          EXPECT_IS(self.w.Write(self.lib, "y", 1), 1);
          self.rung = self.w.Tell(self.lib, self.bell, PSTN_RING_DATA);
          return nullptr;
        },
        &writer);
    wait();
    pthread_join(thread, nullptr);
    EXPECT_IS(writer.rung, 1);
    EXPECT_IS(read(a, t, sizeof t), 1);
  };
  wake([&] { EXPECT_IS(recv(a, t, 1, MSG_PEEK), 1); });
  wake([&] {
    pollfd p = {a, POLLIN, 0};
    EXPECT_IS(poll(&p, 1, 5000), 1);
    EXPECT_IS(p.revents, POLLIN);
  });
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {EPOLLIN, {}};
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_ADD, a, &ev), 0);
  wake([&] { EXPECT_IS(epoll_wait(set, &ev, 1, 5000), 1); });
  wake([&] { EXPECT_IS(epoll_wait(set, &ev, 1, 5000), 1); });
  // Out of the set, and once told so, there is no bell again.
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_DEL, a, nullptr), 0);
  EXPECT_IS(w.Write(lib, "z", 1), 1);
  (void)w.Tell(lib, bell, PSTN_RING_DATA);
  EXPECT_IS(read(a, t, 1), 1);
  EXPECT_IS(w.Write(lib, "z", 1), 1);
  EXPECT_IS(w.Tell(lib, bell, PSTN_RING_DATA), 0);
}

KMOD_TEST(kernels_own_event_set) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  int ends[2];
  EXPECT_IS(pipe(ends), 0);
  const int set = epoll_create1(EPOLL_CLOEXEC), edge = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {EPOLLIN | EPOLLRDHUP, {.u32 = 1}}, got[4];
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_ADD, a, &ev), 0);
  ev.data.u32 = 2, ev.events = EPOLLIN;
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &ev), 0);  // the kernel's beside ours
  ev.events = EPOLLIN | EPOLLOUT | EPOLLET;
  EXPECT_IS(epoll_ctl(edge, EPOLL_CTL_ADD, a, &ev), 0);
  EXPECT_IS(epoll_wait(set, got, 4, 0), 0);
  EXPECT_IS(epoll_wait(edge, got, 4, 0), 1);
  EXPECT_IS(got[0].events, EPOLLOUT);
  EXPECT_IS(epoll_wait(edge, got, 4, 0), 0);
  char t[16];
  for (int i = 0; i < 5; i++) {
    WhileSenderComes(b, [&] {
      EXPECT_IS(epoll_wait(set, got, 4, 5000), 1);
      EXPECT_IS(got[0].data.u32, 1);
      EXPECT_IS(got[0].events, EPOLLIN);
    });
    EXPECT_IS(epoll_wait(set, got, 4, 0), 1);  // level
    EXPECT_IS(epoll_wait(edge, got, 4, 1000), 1);
    EXPECT(got[0].events == (EPOLLIN | EPOLLOUT));
    EXPECT_IS(epoll_wait(edge, got, 4, 0), 0);  // once
    // A second arrival is a second edge, though nothing was read.
    EXPECT_IS(write(b, "more", 4), 4);
    EXPECT_IS(epoll_wait(edge, got, 4, 1000), 1);
    EXPECT_IS(read(a, t, sizeof t), 8);
    EXPECT_IS(epoll_wait(set, got, 4, 0), 0);
  }
  EXPECT_IS(shutdown(b, SHUT_WR), 0);
  EXPECT_IS(epoll_wait(set, got, 4, 1000), 1);
  EXPECT_IS(got[0].events, EPOLLIN | EPOLLRDHUP);
  EXPECT_IS(read(a, t, sizeof t), 0);
  close(b);
  fd_set fds;
  FD_ZERO(&fds);
  FD_SET(a, &fds);
  EXPECT_IS(select(a + 1, &fds, nullptr, nullptr, nullptr), 1);
}

KMOD_TEST(a_full_ring_waits_for_its_reader) {
  KmodWorld w;
  const int a = w.Socket(0, 0, SOCK_NONBLOCK), b = w.Socket(1);
  static uint8_t block[1 << 16];
  size_t sent = 0;
  for (ssize_t n; (n = write(a, block, sizeof block)) > 0;) sent += static_cast<size_t>(n);
  EXPECT_IS(errno, EAGAIN);
  EXPECT(sent >= 900000);
  pollfd p = {a, POLLOUT, 0};
  EXPECT_IS(poll(&p, 1, 50), 0);
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {EPOLLOUT | EPOLLET, {}};
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_ADD, a, &ev), 0);
  EXPECT_IS(epoll_wait(set, &ev, 1, 0), 0);
  size_t got = 0;
  while (got < sent) {
    const ssize_t n = read(b, block, sizeof block);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  EXPECT_IS(got, sent);
  EXPECT_IS(epoll_wait(set, &ev, 1, 1000), 1);
  EXPECT_IS(poll(&p, 1, 0), 1);
  EXPECT_IS(write(a, block, 10), 10);
  EXPECT_IS(read(b, block, sizeof block), 10);
}

KMOD_TEST(times_signals_and_bad_memory) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  char t[16];
  const timeval tenth = {0, 100000};
  EXPECT_IS(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &tenth, sizeof tenth), 0);
  EXPECT_ERRNO(read(a, t, 1), EAGAIN);
  struct sigaction sa = {};
  sa.sa_handler = [](int) {};
  sigaction(SIGALRM, &sa, nullptr);
  const timeval never = {0, 0};
  EXPECT_IS(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never), 0);
  const itimerval soon = {{0, 0}, {0, 100000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  EXPECT_ERRNO(read(a, t, 1), EINTR);
  alarm(300);
  // Memory that is not there; memory of which half is there; memory that is to be fetched first.
  EXPECT_ERRNO(write(a, Nowhere(), 5), EFAULT);
  EXPECT_IS(write(a, "0123456789", 10), 10);
  EXPECT_ERRNO(read(b, Nowhere(), 5), EFAULT);
  EXPECT_IS(recv(b, t, 10, MSG_DONTWAIT), 10);
  auto* two = static_cast<char*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(two + 4096, 4096);
  EXPECT_IS(write(a, two + 4090, 20), 6);
  EXPECT_IS(write(a, "0123456789", 10), 10);
  EXPECT_IS(recv(b, two + 4090, 20, MSG_DONTWAIT), 6);
  EXPECT_IS(recv(b, t, sizeof t, MSG_DONTWAIT), 10);
  auto* fresh = static_cast<uint8_t*>(
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  auto* back = static_cast<uint8_t*>(
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_IS(write(a, fresh, 500000), 500000);
  EXPECT_IS(recv(b, back, 500000, MSG_WAITALL), 500000);
  const int async = w.Socket(0, 3);
  const int other = w.Socket(1, 3);
  static int sigio;
  sa.sa_handler = [](int) { sigio++; };
  sigaction(SIGIO, &sa, nullptr);
  EXPECT_IS(fcntl(async, F_SETOWN, getpid()), 0);
  EXPECT_IS(fcntl(async, F_SETFL, O_ASYNC), 0);
  EXPECT_ERRNO(recv(async, t, 1, MSG_DONTWAIT), EAGAIN);
  for (int round = 1; round < 4; round++) {
    EXPECT_IS(write(other, "x", 1), 1);
    for (int i = 0; i < 100 && sigio < round; i++) usleep(1000);
    EXPECT_IS(sigio, round);
  }
}

KMOD_TEST(ends_are_tcps) {
  KmodWorld w;
  char t[16];
  {  // orderly, half closed
    const int a = w.Socket(0, 0), b = w.Socket(1, 0);
    EXPECT_IS(write(a, "last", 4), 4);
    EXPECT_IS(shutdown(a, SHUT_WR), 0);
    EXPECT_ERRNO(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
    EXPECT_IS(read(b, t, sizeof t), 4);
    EXPECT_IS(read(b, t, sizeof t), 0);
    EXPECT_IS(write(b, "on", 2), 2);
    EXPECT_IS(read(a, t, sizeof t), 2);
    close(b);
    EXPECT_IS(read(a, t, sizeof t), 0);
    EXPECT_ERRNO(shutdown(a, 7), EINVAL);
  }
  {  // unread data: a reset
    const int a = w.Socket(0, 1), b = w.Socket(1, 1);
    EXPECT_IS(write(a, "unread", 6), 6);
    pollfd p = {a, POLLIN, 0};
    EXPECT_IS(poll(&p, 1, 0), 0);
    close(b);
    EXPECT_IS(poll(&p, 1, 1000), 1);
    EXPECT((p.revents & (POLLERR | POLLHUP | POLLIN)) == (POLLERR | POLLHUP | POLLIN));
    int error = 0;
    socklen_t len = sizeof error;
    EXPECT_IS(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len), 0);
    EXPECT_IS(error, ECONNRESET);
    EXPECT_IS(read(a, t, 1), 0);  // said once
  }
  {  // linger 0, by recv() this time
    const int a = w.Socket(0, 2), b = w.Socket(1, 2);
    const linger now = {1, 0};
    EXPECT_IS(setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(b);
    EXPECT_ERRNO(read(a, t, 1), ECONNRESET);
    EXPECT_ERRNO(send(a, t, 1, MSG_NOSIGNAL), EPIPE);
  }
  {  // written to after its end
    const int a = w.Socket(0, 3), b = w.Socket(1, 3);
    close(b);
    EXPECT_IS(read(a, t, 1), 0);
    EXPECT_IS(write(a, "x", 1), 1);
    EXPECT_ERRNO(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
  }
  {  // a blocked reader hears of it; SIGPIPE
    const int a = w.Socket(0, 4);
    int b = w.Socket(1, 4);
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void* fd) -> void* {
          usleep(50000);
          close(*static_cast<int*>(fd));
          return nullptr;
        },
        &b);
    EXPECT_IS(read(a, t, 1), 0);
    pthread_join(thread, nullptr);
    static int pipes;
    struct sigaction sa = {};
    sa.sa_handler = [](int) { pipes++; };
    sigaction(SIGPIPE, &sa, nullptr);
    EXPECT_IS(write(a, "x", 1), 1);
    EXPECT_ERRNO(write(a, "x", 1), EPIPE);
    EXPECT_IS(pipes, 1);
  }
}

KMOD_TEST(last_close_by_whomever) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  int ends[2];
  EXPECT_IS(pipe(ends), 0);
  char t[8];
  const pid_t child = InChild([&] {
    close(b);
    EXPECT_IS(write(ends[1], "!", 1), 1);
    pause();
  });
  EXPECT_IS(read(ends[0], t, 1), 1);
  close(a);  // the child has it still
  pollfd p = {b, POLLIN, 0};
  EXPECT_IS(poll(&p, 1, 100), 0);
  pollfd told = {w.stack(), POLLIN, 0};
  EXPECT_IS(poll(&told, 1, 0), 0);
  kill(child, SIGKILL);
  EXPECT_IS(poll(&p, 1, 5000), 1);
  EXPECT_IS(read(b, t, 1), 0);
  EXPECT_IS(poll(&told, 1, 1000), 1);
  pstn_ioc_released released = {};
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_RELEASED, &released), 0);
  EXPECT(released.count == 1 && released.more == 0 && released.ep_idx[0] == 0);
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_RELEASED, &released), 0);
  EXPECT_IS(released.count, 0);
  waitpid(child, nullptr, 0);
  // Many at once are told in several pieces, each once.
  bool seen[400] = {};
  for (uint32_t i = 0; i < 200; i++) {
    close(w.Socket(0, 100 + i));
    close(w.Socket(1, 100 + i));
  }
  uint32_t all = 0;
  do {
    EXPECT_IS(ioctl(w.stack(), PSTN_IOC_RELEASED, &released), 0);
    for (uint32_t i = 0; i < released.count; i++) {
      const uint32_t n = released.ep_idx[i] - 200;
      EXPECT(n < 400 && !seen[n]);
      if (n < 400) seen[n] = true;
    }
    all += released.count;
  } while (released.more != 0);
  EXPECT_IS(all, 400);
}

// An image without any library has it as its input and output.
KMOD_TEST(plain_programs_use_it) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  const pid_t child = InChild([&] {
    dup2(b, 0);
    dup2(b, 1);
    execl("/bin/busybox", "tr", "a-z", "A-Z", nullptr);
    _exit(127);
  });
  close(b);
  EXPECT_IS(write(a, "through a static program", 24), 24);
  EXPECT_IS(shutdown(a, SHUT_WR), 0);
  char t[64] = {};
  EXPECT_IS(recv(a, t, 24, MSG_WAITALL), 24);
  EXPECT(strcmp(t, "THROUGH A STATIC PROGRAM") == 0);
  EXPECT_IS(read(a, t, 1), 0);
  ExpectEndsWell(child);
}

// A stranger gets it by SCM_RIGHTS, in another user's process.
KMOD_TEST(passed_to_a_stranger) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  int ends[2];
  EXPECT_IS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t child = InChild([&] {
    for (const int fd : {a, b, w.stack(), w.memfd(), w.lgr_fd(), w.device()}) close(fd);
    EXPECT_IS(setuid(65534), 0);
    char byte, control[CMSG_SPACE(sizeof(int))];
    iovec iov = {&byte, 1};
    msghdr m = {};
    m.msg_iov = &iov, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
    EXPECT_IS(recvmsg(ends[1], &m, 0), 1);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    char t[64];
    EXPECT_IS(read(fd, t, sizeof t), 8);
    EXPECT_IS(write(fd, "and back", 8), 8);
  });
  char control[CMSG_SPACE(sizeof(int))] = {};
  char byte = '!';
  iovec iov = {&byte, 1};
  msghdr m = {};
  m.msg_iov = &iov, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &b, sizeof b);
  EXPECT_IS(sendmsg(ends[0], &m, 0), 1);
  close(b);
  EXPECT_IS(write(a, "out here", 8), 8);
  char t[64];
  EXPECT_IS(read(a, t, sizeof t), 8);
  EXPECT_IS(read(a, t, sizeof t), 0);  // the stranger's end
  ExpectEndsWell(child);
}

KMOD_TEST(locks_of_the_living_and_the_dead) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  char t[8];
  EXPECT_IS(write(b, "x", 1), 1);
  pstn_lock& lock = w.End(0).ep->rx.lock;
  // A process that has said its slot takes the lock and is killed.
  int ends[2];
  EXPECT_IS(pipe(ends), 0);
  const pid_t child = InChild([&] {
    const int own = OpenStack(w.device(), w.memfd());
    EXPECT_IS(JoinStack(own, 5), 0);
    StoreRelaxed(lock.word,
                 6u << PSTN_LOCK_SLOT_SHIFT |
                     static_cast<uint32_t>(getpid()));  // tidy-allow: a lock's holder is played
    EXPECT_IS(write(ends[1], "!", 1), 1);
    pause();
  });
  EXPECT_IS(read(ends[0], t, 1), 1);
  EXPECT_ERRNO(recv(a, t, 1, MSG_DONTWAIT), EAGAIN);  // it lives, and keeps it
  struct sigaction sa = {};
  sa.sa_handler = [](int) {};
  sigaction(SIGALRM, &sa, nullptr);
  const itimerval soon = {{0, 0}, {0, 200000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  EXPECT_ERRNO(recv(a, t, 1, 0), EINTR);  // a signal ends the wait
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_IS(recv(a, t, 1, 0), 1);
  EXPECT_IS(LoadRelaxed(lock.word), 0);
  // The same while a child of the dead one's has its descriptor.
  EXPECT_IS(write(b, "y", 1), 1);
  const pid_t dead = InChild([&] {
    const int own = OpenStack(w.device(), w.memfd());
    EXPECT_IS(JoinStack(own, 6), 0);
    StoreRelaxed(lock.word,
                 7u << PSTN_LOCK_SLOT_SHIFT |
                     static_cast<uint32_t>(getpid()));  // tidy-allow: a lock's holder is played
    if (fork() == 0) {
      EXPECT_IS(write(ends[1], "!", 1), 1);
      pause();
    }
    _exit(0);
  });
  waitpid(dead, nullptr, 0);
  EXPECT_IS(read(ends[0], t, 1), 1);
  EXPECT_IS(recv(a, t, 1, 0), 1);
  EXPECT_IS(LoadRelaxed(lock.word), 0);
}

// Several threads at one end, in either direction: each byte comes once, and the kernel's calls do
// not get into each other's way.
KMOD_TEST(threads_share_a_socket) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  struct Sum {
    int fd;
    bool sends;
    uint64_t bytes, sum;
    pthread_t thread;
  } all[6] = {};
  for (int i = 0; i < 6; i++) {
    all[i].fd = i < 3 ? a : b;
    all[i].sends = i < 3;
    pthread_create(
        &all[i].thread, nullptr,
        [](void* arg) -> void* {
          Sum& s = *static_cast<Sum*>(arg);
          TestRandom random(reinterpret_cast<uintptr_t>(&s));
          uint8_t buffer[3000];
          for (int n = 0; n < 3000; n++) {
            for (uint8_t& byte : buffer) byte = static_cast<uint8_t>(byte * 7 + n);
            const size_t want = 1 + random.Next() % sizeof buffer;
            const ssize_t r = s.sends ? send(s.fd, buffer, want, 0) : recv(s.fd, buffer, want, 0);
            if (r <= 0) break;
            for (ssize_t k = 0; k < r; k++) s.sum += buffer[k];
            s.bytes += static_cast<uint64_t>(r);
            if (!s.sends) n = 0;
          }
          return nullptr;
        },
        &all[i]);
  }
  for (int i = 0; i < 3; i++) pthread_join(all[i].thread, nullptr);
  EXPECT_IS(shutdown(a, SHUT_WR), 0);
  for (int i = 3; i < 6; i++) pthread_join(all[i].thread, nullptr);
  EXPECT_IS(all[3].bytes + all[4].bytes + all[5].bytes, all[0].bytes + all[1].bytes + all[2].bytes);
  EXPECT_IS(all[3].sum + all[4].sum + all[5].sum, all[0].sum + all[1].sum + all[2].sum);
}

// A record that the library holds back (MSG_MORE) is there when its time has come, for who blocks
// and for who waits in a set.
KMOD_TEST(held_back_until_its_time) {
  KmodWorld w;
  struct Held {
    int fd, bell;
    ConnEnd lib;
  };
  const auto make = [&](uint32_t conn) {
    return Held{w.Socket(0, conn), w.Socket(1, conn), w.End(1, conn)};
  };
  // As the library: the record, then word of it, so that who sleeps learns of the time.
  const auto hold = [&](const Held& h, uint64_t ms) {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    iovec iov = {const_cast<char*>("held"), 4};
    IovCursor cursor(&iov, 1);
    cursor.held = static_cast<uint64_t>(ts.tv_sec) * 1000000000u +
                  static_cast<uint64_t>(ts.tv_nsec) + ms * 1000000;
    cursor.held &= ~(PSTN_HELD_CORK | PSTN_HELD_OVER);
    Lock(h.lib.ep->tx.lock);
    EXPECT_IS(RingWrite(h.lib, cursor, {}), 4);
    Unlock(h.lib.ep->tx.lock);
    (void)w.Tell(h.lib, h.bell, PSTN_RING_DATA);
  };
  char t[16];
  const Held blocked = make(0);
  hold(blocked, 300);
  EXPECT_ERRNO(recv(blocked.fd, t, sizeof t, MSG_DONTWAIT), EAGAIN);
  EXPECT_IS(read(blocked.fd, t, sizeof t), 4);
  const Held polled = make(1);
  hold(polled, 1000);
  pollfd p = {polled.fd, POLLIN, 0};
  EXPECT_IS(poll(&p, 1, 0), 0);
  EXPECT_IS(poll(&p, 1, 20000), 1);
  EXPECT_IS(read(polled.fd, t, sizeof t), 4);
  const Held member = make(2);
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {EPOLLIN | EPOLLET, {}};
  EXPECT_IS(epoll_ctl(set, EPOLL_CTL_ADD, member.fd, &ev), 0);
  hold(member, 300);
  EXPECT_IS(epoll_wait(set, &ev, 1, 20000), 1);
  EXPECT_IS(read(member.fd, t, sizeof t), 4);
  // The socket of the end that holds is closed: what is held is sent then.
  const Held closed = make(3);
  hold(closed, 100000);
  EXPECT_ERRNO(recv(closed.fd, t, sizeof t, MSG_DONTWAIT), EAGAIN);
  close(closed.bell);
  EXPECT_IS(read(closed.fd, t, sizeof t), 4);
  EXPECT_IS(read(closed.fd, t, sizeof t), 0);
}

// No ring is to be had: a call that waits for one can be interrupted, and goes on when there is.
KMOD_TEST(no_ring_is_left) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  const ConnEnd e = w.End(0);
  memset(e.ref->ring0_map, 0xff, sizeof e.ref->ring0_map);
  memset(e.ref->ring1_map, 0xff, sizeof e.ref->ring1_map);
  memset(e.ref->ring2_map, 0xff, sizeof e.ref->ring2_map);
  char t[8];
  EXPECT_ERRNO(send(a, "x", 1, MSG_DONTWAIT), EAGAIN);
  struct sigaction sa = {};
  sa.sa_handler = [](int) {};
  sigaction(SIGALRM, &sa, nullptr);
  const itimerval soon = {{0, 0}, {0, 200000}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  EXPECT_ERRNO(send(a, "x", 1, 0), EINTR);
  alarm(300);
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void* ref) -> void* {
        usleep(100000);
        FetchAnd(static_cast<pstn_lgr_ref*>(ref)->ring0_map[3], ~uint64_t{8});
        return nullptr;
      },
      e.ref);
  EXPECT_IS(send(a, "there", 5, 0), 5);
  pthread_join(thread, nullptr);
  EXPECT_IS(read(b, t, sizeof t), 5);
}

// Calls of more bytes than a ring holds, and looks at more than there is.
KMOD_TEST(calls_larger_than_a_ring) {
  constexpr size_t kBytes = 5 << 20;
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  auto* out = static_cast<uint8_t*>(malloc(kBytes));
  auto* in = static_cast<uint8_t*>(calloc(kBytes, 1));
  FillStream(out, kBytes, 9, 0);
  struct Sender {
    int fd;
    const uint8_t* from;
  } sender = {a, out};
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void* arg) -> void* {
        const auto& s = *static_cast<Sender*>(arg);
        EXPECT_IS(send(s.fd, s.from, kBytes, 0), kBytes);
        return nullptr;
      },
      &sender);
  EXPECT_IS(recv(b, in, 100000, MSG_PEEK | MSG_WAITALL), 100000);
  EXPECT_IS(CheckStream(in, 100000, 9, 0), 100000);
  EXPECT_IS(recv(b, in, kBytes, MSG_WAITALL), kBytes);
  EXPECT_IS(CheckStream(in, kBytes, 9, 0), kBytes);
  pthread_join(thread, nullptr);
  EXPECT_IS(send(a, out, 1000, 0), 1000);
  EXPECT_IS(recv(b, in, kBytes, MSG_PEEK | MSG_DONTWAIT), 1000);
  EXPECT_IS(recv(b, in, 999, MSG_PEEK | MSG_WAITALL), 999);
  EXPECT_IS(shutdown(a, SHUT_WR), 0);
  EXPECT_IS(recv(b, in, kBytes, MSG_PEEK | MSG_WAITALL), 1000);  // all that there will be
  EXPECT_IS(recv(b, in, kBytes, MSG_WAITALL), 1000);
}

}  // namespace postern
