// SPDX-License-Identifier: Apache-2.0
// t_library.cc - what the library has the module do: sleep, wake, post to its event maps, and ring
// the doorbells of its event sets.
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#include <initializer_list>

#include "kmod_world.h"
#include "smcd/notify.h"

namespace postern {
namespace {

// A thread that sleeps as one of the library does.
struct Sleep {
  int stack;
  pstn_ioc_wait arg;
  long result = 1;
  int error = 0;
  pthread_t thread = {};

  static void* Run(void* self) {
    auto& s = *static_cast<Sleep*>(self);
    s.result = ioctl(s.stack, PSTN_IOC_WAIT, &s.arg);
    s.error = errno;
    return nullptr;
  }
  void Start() { pthread_create(&thread, nullptr, Run, this); }
  void Join() { pthread_join(thread, nullptr); }
};

pstn_ioc_wait WaitOf(KmodWorld& w, uint32_t side, uint32_t what, uint32_t value, uint64_t ns) {
  return {w.ref(side), 0, what, value, ns};
}

}  // namespace

KMOD_TEST(wait_is_as_a_futexs) {
  KmodWorld w;
  const ConnEnd e = w.End(0);
  pstn_ioc_wait arg = WaitOf(w, 0, PSTN_RING_DATA, 5, PSTN_WAIT_FOREVER);
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), EAGAIN);  // the word is 0
  StoreRelaxed(e.ctl().rx_wait, 5u);
  arg.timeout_ns = 30'000'000;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), ETIMEDOUT);
  arg.what = PSTN_RING_SPACE;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), EAGAIN);  // tx_wait is 0
  arg.what = PSTN_RING_DATA | PSTN_RING_SPACE;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), EINVAL);
  arg = WaitOf(w, 0, PSTN_RING_DATA, 5, 1);
  arg.lgr_idx = 1u << 20;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), EINVAL);
  arg.lgr_idx = w.ref(0);
  arg.conn_idx = PSTN_CONNS;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAIT, &arg), EINVAL);
  w.Close();
}

KMOD_TEST(wake_gets_up_who_is_meant) {
  KmodWorld w;
  const ConnEnd e = w.End(0);
  StoreRelaxed(e.ctl().rx_wait, uint32_t{PSTN_RXW_MODULE});
  StoreRelaxed(e.ctl().tx_wait, uint32_t{PSTN_TXW_MODULE});
  Sleep reader{w.stack(), WaitOf(w, 0, PSTN_RING_DATA, PSTN_RXW_MODULE, PSTN_WAIT_FOREVER)};
  Sleep writer{w.stack(), WaitOf(w, 0, PSTN_RING_SPACE, PSTN_TXW_MODULE, 400'000'000)};
  reader.Start();
  writer.Start();
  usleep(100000);
  pstn_ioc_wake wake = {w.ref(1), 0, PSTN_RING_DATA, 0};  // from the other end
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_WAKE, &wake), 0);
  reader.Join();
  EXPECT_IS(reader.result, 0);
  writer.Join();
  EXPECT_IS(writer.result, -1);
  EXPECT_IS(writer.error, ETIMEDOUT);
  // From this end, by whoever shares it.
  writer.arg.timeout_ns = PSTN_WAIT_FOREVER;
  writer.Start();
  usleep(100000);
  wake = {w.ref(0), 0, PSTN_RING_SPACE | PSTN_RING_OWN, 0};
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_WAKE, &wake), 0);
  writer.Join();
  EXPECT_IS(writer.result, 0);
  wake.zero = 1;
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAKE, &wake), EINVAL);
  wake = {1u << 20, 0, PSTN_RING_DATA, 0};
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_WAKE, &wake), EINVAL);
  w.Close();
}

// A socket's write wakes a thread of the library that sleeps in the module, and the reverse.
KMOD_TEST(socket_wakes_a_sleeping_library) {
  KmodWorld w;
  const int fd = w.Socket(0);
  const ConnEnd peer = w.End(1);
  EXPECT((LoadRelaxed(peer.peer_ctl().flags) & PSTN_CF_MODULE) != 0);
  StoreRelaxed(peer.ctl().rx_wait, uint32_t{PSTN_RXW_MODULE});
  Sleep reader{w.stack(), WaitOf(w, 1, PSTN_RING_DATA, PSTN_RXW_MODULE, PSTN_WAIT_FOREVER)};
  reader.Start();
  usleep(100000);
  EXPECT_IS(write(fd, "news", 4), 4);
  reader.Join();
  EXPECT_IS(reader.result, 0);
  EXPECT_IS(LoadRelaxed(peer.ctl().rx_wait), 0);
  char t[8];
  EXPECT_IS(w.Read(peer, t, sizeof t).bytes, 4);
  // Its last close, too.
  StoreRelaxed(peer.ctl().rx_wait, uint32_t{PSTN_RXW_MODULE});
  reader.Start();
  usleep(100000);
  close(fd);
  reader.Join();
  EXPECT_IS(reader.result, 0);
  w.Close();
}

