// xfer.cc - checked streams over one TCP connection: xfer serve|connect|self [--option=value ...]
// SPDX-License-Identifier: Apache-2.0
//
// One connection carries --up bytes from client to server and --down bytes back, both at once. The
// bytes are a function of (seed, direction, offset), so the reader compares every one at its place
// and can name the first wrong offset; both ends also print the SHA-256 of what they sent and
// received, and the driver compares those. After its last byte a writer shuts its direction down,
// and the reader has to find the end exactly there.
//
// --who says what does the work: `single` one thread, non-blocking, both directions in one loop;
// `threads` a thread for writing, one for reading; `fork` a process for each. With --turns=1 each
// direction is shared by two processes that alternate after each call. `self` runs both ends in one
// process family (fork), which under postern is the intra-stack path.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "../kit/sha256.h"
#include "xfer_io.h"

namespace xfer {
namespace {

struct Options {
  std::string addr = "127.0.0.1", bind, who = "threads", accept = "plain";
  uint16_t port = 0;
  uint64_t up = 0, down = 0, seed = 1;
  size_t chunk = 65536, rchunk = 65536;
  WriteHow write = WriteHow::kWrite;
  ReadHow read = ReadHow::kRead;
  WaitHow wait = WaitHow::kNone;
  bool nonblock = false, turns = false, dup = false, nodelay = false, slow = false, hold = false;
};

// One direction; in shared memory, as processes may take turns at it.
struct Direction {
  uint64_t total = 0, offset = 0, seed = 0;
  Sha256 sha;
};

[[noreturn]] void Die(const char* what, long error, uint64_t offset) {
  fprintf(stderr, "xfer: %s: %s (%ld) at offset %llu\n", what,
          strerror(static_cast<int>(error < 0 ? -error : error)), error,
          static_cast<unsigned long long>(offset));
  _exit(1);
}

uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t z = seed + index * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Bytes [offset, offset + len) of the stream.
void Fill(uint64_t seed, uint64_t offset, uint8_t* out, size_t len) {
  while (len > 0) {
    const uint64_t word = Word(seed, offset / 8);
    const size_t skip = offset % 8, take = std::min(len, 8 - skip);
    if (take == 8) {
      memcpy(out, &word, 8);
    } else {
      memcpy(out, reinterpret_cast<const uint8_t*>(&word) + skip, take);
    }
    out += take;
    offset += take;
    len -= take;
  }
}

void Check(const Direction& d, const uint8_t* got, size_t len, std::vector<uint8_t>* want) {
  want->resize(len);
  Fill(d.seed, d.offset, want->data(), len);
  if (memcmp(got, want->data(), len) == 0) return;
  const auto diff = std::mismatch(got, got + len, want->begin());
  fprintf(stderr, "xfer: wrong byte at offset %llu of %llu\n",
          static_cast<unsigned long long>(d.offset + static_cast<uint64_t>(diff.first - got)),
          static_cast<unsigned long long>(d.total));
  _exit(1);
}

enum class Step { kDone, kMoved, kBlocked };

struct Worker {
  const Options& options;
  int fd;
  Direction* direction;
  Lane lane = {};
  std::vector<uint8_t> data = {}, want = {};
  uint64_t data_offset = ~uint64_t{0};

  Step WriteStep() {
    Direction& d = *direction;
    if (d.offset == d.total) return Step::kDone;
    const uint64_t chunk_start = d.offset - d.offset % options.chunk;
    const size_t chunk =
        static_cast<size_t>(std::min<uint64_t>(options.chunk, d.total - chunk_start));
    if (data_offset != chunk_start || data.size() != chunk) {
      data.resize(chunk);
      Fill(d.seed, chunk_start, data.data(), chunk);
      data_offset = chunk_start;
    }
    const size_t skip = static_cast<size_t>(d.offset - chunk_start);
    const ssize_t n = WriteSome(options.write, fd, data.data() + skip, chunk - skip,
                                chunk_start + chunk == d.total, &lane);
    if (n == -EAGAIN && options.nonblock) return Step::kBlocked;
    if (n == -EINTR) return Step::kMoved;
    if (n <= 0) Die("write", n, d.offset);
    d.sha.Update(data.data() + skip, static_cast<size_t>(n));
    d.offset += static_cast<uint64_t>(n);
    return Step::kMoved;
  }

