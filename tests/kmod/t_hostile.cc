// SPDX-License-Identifier: Apache-2.0
// t_hostile.cc - what the module is to survive: shared memory that changes at random under its
// calls, processes that are killed at any moment, memory that is taken away.
#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/time.h>

#include <initializer_list>

#include "kmod_world.h"

namespace postern {
namespace {

constexpr uint32_t kConns = 8;

// How long to go on; more where the guest is told so.
uint64_t ForNs(uint64_t usual_s) {
  const char* told = getenv("KMOD_SECONDS");
  return (told != nullptr ? strtoull(told, nullptr, 10) : usual_s) * 1'000'000'000;
}

uint64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
}

// Words that mean something somewhere, beside any.
uint64_t Lie(TestRandom& r, KmodWorld& w) {
  pstn_conn& conn = LgrConn(w.lgr(), static_cast<uint32_t>(r.Next() % kConns));
  switch (r.Next() % 8) {
    case 0:
      return 0;
    case 1:
      return r.Next();
    case 2:
      return r.Next() % 70000;
    case 3:
      return PSTN_REC_WRAP + r.Next() % 2;
    case 4:
      return conn.ctl[r.Next() % 2].ring ^ (uint64_t{1} << r.Next() % 64);
    case 5:
      return conn.ctl[r.Next() % 2].ring + (uint64_t{1} << PSTN_RING_GEN_SHIFT);
    case 6:
      return conn.pos[r.Next() % 2].read + 64 * (r.Next() % 5);
    default:
      return ~uint64_t{0} >> r.Next() % 64;
  }
}

// Writes into what the calls of the module look at: endpoints, connections, rings, the slab's maps.
void Corrupt(KmodWorld& w, uint64_t seed, uint64_t until_ns) {
  TestRandom r(seed);
  for (uint64_t n = 0; n % 256 != 0 || NowNs() < until_ns; n++) {
    const uint32_t conn = static_cast<uint32_t>(r.Next() % kConns), side = r.Next() % 2;
    const ConnEnd e = {&w.map().eps.Own(EpIndex(KmodWorld::EpOf(side, conn))),
                       &w.map().lgrs.Own(LgrIndex(w.ref(side))), w.lgr(), &LgrConn(w.lgr(), conn),
                       side};
    uint64_t* at;
    RingPlace ring;
    switch (r.Next() % 6) {
      case 0:  // the endpoint's two directions, locks included
        at = reinterpret_cast<uint64_t*>(&e.ep->tx) + r.Next() % (2 * sizeof(pstn_tx) / 8);
        break;
      case 1:
        at = reinterpret_cast<uint64_t*>(&e.conn->ctl[0]) + r.Next() % (4 * 64 / 8);
        break;
      case 2:
        at = reinterpret_cast<uint64_t*>(e.ref) + r.Next() % (sizeof(pstn_lgr_ref) / 8);
        break;
      case 3:
        at = reinterpret_cast<uint64_t*>(e.ep) + r.Next() % (sizeof(pstn_ep) / 8);
        break;
      default:
        ring = RingAt(w.lgr(), side, LoadRelaxed(e.ctl().ring));
        if (ring.base == nullptr) continue;
        at = reinterpret_cast<uint64_t*>(ring.base + r.Next() % ring.bytes / 64 * 64);
    }
    StoreRelaxed(*at, Lie(r, w));
    // A lock that nobody gives back is waited for, and not much else is met then: seldom.
    for (void* lock : {static_cast<void*>(&e.ep->tx), static_cast<void*>(&e.ep->rx),
                       static_cast<void*>(&e.ref->lock)})
      if (n % 512 != 0 && LoadRelaxed(*static_cast<uint32_t*>(lock)) != PSTN_LOCK_MODULE)
        StoreRelaxed(*static_cast<uint32_t*>(lock), 0u);
    // Calls get somewhere before the next lie.
    for (uint64_t spins = r.Next() % 4 == 0 ? r.Next() % 4096 : 0; spins != 0; spins--) CpuRelax();
    if (n % 64 == 0) sched_yield();
  }
}

// Calls of all kinds on sockets that come and go.
void CallAtRandom(KmodWorld& w, uint64_t seed, uint64_t until_ns) {
  TestRandom r(seed);
  static uint8_t buffer[200000];
  struct sigaction sa = {};
  sa.sa_handler = [](int) {};
  sigaction(SIGALRM, &sa, nullptr);
  const itimerval often = {{0, 20000}, {0, 20000}};  // a call that waits is interrupted
  setitimer(ITIMER_REAL, &often, nullptr);
  int fds[kConns][2];
  for (auto& pair : fds) pair[0] = pair[1] = -1;
  const int set = epoll_create1(0);
  uint64_t calls = 0, moved = 0;
  while (NowNs() < until_ns) {
    const uint32_t conn = static_cast<uint32_t>(r.Next() % kConns), side = r.Next() % 2;
    int& fd = fds[conn][side];
    if (fd < 0 || r.Next() % 20 == 0) {
      if (fd >= 0) close(fd);
      fd = NewEndpoint(w.stack());
      if (fd >= 0 && w.Go(fd, side, conn, LoadRelaxed(LgrConn(w.lgr(), conn).setup.gen)) != 0) {
        close(fd);
        fd = -1;
      }
      if (r.Next() % 4 != 0 && fd >= 0) {  // a clean beginning, which the corrupter soon ends
        pstn_ep& ep = w.map().eps.Own(EpIndex(KmodWorld::EpOf(side, conn)));
        memset(static_cast<void*>(&ep), 0, sizeof ep);
        for (pstn_conn_ctl& ctl : LgrConn(w.lgr(), conn).ctl)
          memset(static_cast<void*>(&ctl), 0, sizeof ctl);
      }
      pstn_ioc_released released;
      (void)ioctl(w.stack(), PSTN_IOC_RELEASED, &released);
    }
    const size_t n = r.Next() % (r.Next() % 8 == 0 ? sizeof buffer : 3000);
    const int flags = (r.Next() % 8 != 0 ? MSG_DONTWAIT : 0) | MSG_NOSIGNAL;
    pollfd p = {fd, POLLIN | POLLOUT, 0};
    epoll_event ev = {EPOLLIN | EPOLLOUT | EPOLLET, {}};
    ssize_t got = 0;
    int value;
    calls++;
    switch (r.Next() % 12) {
      case 0:
      case 1:
      case 2:
        got = send(fd, buffer, n, flags);
        break;
      case 3:
      case 4:
      case 5:
        got = recv(fd, buffer, n, flags);
        break;
      case 6:
        got = recv(fd, buffer, n, flags | MSG_PEEK);
        break;
      case 7:
        (void)poll(&p, 1, 1);
        break;
      case 8:
        (void)epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev);
        (void)epoll_wait(set, &ev, 1, 1);
        break;
      case 9:
        (void)ioctl(fd, FIONREAD, &value);
        (void)ioctl(fd, PSTN_IOC_RING, r.Next() % 4);
        break;
      case 10:
        if (r.Next() % 20 == 0) (void)shutdown(fd, static_cast<int>(r.Next() % 3));
        break;
      default:
        got = recv(fd, nullptr, n, flags | MSG_TRUNC);
    }
    if (got > static_cast<ssize_t>(sizeof buffer)) EXPECT(!"more than was asked for");
    if (got > 0) moved += static_cast<uint64_t>(got);
  }
  printf("  seed %llu: %llu calls, %llu bytes\n", static_cast<unsigned long long>(seed),
         static_cast<unsigned long long>(calls), static_cast<unsigned long long>(moved));
}

}  // namespace

