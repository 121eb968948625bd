// SPDX-License-Identifier: Apache-2.0
// t_objects.cc - the nouns of postern.ko: device, stack, link group, endpoint; who may have them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <linux/memfd.h>

#include <initializer_list>

#include "kmod_world.h"

namespace postern {

extern const char* g_module;

namespace {

constexpr uid_t kNobody = 65534;

ino_t InodeOf(int fd) {
  struct stat st = {};
  EXPECT_IS(fstat(fd, &st), 0);
  return st.st_ino;
}

int CopyOfMemory(int memfd, unsigned seals) {
  struct stat st = {};
  fstat(memfd, &st);
  const int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_IS(ftruncate(copy, st.st_size), 0);
  char page[65536];
  const ssize_t n = pread(memfd, page, sizeof page, 0);
  EXPECT_IS(pwrite(copy, page, static_cast<size_t>(n), 0), n);
  if (seals != 0) EXPECT_IS(fcntl(copy, F_ADD_SEALS, seals), 0);
  return copy;
}

}  // namespace

KMOD_TEST(device_says_what_it_is) {
  const int device = Device();
  pstn_ioc_version v = {};
  EXPECT_IS(ioctl(device, PSTN_IOC_VERSION, &v), 0);
  EXPECT_IS(v.kmod_version, PSTN_KMOD_VERSION);
  EXPECT_IS(v.abi_version, PSTN_ABI_VERSION);
  EXPECT_ERRNO(ioctl(device, PSTN_IOC_GO, &v), ENOTTY);
  EXPECT_ERRNO(ioctl(device, PSTN_IOC_VERSION, nullptr), EFAULT);
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  pstn_ioc_what what = {};
  EXPECT_ERRNO(ioctl(other, PSTN_IOC_WHAT, &what), ENOTTY);
}

KMOD_TEST(stack_is_one_object_for_all) {
  KmodWorld w;
  const int again = OpenStack(w.device(), w.memfd());
  EXPECT(again >= 0);
  EXPECT_IS(InodeOf(again), InodeOf(w.stack()));
  const int memfd = CreateStack(NewUuid(), {.sockets = 64});
  const int another = OpenStack(w.device(), memfd);
  EXPECT(another >= 0);
  EXPECT(InodeOf(another) != InodeOf(w.stack()));
  char link[64] = {}, path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", another);
  EXPECT(readlink(path, link, sizeof link - 1) > 0);
  EXPECT(strncmp(link, "postern:[", 9) == 0);
  EXPECT((fcntl(again, F_GETFD) & FD_CLOEXEC) != 0);
  EXPECT((fcntl(OpenStack(w.device(), w.memfd(), 0), F_GETFD) & FD_CLOEXEC) == 0);
}

// All sizes that the library makes are sizes that the module takes: its layout is the library's.
KMOD_TEST(stack_of_every_size) {
  const int device = Device();
  const StackSizes sizes[] = {
      {.processes = 8, .sockets = 16, .groups = 4, .sets = 8, .registrations = 16},
      {},
      {.processes = 510,
       .sockets = 1048576,
       .groups = 1024,
       .sets = 2048,
       .registrations = 4194304},
      {.processes = 9, .sockets = 1025, .groups = 5}};
  for (const StackSizes& s : sizes) {
    const int memfd = CreateStack(NewUuid(), s);
    const int stack = OpenStack(device, memfd);
    EXPECT(stack >= 0);
    EXPECT_IS(JoinStack(stack, s.processes - 1), 0);
    EXPECT_ERRNO(JoinStack(stack, s.processes), EINVAL);
    close(stack);
    close(memfd);
  }
}

KMOD_TEST(stack_refuses_other_memory) {
  const int device = Device();
  const int memfd = CreateStack(NewUuid(), {.sockets = 64});
  EXPECT_ERRNO(OpenStack(device, -1), EBADF);
  EXPECT_ERRNO(OpenStack(device, device), EINVAL);
  EXPECT_ERRNO(OpenStack(device, memfd, 2), EINVAL);
  EXPECT_ERRNO(OpenStack(device, CopyOfMemory(memfd, 0)), EINVAL);
  EXPECT_ERRNO(OpenStack(device, CopyOfMemory(memfd, F_SEAL_SHRINK)), EINVAL);
  constexpr unsigned kFutureWrite = 0x10, kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  // What nobody may write, now or later: others count on that.
  EXPECT_ERRNO(OpenStack(device, CopyOfMemory(memfd, F_SEAL_SHRINK | F_SEAL_GROW)), EINVAL);
  EXPECT_ERRNO(OpenStack(device, CopyOfMemory(memfd, kSealed | F_SEAL_WRITE)), EINVAL);
  EXPECT_ERRNO(OpenStack(device, CopyOfMemory(memfd, kSealed | kFutureWrite)), EINVAL);
  EXPECT(OpenStack(device, CopyOfMemory(memfd, kSealed)) >= 0);
  const auto spoilt = [&](size_t off, uint32_t value) {
    const int copy = CopyOfMemory(memfd, kSealed);
    EXPECT_IS(pwrite(copy, &value, 4, static_cast<off_t>(off)), 4);
    EXPECT_ERRNO(OpenStack(device, copy), EINVAL);
    close(copy);
  };
  spoilt(offsetof(pstn_stack_hdr, magic), PSTN_MAGIC_LGR);
  spoilt(offsetof(pstn_stack_hdr, abi_version), PSTN_ABI_VERSION + 1);
  spoilt(offsetof(pstn_stack_hdr, size_bytes), 4096);
  for (size_t off = 0; off < sizeof(pstn_stack_counts); off += 4) {
    spoilt(offsetof(pstn_stack_hdr, counts) + off, 0xffffffff);
    spoilt(offsetof(pstn_stack_hdr, counts) + off, 7);
  }
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
  const int read_only = open(path, O_RDONLY | O_CLOEXEC);
  EXPECT_ERRNO(OpenStack(device, read_only), EINVAL);
}

KMOD_TEST(link_takes_the_side_of_its_name) {
  KmodWorld w;
  const pstn_uuid other_id = NewUuid(), lgr_id = NewUuid();
  const int other_memfd = CreateStack(other_id, {.sockets = 64});
  const int other = OpenStack(w.device(), other_memfd);
  const int lgr = CreateLgr(lgr_id, w.id(), other_id);
  EXPECT_ERRNO(SitLink(w.stack(), lgr, 5, 1), EINVAL);  // not its name
  EXPECT_ERRNO(SitLink(w.stack(), lgr, 5, 2), EINVAL);
  EXPECT_ERRNO(SitLink(w.stack(), lgr, 1 << 20, 0), EINVAL);
  EXPECT_ERRNO(SitLink(w.stack(), w.memfd(), 5, 0), EINVAL);
  EXPECT_IS(SitLink(w.stack(), lgr, 5, 0), 0);
  EXPECT_IS(SitLink(w.stack(), lgr, 5, 0), 0);  // once more
  EXPECT_ERRNO(SitLink(w.stack(), lgr, w.ref(0), 0), EBUSY);
  EXPECT_IS(SitLink(other, lgr, 0, 1), 0);
  // Whoever writes the name of the other side over its own gets no seat that is taken.
  pstn_lgr_hdr h;
  EXPECT(pread(lgr, &h, sizeof h, 0) > 0);
  h.stack[0] = other_id;
  EXPECT(pwrite(lgr, &h, sizeof h, 0) > 0);
  EXPECT_ERRNO(SitLink(other, lgr, 1, 0), EBUSY);
}

KMOD_TEST(endpoint_is_the_kernels_until_it_goes) {
  KmodWorld w;
  const int listener = NewEndpoint(w.stack()), client = NewEndpoint(w.stack());
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_IS(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_IS(listen(listener, 5), 0);
  socklen_t len = sizeof at;
  EXPECT_IS(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &len), 0);
  EXPECT(at.sin_port != 0);
  EXPECT_IS(connect(client, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  const int server = accept(listener, nullptr, nullptr);
  EXPECT(server >= 0);
  pstn_ioc_what what = {};
  EXPECT_IS(ioctl(client, PSTN_IOC_WHAT, &what), 0);
  EXPECT_IS(what.accelerated, 0);
  EXPECT_ERRNO(ioctl(server, PSTN_IOC_WHAT, &what), ENOTTY);  // the kernel's whole
  char text[8] = {};
  EXPECT_IS(write(client, "hello", 5), 5);
  EXPECT_IS(read(server, text, sizeof text), 5);
  EXPECT_IS(write(server, "olleh", 5), 5);
  pollfd p = {client, POLLIN, 0};
  EXPECT_IS(poll(&p, 1, 1000), 1);
  EXPECT_IS(read(client, text, sizeof text), 5);
  EXPECT_ERRNO(w.Go(client, 0, 0, 0), EISCONN);
  EXPECT_ERRNO(ioctl(client, PSTN_IOC_RING, PSTN_RING_DATA), ENOTCONN);
  EXPECT_IS(shutdown(client, SHUT_WR), 0);
  EXPECT_IS(read(server, text, sizeof text), 0);
  // One that was accepted outlives all that is ours.
  close(client);
  close(listener);
  EXPECT_IS(write(server, "x", 1), 1);
}

KMOD_TEST(endpoint_is_a_socket) {
  KmodWorld w;
  for (const int family : {AF_INET, AF_INET6}) {
    const uint32_t conn = family == AF_INET6 ? 1 : 0;
    const int fd = w.Socket(0, conn, 0, family);
    struct stat st = {};
    fstat(fd, &st);
    EXPECT(S_ISSOCK(st.st_mode));
    char link[64] = {}, path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    EXPECT(readlink(path, link, sizeof link - 1) > 0 && strncmp(link, "socket:[", 8) == 0);
    int value = 0;
    socklen_t len = sizeof value;
    EXPECT_IS(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len), 0);
    EXPECT_IS(value, family);
    EXPECT_IS(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len), 0);
    EXPECT_IS(value, SOCK_STREAM);
    EXPECT_IS(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &len), 0);
    EXPECT_IS(value, IPPROTO_TCP);
    uint64_t cookie = 0;
    len = sizeof cookie;
    EXPECT_IS(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len), 0);
    EXPECT(cookie != 0);
    sockaddr_storage name = {};
    len = sizeof name;
    EXPECT_IS(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len), 0);
    EXPECT_IS(name.ss_family, family);
    EXPECT_IS(ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port), 1000);
    EXPECT_IS(len, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    len = sizeof name;
    EXPECT_IS(getpeername(fd, reinterpret_cast<sockaddr*>(&name), &len), 0);
    EXPECT_IS(ntohs(reinterpret_cast<sockaddr_in*>(&name)->sin_port), 1001);
    EXPECT_ERRNO(connect(fd, reinterpret_cast<sockaddr*>(&name), len), EISCONN);
    EXPECT_ERRNO(listen(fd, 1), EINVAL);
    EXPECT_ERRNO(setsockopt(fd, SOL_TCP, 31 /* TCP_ULP */, "tls", 4), ENOENT);
    pstn_ioc_what what = {};
    EXPECT_IS(ioctl(fd, PSTN_IOC_WHAT, &what), 0);
    EXPECT(what.accelerated == 1 && what.conn_idx == conn && what.side == 0 &&
           SameUuid(what.stack, w.id()));
  }
  EXPECT_ERRNO(NewEndpoint(w.stack(), AF_UNIX), EPFNOSUPPORT);
  EXPECT_ERRNO(NewEndpoint(w.stack(), AF_INET, SOCK_DGRAM), EPROTONOSUPPORT);
  EXPECT_ERRNO(NewEndpoint(w.stack(), AF_INET, SOCK_STREAM | 0x10000), EINVAL);
  EXPECT_ERRNO(NewEndpoint(w.stack(), AF_INET, SOCK_STREAM, IPPROTO_SCTP), EPROTONOSUPPORT);
}