  Step ReadStep() {
    Direction& d = *direction;
    data.resize(options.rchunk);
    const ssize_t n =
        ReadSome(options.read, fd, data.data(), options.rchunk, !options.nonblock, &lane);
    if (n == -EAGAIN && options.nonblock) return Step::kBlocked;
    if (n == -EINTR) return Step::kMoved;
    if (n < 0) Die("read", n, d.offset);
    if (n == 0) {
      if (d.offset != d.total) Die("stream ended early", 0, d.offset);
      return Step::kDone;
    }
    if (d.offset + static_cast<uint64_t>(n) > d.total)
      Die("more bytes than were sent", 0, d.offset);
    Check(d, data.data(), static_cast<size_t>(n), &want);
    d.sha.Update(data.data(), static_cast<size_t>(n));
    d.offset += static_cast<uint64_t>(n);
    if (options.slow && (d.offset >> 20) != ((d.offset - static_cast<uint64_t>(n)) >> 20))
      usleep(2000);
    return Step::kMoved;
  }

  void Wait(short events) {
    const int error = WaitFor(options.wait, fd, events, &lane);
    if (error < 0 && error != -EINTR) Die("wait", error, direction->offset);
  }
};

// With --hold=1 the connection stays open until SIGUSR1, so that the driver can look at it.
void ShutDown(const Options& options, int fd) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int number = 0;
  if (options.hold) {
    printf("holding\n");
    fflush(stdout);
    sigwait(&set, &number);
  }
  if (shutdown(fd, SHUT_WR) != 0) Die("shutdown", errno, 0);
}

// One direction by one thread or process.
void Pump(const Options& options, int fd, Direction* direction, short event) {
  Worker worker{options, fd, direction};
  for (;;) {
    // A blocking socket that is waited for: wait first. A non-blocking one: only after EAGAIN, as
    // edges demand.
    if (!options.nonblock && options.wait != WaitHow::kNone &&
        !(event == POLLOUT && direction->offset == direction->total))
      worker.Wait(event);
    const Step step = event == POLLOUT ? worker.WriteStep() : worker.ReadStep();
    if (step == Step::kDone) break;
    if (step == Step::kBlocked) worker.Wait(event);
  }
  if (event == POLLOUT) ShutDown(options, fd);
}

// One direction by two processes that alternate: a byte in a pipe is the turn, 'd' says that all is
// done.
void PumpInTurns(const Options& options, int fd, Direction* direction, short event) {
  int to_child[2], to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) Die("pipe", errno, 0);
  const pid_t child = fork();
  if (child < 0) Die("fork", errno, 0);
  const int in = child == 0 ? to_child[0] : to_parent[0],
            out = child == 0 ? to_parent[1] : to_child[1];
  close(child == 0 ? to_child[1] : to_parent[1]);
  Worker worker{options, fd, direction};
  char token = 't';
  bool mine = child != 0;
  while (token == 't') {
    if (!mine && read(in, &token, 1) != 1)
      Die("the other process is gone", errno, direction->offset);
    mine = false;
    if (token == 'd') break;
    Step step;
    while ((step = event == POLLOUT ? worker.WriteStep() : worker.ReadStep()) == Step::kBlocked)
      worker.Wait(event);
    while (worker.lane.pipe_pending > 0)
      worker.WriteStep();  // bytes in this process's pipe come before the other's
    if (step == Step::kDone) token = 'd';
    if (write(out, &token, 1) != 1) Die("turn", errno, direction->offset);
  }
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) Die("child of the turns failed", 0, direction->offset);
  if (event == POLLOUT) ShutDown(options, fd);
}