KMOD_TEST(corrupted_under_its_calls) {
  KmodWorld w;
  alarm(0);
  const uint64_t until = NowNs() + ForNs(20),
                 seed = getenv("KMOD_SECONDS") != nullptr ? NowNs() : 0;
  pid_t children[5];
  for (uint64_t i = 0; i < 5; i++)
    children[i] = InChild([&] {
      if (i < 2)
        Corrupt(w, seed + 100 + i, until);
      else
        CallAtRandom(w, seed + 200 + i, until);
    });
  for (const pid_t child : children) ExpectEndsWell(child);
  // What the corrupter has not touched still works.
  const int a = w.Socket(0, 20), b = w.Socket(1, 20);
  char t[8];
  StoreRelaxed(w.End(0, 20).ep->flags, 0u);
  EXPECT(write(a, "alive", 5) == 5 || errno == EAGAIN || errno == ENOBUFS);
  EXPECT(recv(b, t, sizeof t, MSG_DONTWAIT) == 5 || errno == EAGAIN);
}

// A process that gives pages of the rings back to the system while they are read and written.
KMOD_TEST(pages_are_taken_away) {
  KmodWorld w;
  const int a = w.Socket(0, 0, SOCK_NONBLOCK), b = w.Socket(1, 0, SOCK_NONBLOCK);
  const pid_t puncher = InChild([&] {
    for (int i = 0; i < 3000; i++) {
      EXPECT_IS(fallocate(w.lgr_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(PSTN_LGR_SLAB_OFF), 40 << 20),
                0);
      if (i % 100 == 0)
        (void)fallocate(w.memfd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 64 << 20);
    }
  });
  static uint8_t buffer[30000];
  int status = 0;
  while (waitpid(puncher, &status, WNOHANG) == 0) {
    (void)send(a, buffer, sizeof buffer, MSG_NOSIGNAL);
    (void)recv(b, buffer, sizeof buffer, 0);
  }
  EXPECT_IS(status, 0);
}

