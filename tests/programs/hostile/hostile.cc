// SPDX-License-Identifier: Apache-2.0
// hostile.cc - a peer that writes into the shared memory by itself, beside the library, whatever it
// likes.
//
//   hostile victim PORT                           an ordinary epoll server that echoes
//   hostile honest PORT SECONDS SEED              a client of it that checks each byte; prints its
//                                                 rounds a second and a SHA-256
//   hostile peer PORT STRATEGY SECONDS SEED       another client, which does so many operations a
//                                                 second, and beside it, in a second thread, what
//                                                 the strategy says. "none": a well-behaved one,
//                                                 which is as busy
//   hostile flood PORT CONNECTIONS SECONDS        connections that are made and never used
//   hostile believer PORT                         a server that polls, and then blocks in recv()
//   hostile promiser PORT data|end                its client, which takes back what poll() has told
//   hostile list                                  names of the strategies
// What it corrupts is also its own library's: it has to survive that, too.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "hostile.h"

namespace hostile {
namespace {

constexpr int kConnections = 8;
constexpr double kOperationsPerSecond = 2000;

std::atomic<bool> over{false};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The library hides its numbers from close() and dup(), not from /proc.
int DescriptorOfLink() {
  for (int fd = 3; fd < 1 << 20; fd++) {
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) continue;
    target[n] = 0;
    if (strstr(target, "postern-lgr") != nullptr) return fd;
  }
  return -1;
}

// The library maps a link group in two parts; here it is mapped once more, in one.
uint8_t* WholeOf(void* tables) {
  static std::map<void*, uint8_t*> known;
  uint8_t*& whole = known[tables];
  if (whole != nullptr) return whole;
  void* const at = mremap(tables, 0, PSTN_LGR_BYTES, MREMAP_MAYMOVE);
  if (at == MAP_FAILED) Die("mremap");
  return whole = static_cast<uint8_t*>(at);
}

// One request and its answer, as far as they come through.
class Client {
 public:
  explicit Client(int port) : port_(port) {}
  ~Client() { Drop(); }
  Client(Client&& other) noexcept : port_(other.port_), fd_(other.fd_) { other.fd_ = -1; }
  bool Operate(Random& random, bool patient) {
    if (fd_ < 0 && (fd_ = Connect(port_)) < 0) return false;
    char out[200], in[200];
    const size_t n = 1 + random.Below(sizeof out);
    memset(out, static_cast<int>(random.Below(256)), n);
    if (send(fd_, out, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) return Drop();
    pollfd p = {fd_, POLLIN, 0};
    (void)poll(&p, 1, patient ? 1000 : 0);
    const ssize_t got = recv(fd_, in, sizeof in, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return Drop();
    if (random.Below(100) == 0) Drop();
    return got > 0;
  }

 private:
  bool Drop() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    return false;
  }
  int port_, fd_ = -1;
};

int Peer(int port, const char* name, double seconds, uint64_t seed) {
  const Strategy strategy = Find(name);
  if (strategy == nullptr) return fprintf(stderr, "no strategy is called %s\n", name), 2;
  Random random(seed);
  std::vector<Client> clients;
  for (int i = 0; i < kConnections; i++) clients.emplace_back(port);
  for (Client& c : clients) {
    if (!c.Operate(random, true)) return fprintf(stderr, "the server does not answer\n"), 2;
  }
  const std::vector<Link> links = Links();
  if (links.empty()) return fprintf(stderr, "no link group: this is to be run under postern\n"), 2;
  printf("%zu link groups\n", links.size());
  fflush(stdout);
  std::thread writer([&] {
    Random own(seed + 1);
    while (!over) {
      for (const Link& link : links) strategy(link, own);
    }
  });
  const double start = Now();
  uint64_t done = 0, answered = 0;
  for (; Now() - start < seconds; done++) {
    answered += clients[random.Below(clients.size())].Operate(random, false) ? 1u : 0u;
    const double ahead = static_cast<double>(done) / kOperationsPerSecond - (Now() - start);
    if (ahead > 0) usleep(static_cast<useconds_t>(ahead * 1e6));
  }
  over = true;
  writer.join();
  printf("%llu operations, %llu answered\n", static_cast<unsigned long long>(done),
         static_cast<unsigned long long>(answered));
  fflush(stdout);
  _exit(0);  // as if killed: nothing is closed
}

int Flood(int port, int connections, double seconds) {
  const rlimit many = {65536, 65536};
  (void)setrlimit(RLIMIT_NOFILE, &many);
  int made = 0;
  for (int i = 0; i < connections; i++) made += Connect(port) >= 0 ? 1 : 0;
  printf("%d connections\n", made);
  fflush(stdout);
  usleep(static_cast<useconds_t>(seconds * 1e6));
  _exit(0);
}

}  // namespace

std::vector<Link> Links() {
  std::vector<Link> found;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) Die("maps");
  char line[512];
  while (fgets(line, sizeof line, maps) != nullptr) {
    unsigned long begin, end, offset;
    char mode[8];
    if (strstr(line, "postern-lgr") == nullptr) continue;
    if (sscanf(line, "%lx-%lx %7s %lx", &begin, &end, mode, &offset) != 4) continue;
    if (offset == 0 && end - begin == PSTN_LGR_SLAB_OFF)
      found.push_back({WholeOf(reinterpret_cast<void*>(begin)), DescriptorOfLink()});
  }
  fclose(maps);
  return found;
}

pstn_queues* Queues() {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) Die("maps");
  char line[512];
  unsigned long begin = 0;
  while (fgets(line, sizeof line, maps) != nullptr) {
    if (strstr(line, "postern-queues") != nullptr) (void)sscanf(line, "%lx", &begin);
  }
  fclose(maps);
  if (begin == 0) Die("no queues");
  return reinterpret_cast<pstn_queues*>(begin);
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace hostile

int main(int argc, char** argv) {
  using namespace hostile;  // NOLINT(google-build-using-namespace): the entry point
  const std::string role = argc > 1 ? argv[1] : "";
  const int port = argc > 2 ? atoi(argv[2]) : 0;
  if (role == "list") return List(), 0;
  if (role == "victim" && argc == 3) return Victim(port);
  if (role == "honest" && argc == 5)
    return Honest(port, atof(argv[3]), strtoull(argv[4], nullptr, 10));
  if (role == "peer" && argc == 6)
    return Peer(port, argv[3], atof(argv[4]), strtoull(argv[5], nullptr, 10));
  if (role == "believer" && argc == 3) return Believer(port);
  if (role == "promiser" && argc == 4) return Promiser(port, std::string(argv[3]) == "end");
  if (role == "flood" && argc == 5) return Flood(port, atoi(argv[3]), atof(argv[4]));
  fprintf(stderr, "usage: see the head of hostile.cc\n");
  return 2;
}