KMOD_TEST(go_checks_what_it_is_told) {
  KmodWorld w;
  const int fd = NewEndpoint(w.stack());
  w.End(0).conn->setup.gen = 7;
  const pstn_ioc_go good = {0, w.ref(0), 0, 7, LoopbackAt(1), LoopbackAt(2)};
  pstn_ioc_go arg = good;
  arg.ep_idx = 1024;
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &arg), EINVAL);
  arg = good, arg.lgr_idx = 2000000;
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &arg), EINVAL);
  arg = good, arg.lgr_idx = 77;
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &arg), EINVAL);
  arg = good, arg.conn_idx = PSTN_CONNS;
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &arg), EINVAL);
  arg = good, arg.gen = 8;
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &arg), ESTALE);
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, nullptr), EFAULT);
  EXPECT_IS(ioctl(fd, PSTN_IOC_GO, &good), 0);
  EXPECT_ERRNO(ioctl(fd, PSTN_IOC_GO, &good), EISCONN);
  EXPECT_ERRNO(ioctl(NewEndpoint(w.stack()), PSTN_IOC_GO, &good), EBUSY);
  // The slot becomes another connection's: this one is over.
  StoreRelaxed(w.End(0).conn->setup.gen, 9u);
  char byte;
  EXPECT_ERRNO(recv(fd, &byte, 1, MSG_DONTWAIT), ECONNRESET);
  EXPECT_ERRNO(send(fd, &byte, 1, MSG_DONTWAIT), ECONNRESET);
}