// Families that are killed while they exchange bytes: nothing of them is left.
KMOD_TEST(killed_under_load) {
  TestRandom r(11);
  alarm(0);
  int rounds = 0;
  for (const uint64_t until = NowNs() + ForNs(6); NowNs() < until; rounds++) {
    const pid_t family = InChild([&] {
      setpgid(0, 0);
      KmodWorld w;
      int fds[16][2];
      for (uint32_t i = 0; i < 16; i++) {
        fds[i][0] = w.Socket(0, i);
        fds[i][1] = w.Socket(1, i);
      }
      for (uint32_t child = 0; child < 4; child++) {
        if (fork() != 0) continue;
        TestRandom own(child);
        static uint8_t buffer[60000];
        for (;;) {
          auto& pair = fds[own.Next() % 16];
          const size_t n = 1 + own.Next() % sizeof buffer;
          const int flags = own.Next() % 4 == 0 ? 0 : MSG_DONTWAIT;
          if (own.Next() % 2 == 0)
            (void)send(pair[own.Next() % 2], buffer, n, flags | MSG_NOSIGNAL);
          else
            (void)recv(pair[own.Next() % 2], buffer, n, flags);
        }
      }
      pause();
    });
    setpgid(family, family);  // a family that has not come to it yet is killed whole, too
    usleep(static_cast<useconds_t>(20000 + r.Next() % 100000));
    EXPECT_IS(kill(-family, SIGKILL), 0);
    waitpid(family, nullptr, 0);
  }
  printf("  %d families killed\n", rounds);
}

namespace {

// Of a line of /proc/meminfo.
long Kilobytes(const char* what) {
  char page[4096] = {};
  const int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  EXPECT(read(fd, page, sizeof page - 1) > 0);
  close(fd);
  const char* at = strstr(page, what);
  return at != nullptr ? atol(at + strlen(what)) : -1;
}

void OneFamily(uint32_t conns) {
  KmodWorld w({.processes = 8, .sockets = 64, .groups = 4});
  static uint8_t buffer[60000];
  int fds[2];
  for (uint32_t i = 0; i < conns; i++) {
    for (uint32_t side = 0; side < 2; side++) fds[side] = w.Socket(side, i);
    EXPECT_IS(write(fds[0], buffer, sizeof buffer), sizeof buffer);
    EXPECT_IS(recv(fds[1], buffer, sizeof buffer, MSG_WAITALL), sizeof buffer);
    for (const int fd : fds) close(fd);
  }
  w.Close();
}

}  // namespace

// Files, pages and slabs: a page for each connection that is left would be more than what is
// allowed here.
KMOD_TEST(no_memory_is_left) {
  constexpr int kRounds = 500;
  constexpr uint32_t kEach = 8;
  for (int i = 0; i < 50; i++) OneFamily(kEach);
  const long free_kb = Kilobytes("MemAvailable:"), shmem_kb = Kilobytes("Shmem:");
  for (int i = 0; i < kRounds; i++) OneFamily(kEach);
  for (int i = 0; i < 100 && Kilobytes("Shmem:") > shmem_kb + 64; i++) usleep(10000);
  const long less_kb = free_kb - Kilobytes("MemAvailable:");
  printf("  %ld KB less after %d connections\n", less_kb, kRounds * static_cast<int>(kEach));
  EXPECT(Kilobytes("Shmem:") <= shmem_kb + 64);
  EXPECT(less_kb < kRounds * static_cast<int>(kEach) * 4 / 2);
}

