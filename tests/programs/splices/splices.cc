// SPDX-License-Identifier: Apache-2.0
// splices.cc - several threads splice() at once on one connection or pipe: each byte goes once.
//
//   splices out    two threads, from a connection into a pipe each
//           one    the same, into one pipe
//           mixed  a thread splices, one reads and one peeks the same connection
//           in     two threads, each from a pipe, into one connection
//           fan    two threads from one pipe, into a connection each
//           full   from a pipe into a connection that becomes full while splice() waits
//   nonblock: of sockets, and of splice(); small: pipes of a page; fifo: pipes with a name;
//   signals: the threads are interrupted all the time
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

namespace {

bool nonblock, small, fifo, signals;
constexpr size_t kBytes = 6u << 20;
using Counts = std::array<std::atomic<size_t>, 256>;

[[noreturn]] void Die(const char* what) {
  printf("%s: %s\n", what, strerror(errno));
  fflush(stdout);
  _exit(1);
}

struct Ends {
  int in, out;  // to be read, to be written
};

Ends Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  socklen_t size = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (bind(listener, address, sizeof at) != 0 || listen(listener, 1) != 0) Die("listen");
  getsockname(listener, address, &size);
  const int out = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(out, address, sizeof at) != 0) Die("connect");
  const int in = accept(listener, nullptr, nullptr);
  if (in < 0) Die("accept");
  close(listener);
  if (nonblock && (fcntl(in, F_SETFL, O_NONBLOCK) != 0 || fcntl(out, F_SETFL, O_NONBLOCK) != 0))
    Die("fcntl");
  return {in, out};
}

Ends Pipe() {
  static std::atomic<int> names;
  int ends[2];
  if (fifo) {
    const std::string name = "splices." + std::to_string(getpid()) + "." + std::to_string(names++);
    if (mkfifo(name.c_str(), 0600) != 0) Die("mkfifo");
    ends[0] = open(name.c_str(), O_RDONLY | O_NONBLOCK);
    ends[1] = open(name.c_str(), O_WRONLY);
    unlink(name.c_str());
    if (ends[1] < 0 || fcntl(ends[0], F_SETFL, 0) != 0) Die("open");
  } else if (pipe(ends) != 0) {
    Die("pipe");
  }
  if (small && fcntl(ends[1], F_SETPIPE_SZ, 4096) < 0) Die("F_SETPIPE_SZ");
  return {ends[0], ends[1]};
}

void Await(int fd, short events) {
  pollfd p = {fd, events, 0};
  while (poll(&p, 1, -1) < 0 && errno == EINTR) {
  }
}

bool Again() { return errno == EINTR || (nonblock && errno == EAGAIN); }

// Bytes of one source say their place modulo 128, in blocks of `block`; `tag`: which source.
void Feed(int to, uint8_t tag, size_t block) {
  std::vector<uint8_t> data(50000);
  for (size_t at = 0; at < kBytes;) {
    const size_t want = std::min(data.size(), kBytes - at);
    for (size_t i = 0; i < want; ++i) data[i] = static_cast<uint8_t>((at + i) / block % 128 | tag);
    for (size_t done = 0; done < want;) {
      const ssize_t n = write(to, data.data() + done, want - done);
      if (n < 0 && !Again()) Die("write");
      if (n < 0) Await(to, POLLOUT);
      if (n > 0) done += static_cast<size_t>(n);
    }
    at += want;
  }
}

// Reads to the end.
void Drain(int from, const std::function<void(const uint8_t*, size_t)>& take) {
  std::vector<uint8_t> data(20000);
  for (;;) {
    const ssize_t n = read(from, data.data(), data.size());
    if (n == 0) return;
    if (n < 0 && !Again()) Die("read");
    if (n < 0) Await(from, POLLIN);
    if (n > 0) take(data.data(), static_cast<size_t>(n));
  }
}

void Splice(int from, int to) {
  for (size_t i = 0;; ++i) {
    const size_t want = std::array<size_t, 4>{100000, 4096, 1, 6000}[i % 4];
    const ssize_t n = splice(from, nullptr, to, nullptr, want, nonblock ? SPLICE_F_NONBLOCK : 0);
    if (n == 0) return;
    if (n < 0 && !Again()) Die("splice");
    if (n >= 0 || errno != EAGAIN) continue;
    Await(from, POLLIN);
    Await(to, POLLOUT);
  }
}

void Count(Counts& counts, const uint8_t* data, size_t n) {
  for (size_t i = 0; i < n; ++i) ++counts[data[i]];
}

// Lost and doubled bytes are of other values, since blocks of one value are few and far between.
constexpr size_t kBlock = 509;
bool AllOnce(const Counts& counts, const char* what) {
  std::array<size_t, 256> sent{};
  for (size_t at = 0; at < kBytes; ++at) ++sent[at / kBlock % 128];
  size_t got = 0;
  bool same = true;
  for (size_t i = 0; i < 256; ++i) got += counts[i], same = same && counts[i] == sent[i];
  printf("%s: %zu of %zu bytes, %s\n", what, got, kBytes, same ? "each once" : "NOT each once");
  return same;
}

// In threads of their own, which end together.
class Threads {
 public:
  template <typename Fn>
  void Add(Fn fn) {
    all_.emplace_back(std::move(fn));
  }
  void Join() {
    for (std::thread& one : all_) one.join();
    all_.clear();
  }
  ~Threads() { Join(); }

 private:
  std::vector<std::thread> all_;
};