KMOD_TEST(another_user_gets_nothing) {
  KmodWorld w;
  const int a = w.Socket(0), b = w.Socket(1), idle = NewEndpoint(w.stack());
  EXPECT_IS(write(b, "secret", 6), 6);
  ExpectEndsWell(InChild([&] {
    EXPECT_IS(setgid(kNobody), 0);
    EXPECT_IS(setuid(kNobody), 0);
    EXPECT_ERRNO(OpenStack(w.device(), w.memfd()), EPERM);
    EXPECT_ERRNO(NewEndpoint(w.stack()), EPERM);
    EXPECT_ERRNO(JoinStack(w.stack(), 1), EPERM);
    EXPECT_ERRNO(SitLink(w.stack(), w.lgr_fd(), 9, 0), EPERM);
    pstn_ioc_released released;
    EXPECT_ERRNO(ioctl(w.stack(), PSTN_IOC_RELEASED, &released), EPERM);
    EXPECT_ERRNO(w.Go(idle, 0, 1, 0), EPERM);
    char text[16] = {};
    for (const char* list : {"stacks", "endpoints", "holders"}) {
      char path[64], page[4096] = {};
      snprintf(path, sizeof path, "/proc/postern/%s", list);
      const int fd = open(path, O_RDONLY);
      EXPECT(fd >= 0);
      const ssize_t n = read(fd, page, sizeof page - 1);
      EXPECT(n > 0 && strchr(page, '\n') == page + n - 1);  // the heading alone
    }
    // A socket that it was given is a socket.
    EXPECT_IS(read(a, text, sizeof text), 6);
    EXPECT_IS(write(a, "answer", 6), 6);
    // What is its own it has.
    const pstn_uuid id = NewUuid();
    EXPECT(OpenStack(open(PSTN_KMOD_DEVICE, O_RDWR), CreateStack(id, {.sockets = 64})) >= 0);
  }));
  char text[16] = {};
  EXPECT_IS(read(b, text, sizeof text), 6);
}

