// syscalls.cc - what libc's syscall() gives: as itself, and for io_uring_setup.
// SPDX-License-Identifier: Apache-2.0
//
//   syscalls plain            results, errno and arguments of other calls
//   syscalls refused_early    io_uring_setup says EPERM, then a socket is made; "holding" until
//                             SIGUSR1 comes; EPERM again; "holding"
//   syscalls refused_late     the same, with the socket made first
//   syscalls kernels          io_uring_setup says what the kernel says, and a ring works;
//                             "no ring here" if the kernel has none for this process
//   syscalls serve PORT       echoes one connection, as libuv does: where it gets a ring, it adds
//                             the connection to its event set through that, else by epoll_ctl()
//   syscalls connect PORT     the other side of that: "holding" once a first answer has come
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint64_t kToken = 0x1122334455667788;
constexpr int kMark = 77;  // an errno that no call here gives

[[noreturn]] void Die(int line, const char* what) {
  std::fprintf(stderr, "syscalls.cc:%d: %s (%s)\n", line, what, strerror(errno));
  std::exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : Die(__LINE__, #condition))

void Say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

void Hold() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int number;
  Say("holding");
  EXPECT(sigwait(&set, &number) == 0);
}

// The kernel's own answer, past whatever stands in for libc.
long KernelSetup(unsigned entries, io_uring_params* params) {
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "a"(SYS_io_uring_setup), "D"(entries), "S"(params)
                   : "rcx", "r11", "memory");
  return r;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = SYS_io_uring_setup;
  register long x0 __asm__("x0") = entries;
  register long x1 __asm__("x1") = reinterpret_cast<long>(params);
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
  return x0;
#else
#error "port the system call instruction"
#endif
}