namespace {

bool WriteTo(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool done = fd >= 0 && write(fd, text, strlen(text)) == static_cast<ssize_t>(strlen(text));
  close(fd);
  return done;
}

long NumberIn(const char* path) {
  char text[64] = {};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  EXPECT(read(fd, text, sizeof text - 1) > 0);
  close(fd);
  return atol(text);
}

}  // namespace

// What a call makes of the rings' memory is charged to its process's cgroup, and may be more than
// that may have: then the call fails or the process is killed, and others go on.
KMOD_TEST(memory_is_the_callers) {
  mkdir("/tmp/cg", 0755);
  EXPECT_IS(mount("cg", "/tmp/cg", "cgroup2", 0, nullptr), 0);
  EXPECT(WriteTo("/tmp/cg/cgroup.subtree_control", "+memory"));
  for (const char* group : {"/tmp/cg/own", "/tmp/cg/small"}) EXPECT_IS(mkdir(group, 0755), 0);
  KmodWorld w;
  const auto fill = [&](uint32_t conns) {
    static uint8_t block[1 << 16];
    for (uint32_t i = 0; i < conns; i++) {
      const int fd = w.Socket(0, i, SOCK_NONBLOCK);
      while (send(fd, block, sizeof block, MSG_NOSIGNAL) > 0) {
      }
    }
  };
  ExpectEndsWell(InChild([&] {
    EXPECT(WriteTo("/tmp/cg/own/cgroup.procs", "0"));
    const long before = NumberIn("/tmp/cg/own/memory.current");
    fill(4);
    EXPECT(NumberIn("/tmp/cg/own/memory.current") - before > 3 << 20);
  }));
  EXPECT(WriteTo("/tmp/cg/small/memory.max", "16000000"));
  const pid_t child = InChild([&] {
    EXPECT(WriteTo("/tmp/cg/small/cgroup.procs", "0"));
    fill(64);
  });
  int status = 0;
  EXPECT_IS(waitpid(child, &status, 0), child);
  printf("  a process that fills 64 MB with 16 ends with %#x\n", static_cast<unsigned>(status));
  const int a = w.Socket(0, 100), b = w.Socket(1, 100);
  char t[8];
  EXPECT_IS(write(a, "alive", 5), 5);
  EXPECT_IS(read(b, t, sizeof t), 5);
  for (const char* group : {"/tmp/cg/own", "/tmp/cg/small"}) EXPECT_IS(rmdir(group), 0);
  EXPECT_IS(umount2("/tmp/cg", 0), 0);
}

// A process of another PID namespace holds a lock under a number that means another process, or
// none, here; and it has the name of its slot in the list by its number here.
KMOD_TEST(pid_namespaces) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1);
  pstn_lock& lock = w.End(0).ep->rx.lock;
  int ends[2];
  char t[8];
  EXPECT_IS(pipe(ends), 0);
  EXPECT_IS(write(b, "x", 1), 1);
  const pid_t outer = InChild([&] {
    EXPECT_IS(unshare(CLONE_NEWPID), 0);
    const pid_t init = InChild([&] {
      EXPECT_IS(getpid(), 1);
      EXPECT_IS(JoinStack(OpenStack(w.device(), w.memfd()), 2), 0);
      // tidy-allow: a lock's holder is played
      StoreRelaxed(lock.word, 3u << PSTN_LOCK_SLOT_SHIFT | 1u);
      EXPECT_IS(write(ends[1], "!", 1), 1);
      pause();
    });
    EXPECT_IS(read(ends[0], t, 1), 1);
    EXPECT_ERRNO(recv(a, t, 1, MSG_DONTWAIT), EAGAIN);  // number 1 of there lives
    kill(init, SIGKILL);
    waitpid(init, nullptr, 0);
    EXPECT_IS(recv(a, t, 1, 0), 1);  // number 1 of here does, too, and is not meant
  });
  ExpectEndsWell(outer);
}

}  // namespace postern