KMOD_TEST(limits_of_a_user) {
  const auto set = [](const char* name, const char* value) {
    char path[96];
    snprintf(path, sizeof path, "/sys/module/postern/parameters/%s", name);
    const int fd = open(path, O_WRONLY);
    EXPECT_IS(write(fd, value, strlen(value)), strlen(value));
    close(fd);
  };
  KmodWorld w;
  set("stacks", "2");
  const int memfd = CreateStack(NewUuid(), {.sockets = 64});
  const int second = OpenStack(w.device(), memfd);
  EXPECT(second >= 0);
  const int third = CreateStack(NewUuid(), {.sockets = 64});
  EXPECT_ERRNO(OpenStack(w.device(), third), EDQUOT);
  close(second);
  EXPECT(OpenStack(w.device(), third) >= 0);
  set("stacks", "256");
  set("endpoints", "3");
  const int a = w.Socket(0), b = w.Socket(1), c = NewEndpoint(w.stack());
  EXPECT(c >= 0);
  EXPECT_ERRNO(NewEndpoint(w.stack()), EDQUOT);
  close(c);
  EXPECT(NewEndpoint(w.stack()) >= 0);
  // An accelerated one counts until the family has heard that it is gone.
  close(a);
  EXPECT_ERRNO(NewEndpoint(w.stack()), EDQUOT);
  pstn_ioc_released released = {};
  EXPECT_IS(ioctl(w.stack(), PSTN_IOC_RELEASED, &released), 0);
  EXPECT(released.count == 1 && released.ep_idx[0] == 0);
  EXPECT(NewEndpoint(w.stack()) >= 0);
  set("endpoints", "262144");
  set("links", "2");
  const int lgr = CreateLgr(NewUuid(), w.id(), w.id());
  EXPECT_ERRNO(SitLink(w.stack(), lgr, 7, 0), EDQUOT);
  set("links", "4096");
  EXPECT_IS(SitLink(w.stack(), lgr, 7, 0), 0);
  (void)b;
}