KMOD_TEST(socket_posts_and_rings) {
  KmodWorld w;
  const int fd = w.Socket(0);
  const ConnEnd peer = w.End(1);
  constexpr uint32_t kWaiter = 70;
  pstn_evmap& map = LgrEvmap(w.lgr(), 1, kWaiter);
  StoreRelaxed(map.nonce, uint64_t{0x1234567890abcdef});
  const int bell = OpenBell({w.id(), kWaiter, 0x1234567890abcdef});
  EXPECT(bell >= 0);
  StoreRelaxed(peer.ctl().rx_notify, kWaiter + 1);
  char byte;
  // Awake: a bit, and no ring.
  EXPECT_IS(write(fd, "a", 1), 1);
  EXPECT_IS(LoadRelaxed(map.summary), 1);
  EXPECT_IS(LoadRelaxed(map.leaf[0]), 1);
  EXPECT_ERRNO(recv(bell, &byte, 1, MSG_DONTWAIT), EAGAIN);
  // Asleep: one ring, out of a socket that is made for it, then out of the one that is given.
  for (int i = 0; i < 2; i++) {
    StoreRelaxed(map.sleeping, 1u);
    EXPECT_IS(write(fd, "b", 1), 1);
    EXPECT_IS(LoadRelaxed(map.sleeping), 0);
    EXPECT_IS(recv(bell, &byte, 1, MSG_DONTWAIT), 1);
    EXPECT_IS(write(fd, "c", 1), 1);
    EXPECT_ERRNO(recv(bell, &byte, 1, MSG_DONTWAIT), EAGAIN);
    const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const pstn_ioc_bells bells = {static_cast<uint32_t>(sender), 0};
    EXPECT_IS(ioctl(w.stack(), PSTN_IOC_BELLS, &bells), 0);
    close(sender);
  }
  const pstn_ioc_bells none = {static_cast<uint32_t>(fd), 0};
  EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_BELLS, &none), EINVAL);
  // All waiters of the side, as for a connection that several have.
  pstn_evmap& all = LgrEvmap(w.lgr(), 1, PSTN_EVMAP_ALL);
  StoreRelaxed(LgrHdr(w.lgr()).waiters_hw[1], kWaiter + 1);
  StoreRelaxed(map.in_use, uint32_t{PSTN_EV_USED});
  StoreRelaxed(map.sleeping, 1u);
  StoreRelaxed(peer.ctl().rx_notify, uint32_t{PSTN_NOTIFY_ALL});
  EXPECT_IS(write(fd, "d", 1), 1);
  EXPECT_IS(LoadRelaxed(all.summary), 1);
  EXPECT_IS(recv(bell, &byte, 1, MSG_DONTWAIT), 1);
  // A client that the server has not admitted yet.
  StoreRelaxed(map.in_use, uint32_t{PSTN_EV_USED | PSTN_EV_SYN});
  StoreRelaxed(map.sleeping, 1u);
  StoreRelaxed(peer.ctl().rx_notify, uint32_t{PSTN_NOTIFY_SYN});
  EXPECT_IS(write(fd, "e", 1), 1);
  EXPECT_IS(LoadRelaxed(LgrEvmap(w.lgr(), 1, PSTN_EVMAP_SYN).summary), 1);
  EXPECT_IS(recv(bell, &byte, 1, MSG_DONTWAIT), 1);
  // Any other number is survived.
  for (const uint32_t lie : {0xfffeu, 0x10000u, 0xffffffffu}) {
    StoreRelaxed(peer.ctl().rx_notify, lie);
    EXPECT_IS(write(fd, "f", 1), 1);
  }
  close(bell);
  close(fd);
  w.Close();
}

// A child's own descriptor, from the one that it has inherited.
KMOD_TEST(member_of_a_child) {
  KmodWorld w;
  ExpectEndsWell(InChild([&] {
    EXPECT_ERRNO(JoinStack(w.stack(), 1), EBUSY);
    const int own = ioctl(w.stack(), PSTN_IOC_MEMBER);
    EXPECT(own >= 0);
    EXPECT_IS(JoinStack(own, 1), 0);
    EXPECT((fcntl(own, F_GETFD) & FD_CLOEXEC) != 0);
  }));
  w.Close();
}

// A wait for ever goes on behind a handler with SA_RESTART, one with an end does not.
KMOD_TEST(wait_and_signals) {
  KmodWorld w;
  const ConnEnd e = w.End(0);
  StoreRelaxed(e.ctl().rx_wait, uint32_t{PSTN_RXW_MODULE});
  struct sigaction act = {};
  act.sa_handler = [](int) {};
  act.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &act, nullptr);
  Sleep forever{w.stack(), WaitOf(w, 0, PSTN_RING_DATA, PSTN_RXW_MODULE, PSTN_WAIT_FOREVER)};
  Sleep limited{w.stack(), WaitOf(w, 0, PSTN_RING_DATA, PSTN_RXW_MODULE, 60'000'000'000)};
  forever.Start();
  limited.Start();
  usleep(100000);
  pthread_kill(forever.thread, SIGUSR1);
  pthread_kill(limited.thread, SIGUSR1);
  limited.Join();
  EXPECT_IS(limited.result, -1);
  EXPECT_IS(limited.error, EINTR);
  usleep(50000);
  EXPECT_IS(forever.result, 1);
  const pstn_ioc_wake wake = {w.ref(1), 0, PSTN_RING_DATA, 0};
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_WAKE, &wake), 0);
  forever.Join();
  EXPECT_IS(forever.result, 0);
  w.Close();
}

}  // namespace postern