void PumpBoth(const Options& options, int fd, Direction* out, Direction* in) {
  Worker writer{options, fd, out};
  Worker reader{options, fd, in};
  bool writing = true, reading = true;
  while (writing || reading) {
    Step wrote = Step::kBlocked, got = Step::kBlocked;
    if (writing) wrote = writer.WriteStep();
    if (writing && wrote == Step::kDone) {
      writing = false;
      ShutDown(options, fd);
    }
    if (reading) got = reader.ReadStep();
    if (reading && got == Step::kDone) reading = false;
    const short events = static_cast<short>((writing ? POLLOUT : 0) | (reading ? POLLIN : 0));
    if (events != 0 && wrote == Step::kBlocked && got == Step::kBlocked) reader.Wait(events);
  }
}

void Transfer(const Options& options, int fd, Direction* out, Direction* in) {
  auto pump = options.turns ? PumpInTurns : Pump;
  const int read_fd = options.dup ? dup(fd) : fd;
  int write_fd = fd;
  if (options.dup) {
    write_fd = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    close(fd);  // both work on duplicates only
  }
  if (read_fd < 0 || write_fd < 0) Die("dup", errno, 0);
  if (options.who == "single") {
    PumpBoth(options, write_fd, out, in);
  } else if (options.who == "threads") {
    std::thread writer([&] { Pump(options, write_fd, out, POLLOUT); });
    Pump(options, read_fd, in, POLLIN);
    writer.join();
  } else {
    const pid_t child = fork();
    if (child < 0) Die("fork", errno, 0);
    if (child == 0) {
      pump(options, write_fd, out, POLLOUT);
      _exit(0);
    }
    pump(options, read_fd, in, POLLIN);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) Die("writing process failed", 0, 0);
  }
  if (read_fd != write_fd) close(read_fd);
  close(write_fd);
}

sockaddr_storage Address(const std::string& text, uint16_t port, socklen_t* len) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    *len = sizeof *v6;
  } else if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    *len = sizeof *v4;
  } else {
    Die("bad address", EINVAL, 0);
  }
  return storage;
}

void Prepare(const Options& options, int fd) {
  const int one = 1;
  if (options.nodelay) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const int flags = fcntl(fd, F_GETFL);
  if (fcntl(fd, F_SETFL, options.nonblock ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) != 0)
    Die("F_SETFL", errno, 0);
}

Direction* MakeDirections(const Options& options) {
  void* memory = mmap(nullptr, 2 * sizeof(Direction), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("mmap", errno, 0);
  auto* d = static_cast<Direction*>(memory);
  new (d) Direction{options.up, 0, options.seed * 2, {}};
  new (d + 1) Direction{options.down, 0, options.seed * 2 + 1, {}};
  return d;
}

void Report(const char* role, const Direction& sent, const Direction& received) {
  printf("%s sent %llu %s received %llu %s\n", role, static_cast<unsigned long long>(sent.offset),
         sent.sha.Hex().c_str(), static_cast<unsigned long long>(received.offset),
         received.sha.Hex().c_str());
  fflush(stdout);
}

int Listen(const Options& options) {
  socklen_t len = 0;
  const sockaddr_storage address = Address(options.addr, options.port, &len);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), len) != 0) Die("bind", errno, 0);
  if (listen(fd, 16) != 0) Die("listen", errno, 0);
  return fd;
}

int Serve(const Options& options, int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) Die("accept", errno, 0);
  Direction* d = MakeDirections(options);
  if (options.accept == "fork") {  // as sshd does: a child serves, the parent keeps nothing
    const pid_t child = fork();
    if (child != 0) {
      close(fd);
      int status = 1;
      waitpid(child, &status, 0);
      return status == 0 ? 0 : 1;
    }
  }
  close(listener);
  Prepare(options, fd);
  Transfer(options, fd, d + 1, d);
  Report("server", d[1], d[0]);
  return 0;
}

int Connect(const Options& options) {
  socklen_t len = 0;
  const sockaddr_storage address = Address(options.addr, options.port, &len);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!options.bind.empty()) {
    socklen_t local_len = 0;
    const sockaddr_storage local = Address(options.bind, 0, &local_len);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&local), local_len) != 0) Die("bind", errno, 0);
  }
  if (options.nonblock) Prepare(options, fd);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), len) != 0) {
    if (errno != EINPROGRESS || !options.nonblock) Die("connect", errno, 0);
    pollfd one{fd, POLLOUT, 0};
    int error = 0;
    socklen_t error_len = sizeof error;
    if (poll(&one, 1, -1) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) != 0 ||
        error != 0)
      Die("connect", error, 0);
  }
  Prepare(options, fd);
  Direction* d = MakeDirections(options);
  Transfer(options, fd, d, d + 1);
  Report("client", d[0], d[1]);
  return 0;
}