KMOD_TEST(lists_say_what_there_is) {
  KmodWorld w;
  EXPECT_IS(JoinStack(w.stack(), 3), 0);
  const int a = w.Socket(0), idle = NewEndpoint(w.stack());
  const auto has = [](const char* list, const char* wanted) {
    char path[64], page[4096] = {};
    snprintf(path, sizeof path, "/proc/postern/%s", list);
    const int fd = open(path, O_RDONLY);
    EXPECT(read(fd, page, sizeof page - 1) > 0);
    close(fd);
    if (strstr(page, wanted) == nullptr) printf("%s", page);
    return strstr(page, wanted) != nullptr;
  };
  char text[96];
  snprintf(text, sizeof text, " %016llx%016llx 0 2 1 ", static_cast<unsigned long long>(w.id().hi),
           static_cast<unsigned long long>(w.id().lo));
  EXPECT(has("stacks", text));
  snprintf(text, sizeof text, " 0 %d 3\n", getpid());
  EXPECT(has("holders", text));
  EXPECT(has("endpoints", "memory 0 0 0 0 [::ffff:127.0.0.1]:1000 [::ffff:127.0.0.1]:1001\n"));
  EXPECT(has("endpoints", " kernel - "));
  char info[1024] = {}, where[32];
  snprintf(where, sizeof where, "/proc/self/fdinfo/%d", a);
  EXPECT(read(open(where, O_RDONLY), info, sizeof info - 1) > 0);
  EXPECT(strstr(info, "postern-endpoint:\t0\npostern-connection:\t0 0 0\n") != nullptr);
  // A child has the descriptor, and is not who asked for it.
  ExpectEndsWell(InChild([&] {
    EXPECT_ERRNO(JoinStack(w.stack(), 4), EBUSY);
    const int own = OpenStack(w.device(), w.memfd());
    EXPECT_IS(JoinStack(own, 4), 0);
    char line[64];
    snprintf(line, sizeof line, " 0 %d 4\n", getpid());
    EXPECT(has("holders", line));
  }));
  (void)a, (void)idle;
}

// rmmod is refused while anything of the module is in use, and works when nothing is.
KMOD_TEST(module_stays_while_it_is_used) {
  const auto remove = [] { return syscall(SYS_delete_module, "postern", O_NONBLOCK); };
  auto* w = new KmodWorld;
  EXPECT_ERRNO(remove(), EAGAIN);
  const int a = w->Socket(0);
  close(w->device());
  close(w->stack());
  EXPECT_ERRNO(remove(), EAGAIN);
  EXPECT_IS(write(a, "x", 1), 1);
  const int idle = dup(a);
  close(a);
  EXPECT_ERRNO(remove(), EAGAIN);
  close(idle);
  EXPECT_IS(remove(), 0);
  EXPECT_ERRNO(open(PSTN_KMOD_DEVICE, O_RDWR), ENOENT);
  for (int i = 0; i < 20; i++) {
    const int fd = open(g_module, O_RDONLY);
    EXPECT_IS(syscall(SYS_finit_module, fd, "", 0), 0);
    close(fd);
    if (i < 19) EXPECT_IS(remove(), 0);
  }
  KmodWorld again;
  EXPECT_IS(write(again.Socket(0), "x", 1), 1);
}

}  // namespace postern
