// SPDX-License-Identifier: Apache-2.0
// kmod_world.h - for the tests of postern.ko: a small frame for tests, a stack and a link group as
// the library makes them, and sockets of the module at both ends of its connections.
//
// Each test runs in a process of its own, and none may take longer than kTestSeconds.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "../unit/kit/known_stream.h"
#include "abi/kmod_abi.h"
#include "base/lock.h"
#include "base/sys.h"
#include "smcd/ring.h"

namespace postern {

// ---- the frame.

struct KmodTest {
  const char* name;
  void (*run)();
  KmodTest* next;
};
inline KmodTest* g_tests = nullptr;
inline int g_wrong = 0;

struct AddTest {
  explicit AddTest(KmodTest& t) {
    KmodTest** at = &g_tests;
    while (*at != nullptr) at = &(*at)->next;
    *at = &t;
  }
};
#define KMOD_TEST(fn)                             \
  static void fn();                               \
  static KmodTest fn##_test = {#fn, fn, nullptr}; \
  static AddTest fn##_add(fn##_test);             \
  static void fn()

inline void Wrong(const char* file, int line, const char* what, long got) {
  printf("  %s:%d: %s (%ld, errno %d: %s)\n", strrchr(file, '/') + 1, line, what, got, errno,
         strerror(errno));
  fflush(stdout);
  g_wrong++;
}
#define EXPECT(cond) \
  ((cond) ? static_cast<void>(0) : Wrong(__FILE__, __LINE__, "not so: " #cond, 0))
#define EXPECT_IS(expr, want)                                                                     \
  do {                                                                                            \
    const long got_ = static_cast<long>(expr);                                                    \
    if (got_ != static_cast<long>(want)) Wrong(__FILE__, __LINE__, #expr " is not " #want, got_); \
  } while (0)
#define EXPECT_ERRNO(expr, error)                                                                 \
  do {                                                                                            \
    errno = 0;                                                                                    \
    const long got_ = static_cast<long>(expr);                                                    \
    if (got_ != -1 || errno != (error)) Wrong(__FILE__, __LINE__, #expr " is not " #error, got_); \
  } while (0)

// What a child of a test found wrong is the test's.
template <typename Fn>
pid_t InChild(Fn fn) {
  fflush(stdout);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  ForgetTid();
  g_wrong = 0;
  fn();
  fflush(stdout);
  _exit(g_wrong == 0 ? 0 : 1);
}
inline void ExpectEndsWell(pid_t pid) {
  int status = -1;
  EXPECT_IS(waitpid(pid, &status, 0), pid);
  EXPECT_IS(status, 0);
}

// ---- the module.

inline int Device() {
  const int fd = open(PSTN_KMOD_DEVICE, O_RDWR | O_CLOEXEC);
  if (fd < 0) Wrong(__FILE__, __LINE__, "no device", fd);
  return fd;
}
inline int OpenStack(int device, int memfd, uint32_t flags = PSTN_STACK_CLOEXEC) {
  pstn_ioc_stack arg = {static_cast<uint32_t>(memfd), flags};
  return ioctl(device, PSTN_IOC_STACK, &arg);
}
inline int SitLink(int stack, int memfd, uint32_t lgr_idx, uint32_t side) {
  pstn_ioc_link arg = {static_cast<uint32_t>(memfd), lgr_idx, side, 0};
  return ioctl(stack, PSTN_IOC_LINK, &arg);
}
inline int JoinStack(int stack, uint32_t slot) {
  pstn_ioc_join arg = {slot, 0};
  return ioctl(stack, PSTN_IOC_JOIN, &arg);
}
inline int NewEndpoint(int stack, int family = AF_INET, int type = SOCK_STREAM | SOCK_CLOEXEC,
                       int protocol = 0) {
  pstn_ioc_endpoint arg = {static_cast<uint32_t>(family), static_cast<uint32_t>(type),
                           static_cast<uint32_t>(protocol), 0};
  return ioctl(stack, PSTN_IOC_ENDPOINT, &arg);
}

inline pstn_addr LoopbackAt(uint16_t port) {
  pstn_addr a = {};
  a.ip[10] = a.ip[11] = 0xff;
  a.ip[12] = 127;
  a.ip[15] = 1;
  a.port = port;
  return a;
}

// A stack that talks to itself: one link group, and both of its sides.
class KmodWorld {
 public:
  explicit KmodWorld(const StackSizes& sizes = {.sockets = 1024}) {
    const pstn_uuid lgr_id = NewUuid();
    device_ = Device();
    memfd_ = CreateStack(id_, sizes);
    lgr_fd_ = CreateLgr(lgr_id, id_, id_);
    s_ = MapStack(memfd_);
    lgr_ = MapLgr(lgr_fd_, &lgr_id);
    stack_ = OpenStack(device_, memfd_);
    EXPECT(s_ != nullptr && lgr_ != nullptr && stack_ >= 0);
    for (uint32_t side = 0; side < 2; side++) {
      ref_[side] = AddLgrRef(*s_, side, lgr_id, id_);
      EXPECT_IS(SitLink(stack_, lgr_fd_, ref_[side], side), 0);
    }
  }
  // All but sockets. Tests whose process ends need not.
  void Close() {
    UnmapLgr(lgr_);
    UnmapStack(s_);
    for (const int fd : {device_, memfd_, lgr_fd_, stack_}) close(fd);
  }
  KmodWorld(const KmodWorld&) = delete;
  KmodWorld& operator=(const KmodWorld&) = delete;

  int device() const { return device_; }
  int memfd() const { return memfd_; }
  int lgr_fd() const { return lgr_fd_; }
  int stack() const { return stack_; }
  uint8_t* lgr() { return lgr_; }
  StackMap& map() { return *s_; }
  uint32_t ref(uint32_t side) const { return ref_[side]; }
  const pstn_uuid& id() const { return id_; }

  static uint32_t EpOf(uint32_t side, uint32_t conn) { return conn * 2 + side; }
  // The connection's end as the library has it.
  ConnEnd End(uint32_t side, uint32_t conn = 0) {
    pstn_ep& ep = s_->eps.Own(EpIndex(EpOf(side, conn)));
    ep.lgr_idx = ref_[side];
    ep.conn_idx = conn;
    ep.side = static_cast<uint16_t>(side);
    ep.conn_gen = LoadRelaxed(LgrConn(lgr_, conn).setup.gen);
    StoreRelaxed(ep.state, static_cast<uint32_t>(PSTN_EP_ESTABLISHED));
    return {&ep, &s_->lgrs.Own(LgrIndex(ref_[side])), lgr_, &LgrConn(lgr_, conn), side};
  }
  int Go(int fd, uint32_t side, uint32_t conn, uint32_t gen) {
    pstn_ioc_go arg = {EpOf(side, conn), ref_[side], conn, gen, {}, {}};
    arg.local = LoopbackAt(static_cast<uint16_t>(1000 + side));
    arg.peer = LoopbackAt(static_cast<uint16_t>(1001 - side));
    return ioctl(fd, PSTN_IOC_GO, &arg);
  }
  // The module's socket at that end.
  int Socket(uint32_t side, uint32_t conn = 0, int type = 0, int family = AF_INET) {
    const ConnEnd e = End(side, conn);
    StoreRelaxed(e.conn->setup.state, static_cast<uint32_t>(PSTN_CS_ESTABLISHED));
    const int fd = NewEndpoint(stack_, family, SOCK_STREAM | SOCK_CLOEXEC | type);
    EXPECT(fd >= 0);
    EXPECT_IS(Go(fd, side, conn, LoadRelaxed(e.conn->setup.gen)), 0);
    return fd;
  }
  // The call that the library makes when the other end sleeps in the kernel; how often it had to.
  int Tell(const ConnEnd& e, int own_fd, uint32_t what) {
    FullFence();
    uint32_t& word = what == PSTN_RING_DATA ? e.peer_ctl().rx_wait : e.peer_ctl().tx_wait;
    const uint32_t bit = what == PSTN_RING_DATA ? PSTN_RXW_MODULE : PSTN_TXW_MODULE;
    if (LoadRelaxed(word) == 0 || (Exchange(word, 0u) & bit) == 0) return 0;
    EXPECT_IS(ioctl(own_fd, PSTN_IOC_RING, what), 0);
    return 1;
  }
  size_t Write(const ConnEnd& e, const void* from, size_t bytes) {
    iovec iov = {const_cast<void*>(from), bytes};
    IovCursor cursor(&iov, 1);
    Lock(e.ep->tx.lock);
    const size_t n = RingWrite(e, cursor, {}, Growth::kNow);
    Unlock(e.ep->tx.lock);
    return n;
  }
  ReadResult Read(const ConnEnd& e, void* to, size_t bytes) {
    iovec iov = {to, bytes};
    IovCursor cursor(&iov, 1);
    Lock(e.ep->rx.lock);
    const ReadResult r = RingRead(e, &cursor, bytes, ReadMode::kTake);
    Unlock(e.ep->rx.lock);
    return r;
  }

 private:
  const pstn_uuid id_ = NewUuid();
  int device_, memfd_, lgr_fd_, stack_;
  StackMap* s_;
  uint8_t* lgr_;
  uint32_t ref_[2];
};

}  // namespace postern