// Both ends in one process family: the connection is made between parent and child.
int Self(Options options) {
  const int listener = Listen(options);
  sockaddr_storage name{};
  socklen_t len = sizeof name;
  getsockname(listener, reinterpret_cast<sockaddr*>(&name), &len);
  options.port =
      ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
  const pid_t child = fork();
  if (child == 0) _exit(Serve(options, listener));
  close(listener);
  const int result = Connect(options);
  int status = 1;
  waitpid(child, &status, 0);
  return result != 0 || status != 0 ? 1 : 0;
}

bool Set(Options* o, const std::string& key, const std::string& value) {
  const uint64_t number = strtoull(value.c_str(), nullptr, 10);
  if (key == "write") return Parse(value, &o->write);
  if (key == "read") return Parse(value, &o->read);
  if (key == "wait") return Parse(value, &o->wait);
  std::map<std::string, std::string*> texts = {
      {"addr", &o->addr}, {"bind", &o->bind}, {"who", &o->who}, {"accept", &o->accept}};
  std::map<std::string, uint64_t*> longs = {{"up", &o->up}, {"down", &o->down}, {"seed", &o->seed}};
  std::map<std::string, size_t*> sizes = {{"chunk", &o->chunk}, {"rchunk", &o->rchunk}};
  std::map<std::string, bool*> flags = {{"nonblock", &o->nonblock}, {"turns", &o->turns},
                                        {"dup", &o->dup},           {"nodelay", &o->nodelay},
                                        {"slow", &o->slow},         {"hold", &o->hold}};
  if (texts.contains(key))
    *texts[key] = value;
  else if (longs.contains(key))
    *longs[key] = number;
  else if (sizes.contains(key))
    *sizes[key] = static_cast<size_t>(number);
  else if (flags.contains(key))
    *flags[key] = number != 0;
  else if (key == "port")
    o->port = static_cast<uint16_t>(number);
  else
    return false;
  return true;
}

// Combinations that would hang on any socket are refused, so that a hang is always a finding.
const char* Senseless(const Options& o) {
  if (o.nonblock && o.wait == WaitHow::kNone) return "non-blocking needs a way to wait";
  if (o.who == "single" && !o.nonblock) return "single needs non-blocking";
  if (!o.nonblock && (o.wait == WaitHow::kEpollEt)) return "edge triggered needs non-blocking";
  if (o.turns && o.who != "fork") return "turns need who=fork";
  if (o.turns && o.nonblock && o.wait == WaitHow::kEpollEt)
    return "an edge may be taken by the other process's call";
  if (o.who != "single" && o.who != "threads" && o.who != "fork")
    return "who is single, threads or fork";
  if (o.chunk == 0 || o.rchunk == 0) return "chunks are at least 1 byte";
  return nullptr;
}

}  // namespace
}  // namespace xfer

int main(int argc, char** argv) {
  using namespace xfer;
  Options options;
  const std::string role = argc > 1 ? argv[1] : "";
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (argument.rfind("--", 0) != 0 || equals == std::string::npos ||
        !Set(&options, argument.substr(2, equals - 2), argument.substr(equals + 1))) {
      fprintf(stderr, "xfer: what is '%s'?\n", argv[i]);
      return 2;
    }
  }
  if (const char* why = Senseless(options); why != nullptr) {
    fprintf(stderr, "xfer: %s\n", why);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);  // before any thread: see ShutDown()
  if (role == "serve") return Serve(options, Listen(options));
  if (role == "connect") return Connect(options);
  if (role == "self") return Self(options);
  fprintf(stderr, "usage: xfer serve|connect|self [--option=value ...]\n");
  return 2;
}