bool Out(bool one_pipe) {
  const Ends connection = Connect();
  const Ends first = Pipe(), second = one_pipe ? first : Pipe();
  Counts counts{};
  const auto count = [&counts](const uint8_t* data, size_t n) { Count(counts, data, n); };
  Threads readers, splicers, feeder;
  readers.Add([&] { Drain(first.in, count); });
  if (!one_pipe) readers.Add([&] { Drain(second.in, count); });
  splicers.Add([&] { Splice(connection.in, first.out); });
  splicers.Add([&] { Splice(connection.in, second.out); });
  feeder.Add([&] { Feed(connection.out, 0, kBlock), shutdown(connection.out, SHUT_WR); });
  feeder.Join();
  splicers.Join();
  close(first.out);
  if (!one_pipe) close(second.out);
  readers.Join();
  return AllOnce(counts, "out");
}

bool Mixed() {
  const Ends connection = Connect(), pipe = Pipe();
  Counts counts{};
  std::atomic<bool> over = false;
  const auto count = [&counts](const uint8_t* data, size_t n) { Count(counts, data, n); };
  Threads peeker, drain, takers;
  peeker.Add([&] {
    std::vector<uint8_t> data(5000);
    while (!over) (void)recv(connection.in, data.data(), data.size(), MSG_PEEK | MSG_DONTWAIT);
  });
  drain.Add([&] { Drain(pipe.in, count); });
  takers.Add([&] { Splice(connection.in, pipe.out); });
  takers.Add([&] { Drain(connection.in, count); });
  Feed(connection.out, 0, kBlock);
  shutdown(connection.out, SHUT_WR);
  takers.Join();
  over = true;
  close(pipe.out);
  drain.Join();
  return AllOnce(counts, "mixed");
}

bool In() {
  const Ends connection = Connect(), first = Pipe(), second = Pipe();
  Threads feeders, splicers, reader;
  std::array<size_t, 2> got{}, wrong{};
  reader.Add([&] {
    Drain(connection.in, [&](const uint8_t* data, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        const size_t source = data[i] >> 7;
        wrong[source] += data[i] % 128 != got[source] % 128 ? 1u : 0u;
        ++got[source];
      }
    });
  });
  for (const Ends& pipe : {first, second}) {
    const auto tag = static_cast<uint8_t>(pipe.in == first.in ? 0 : 128);
    feeders.Add([=] { Feed(pipe.out, tag, 1), close(pipe.out); });
    splicers.Add([=] { Splice(pipe.in, connection.out); });
  }
  splicers.Join();
  shutdown(connection.out, SHUT_WR);
  reader.Join();
  printf("in: %zu and %zu of %zu bytes, %zu and %zu in the wrong place\n", got[0], got[1], kBytes,
         wrong[0], wrong[1]);
  return got[0] == kBytes && got[1] == kBytes && wrong[0] == 0 && wrong[1] == 0;
}

bool Fan() {
  const Ends first = Connect(), second = Connect(), pipe = Pipe();
  Counts counts{};
  const auto count = [&counts](const uint8_t* data, size_t n) { Count(counts, data, n); };
  Threads readers, splicers;
  for (const Ends& to : {first, second}) {
    readers.Add([&, to] { Drain(to.in, count); });
    splicers.Add([&, to] { Splice(pipe.in, to.out), shutdown(to.out, SHUT_WR); });
  }
  Feed(pipe.out, 0, kBlock);
  close(pipe.out);
  splicers.Join();
  readers.Join();
  return AllOnce(counts, "fan");
}

// A thread that waits for a pipe, to write to a socket that is full by then: it is told so, and
// what came into the pipe stays there.
bool Full() {
  nonblock = true;
  const Ends connection = Connect(), pipe = Pipe();
  std::atomic<pid_t> tid = 0;
  ssize_t went = 0;
  int error = 0;
  Threads splicer;
  splicer.Add([&] {
    tid = gettid();
    went = splice(pipe.in, nullptr, connection.out, nullptr, 100, 0);
    error = errno;
  });
  while (tid == 0) sched_yield();
  // What it has looked at before it sleeps must not matter.
  const std::string stat = "/proc/self/task/" + std::to_string(tid) + "/stat";
  for (char state = 0; state != 'S';) {
    FILE* const file = fopen(stat.c_str(), "r");
    if (file == nullptr || fscanf(file, "%*d %*s %c", &state) != 1) Die("stat");
    fclose(file);
  }
  const std::vector<uint8_t> data(10000);
  size_t sent = 0;
  for (ssize_t n; (n = write(connection.out, data.data(), data.size())) > 0;)
    sent += static_cast<size_t>(n);
  if (write(pipe.out, data.data(), 100) != 100) Die("write");
  close(pipe.out);
  splicer.Join();
  shutdown(connection.out, SHUT_WR);
  size_t got = 0, kept = 0;
  Drain(pipe.in, [&kept](const uint8_t*, size_t n) { kept += n; });
  Drain(connection.in, [&got](const uint8_t*, size_t n) { got += n; });
  const bool right = went == -1 && error == EAGAIN && kept == 100 && got == sent;
  printf("full: splice() says %zd, %s; %zu of 100 bytes are in the pipe: %s\n", went,
         strerror(error), kept, right ? "each once" : "not as it should be");
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string how = argv[i];
    nonblock = nonblock || how == "nonblock";
    small = small || how == "small";
    fifo = fifo || how == "fifo";
    signals = signals || how == "signals";
  }
  if (signals) {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  const std::string what = argc > 1 ? argv[1] : "";
  const bool right = what == "out"     ? Out(false)
                     : what == "one"   ? Out(true)
                     : what == "mixed" ? Mixed()
                     : what == "in"    ? In()
                     : what == "fan"   ? Fan()
                     : what == "full"  ? Full()
                                       : false;
  return right ? 0 : 1;
}