// A ring for one request at a time, made by syscall() as libuv makes its own.
class Ring {
 public:
  Ring() : fd_(static_cast<int>(syscall(SYS_io_uring_setup, 4, &params_))) {
    if (fd_ < 0) return;
    sq_ = Map(params_.sq_off.array + params_.sq_entries * sizeof(uint32_t), IORING_OFF_SQ_RING);
    cq_ = Map(params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    sqe_ = reinterpret_cast<io_uring_sqe*>(
        Map(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  bool made() const { return fd_ >= 0; }

  // Has the first entry done, whatever it is; its result.
  int Do(const io_uring_sqe& request) {
    const uint32_t tail = *Word(sq_, params_.sq_off.tail);
    const uint32_t at = tail & *Word(sq_, params_.sq_off.ring_mask);
    sqe_[at] = request;
    sqe_[at].user_data = kToken;
    Word(sq_, params_.sq_off.array)[at] = at;
    __atomic_store_n(Word(sq_, params_.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    EXPECT(syscall(SYS_io_uring_enter, fd_, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0) == 1);
    const uint32_t head = *Word(cq_, params_.cq_off.head);
    EXPECT(__atomic_load_n(Word(cq_, params_.cq_off.tail), __ATOMIC_ACQUIRE) == head + 1);
    const auto* done = reinterpret_cast<const io_uring_cqe*>(cq_ + params_.cq_off.cqes) +
                       (head & *Word(cq_, params_.cq_off.ring_mask));
    EXPECT(done->user_data == kToken);
    const int result = done->res;
    __atomic_store_n(Word(cq_, params_.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
  }

 private:
  static uint32_t* Word(uint8_t* ring, uint32_t off) {
    return reinterpret_cast<uint32_t*>(ring + off);
  }
  uint8_t* Map(size_t bytes, uint64_t what) const {
    void* at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(what));
    EXPECT(at != MAP_FAILED);
    return static_cast<uint8_t*>(at);
  }

  io_uring_params params_{};
  const int fd_;
  uint8_t *sq_ = nullptr, *cq_ = nullptr;
  io_uring_sqe* sqe_ = nullptr;
};

// ---------------------------------------------------------------- the calls themselves
void Plain() {
  errno = kMark;
  EXPECT(syscall(SYS_getpid) == getpid() && errno == kMark);
  EXPECT(syscall(SYS_gettid) == gettid() && errno == kMark);
  EXPECT(syscall(SYS_close, -1) == -1 && errno == EBADF);
  EXPECT(syscall(SYS_openat, AT_FDCWD, "/no such file", O_RDONLY) == -1 && errno == ENOENT);
  EXPECT(syscall(100000) == -1 && errno == ENOSYS);

  // The sixth argument is the one that lies on the stack: the second page has to come.
  const long page = sysconf(_SC_PAGESIZE);
  const int file = memfd_create("pages", 0);
  EXPECT(ftruncate(file, 2 * page) == 0 && pwrite(file, "second", 6, page) == 6);
  errno = kMark;
  const long at = syscall(SYS_mmap, nullptr, page, PROT_READ, MAP_PRIVATE, file, page);
  EXPECT(at != -1 && errno == kMark);
  EXPECT(std::memcmp(reinterpret_cast<const void*>(at), "second", 6) == 0);

  // A position may be negative as a long, and is no error if it lies before the last page.
  const int memory = open("/proc/self/mem", O_RDONLY);
  const long high = static_cast<long>(0xffffffffff600000);
  EXPECT(memory >= 0);
  EXPECT(syscall(SYS_lseek, memory, high, SEEK_SET) == high && errno == kMark);
}

void ExpectRefused() {
  io_uring_params params{};
  EXPECT(syscall(SYS_io_uring_setup, 8, &params) == -1 && errno == EPERM);
  EXPECT(syscall(SYS_io_uring_setup, 0, nullptr) == -1 && errno == EPERM);
}

void Refused(bool early) {
  if (early) ExpectRefused();
  EXPECT(socket(AF_INET, SOCK_STREAM, 0) >= 0);
  if (!early) ExpectRefused();
  Hold();
  ExpectRefused();
  Hold();
}

void Kernels() {
  io_uring_params params{};
  const long own = KernelSetup(4, &params);
  Ring ring;
  if (own < 0) {
    EXPECT(!ring.made() && errno == -own);
    Say("no ring here");
    return;
  }
  EXPECT(ring.made());
  io_uring_sqe nothing{};
  nothing.opcode = IORING_OP_NOP;
  for (int i = 0; i < 100; ++i) EXPECT(ring.Do(nothing) == 0);
  Say("a ring works");
}

// ---------------------------------------------------------------- libuv's way of adding a socket
sockaddr_in Address(const char* port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

void Add(Ring& ring, int set, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  io_uring_sqe request{};
  request.opcode = IORING_OP_EPOLL_CTL;
  request.fd = set;
  request.len = EPOLL_CTL_ADD;
  request.off = static_cast<__u64>(fd);
  request.addr = reinterpret_cast<__u64>(&event);
  if (ring.made() && ring.Do(request) == 0) return;
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

void Serve(const char* port) {
  Ring ring;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
  const sockaddr_in a = Address(port);
  const int on = 1;
  EXPECT(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  EXPECT(bind(listener, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  EXPECT(listen(listener, 8) == 0);
  Add(ring, set, listener);
  for (;;) {
    epoll_event event;
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
    if (event.data.fd == listener) {
      Add(ring, set, accept(listener, nullptr, nullptr));
      continue;
    }
    char data[4096];
    const ssize_t n = read(event.data.fd, data, sizeof data);
    EXPECT(n >= 0);
    if (n == 0) return;
    EXPECT(write(event.data.fd, data, static_cast<size_t>(n)) == n);
  }
}

void Connect(const char* port) {
  Ring ring;
  const int fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
  const sockaddr_in a = Address(port);
  EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  Add(ring, set, fd);
  for (int i = 0; i < 1000; ++i) {
    char data[16];
    epoll_event event;
    EXPECT(write(fd, "question", 8) == 8);
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
    EXPECT(recv(fd, data, sizeof data, MSG_DONTWAIT) == 8 && std::memcmp(data, "question", 8) == 0);
    if (i == 0) Hold();
  }
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "plain")
    Plain();
  else if (what == "refused_early")
    Refused(true);
  else if (what == "refused_late")
    Refused(false);
  else if (what == "kernels")
    Kernels();
  else if (what == "serve" && argc > 2)
    Serve(argv[2]);
  else if (what == "connect" && argc > 2)
    Connect(argv[2]);
  else
    Die(__LINE__, "usage");
  Say("as it should be");
}
