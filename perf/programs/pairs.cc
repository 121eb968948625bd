// pairs.cc - messages there and back between two processes, in the ways in which programs wait.
// SPDX-License-Identifier: Apache-2.0
//
//   pairs server --way W                             prints "ready PORT", echoes until SIGTERM
//   pairs client --way W --port P --pairs N --rate R --seconds S
// The client prints one line of JSON: round trips, their latencies in ns, the CPU time it took.
// The server prints its CPU time at its end.
//
// W: blocking  a thread for each connection, in recv()
//    poll      the same, in poll() before each recv()
//    epoll     one thread, in epoll_wait()
//    threads   two threads a side: epoll sets of half the connections each
// R: messages a second of all pairs together, from a schedule: a round trip is measured from when
// it was due, so that what a late answer delays counts as late. 0: the next follows the answer.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "measuring.h"

namespace postern::perf {
namespace {

constexpr std::size_t kBytes = 64;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

std::uint64_t NowNs() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * kSecondNs + static_cast<std::uint64_t>(t.tv_nsec);
}

double CpuSeconds() {
  rusage use;
  ::getrusage(RUSAGE_SELF, &use);
  const auto sec = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return sec(use.ru_utime) + sec(use.ru_stime);
}

// Counts of latencies, 1/64 of their size apart.
class Histogram {
 public:
  Histogram() : counts_(kSteps * 48) {}
  void Add(std::uint64_t ns) {
    counts_[Place(ns)]++;
    total_++;
  }
  void Add(const Histogram& other) {
    for (std::size_t i = 0; i < counts_.size(); i++) counts_[i] += other.counts_[i];
    total_ += other.total_;
  }
  std::uint64_t total() const { return total_; }
  std::uint64_t At(double share) const {
    const auto rank = static_cast<std::uint64_t>(static_cast<double>(total_) * share);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); i++) {
      seen += counts_[i];
      if (seen > rank) return Value(i);
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t kSteps = 64;
  std::size_t Place(std::uint64_t ns) const {
    if (ns < kSteps) return ns;
    const auto shift = static_cast<std::uint64_t>(57 - __builtin_clzll(ns));  // to 64..127
    return std::min(counts_.size() - 1, (shift + 1) * kSteps + (ns >> shift) - kSteps);
  }
  static std::uint64_t Value(std::size_t place) {
    if (place < kSteps) return place;
    return (place % kSteps + kSteps) << (place / kSteps - 1);
  }
  std::vector<std::uint64_t> counts_;
  std::uint64_t total_ = 0;
};

struct Arguments {
  std::string way = "blocking";
  std::uint16_t port = 0;
  std::uint64_t pairs = 1, rate = 0, seconds = 1;
};

bool Readable(int fd, bool poll) {
  if (!poll) return true;
  pollfd one = {fd, POLLIN, 0};
  const int n = ::poll(&one, 1, -1);
  if (n < 0) Die("poll");
  return n == 1;
}

int SetOf(const std::vector<int>& fds) {
  const int set = ::epoll_create1(0);
  if (set < 0) Die("epoll_create1");
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) Die("epoll_ctl");
  }
  return set;
}

// ---- server

void Echo(int fd, bool poll) {
  char bytes[kBytes];
  while (Readable(fd, poll) && RecvAll(fd, bytes, kBytes)) SendAll(fd, bytes, kBytes);
  ::close(fd);
}

void EchoSet(int set) {
  for (epoll_event events[64];;) {
    const int n = ::epoll_wait(set, events, 64, -1);
    if (n < 0) Die("epoll_wait");
    for (int i = 0; i < n; i++) {
      char bytes[kBytes];
      const int fd = events[i].data.fd;
      if (RecvAll(fd, bytes, kBytes)) {
        SendAll(fd, bytes, kBytes);
      } else {
        ::close(fd);
      }
    }
  }
}

void Serve(const Arguments& arguments) {
  const int listener = Listen({});
  sockaddr_in name{};
  socklen_t size = sizeof(name);
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size) != 0) Die("getsockname");
  const bool sets = arguments.way == "epoll" || arguments.way == "threads";
  std::vector<int> of_threads;
  for (int i = 0; sets && i < (arguments.way == "threads" ? 2 : 1); i++) {
    of_threads.push_back(SetOf({}));
    std::thread(EchoSet, of_threads.back()).detach();
  }
  std::signal(SIGTERM, [](int) {
    char line[64];
    const int n = std::snprintf(line, sizeof(line), "cpu %.6f\n", CpuSeconds());
    (void)!::write(1, line, static_cast<std::size_t>(n));
    ::_exit(0);
  });
  std::printf("ready %d\n", ntohs(name.sin_port));
  std::fflush(stdout);
  for (std::size_t i = 0;; i++) {
    const int fd = Accept(listener);
    if (!sets) {
      std::thread(Echo, fd, arguments.way == "poll").detach();
      continue;
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(of_threads[i % of_threads.size()], EPOLL_CTL_ADD, fd, &event) != 0)
      Die("epoll_ctl");
  }
}

// ---- client

struct Pair {
  int fd;
  std::uint64_t due;  // when its next message is, or the one under way was
  bool under_way = false;
};

class Client {
 public:
  Client(const Arguments& arguments, std::uint64_t start_ns)
      : arguments_(arguments),
        gap_ns_(arguments.rate == 0 ? 0 : kSecondNs * arguments.pairs / arguments.rate),
        end_ns_(start_ns + arguments.seconds * kSecondNs) {}

  // One pair, by blocking calls.
  void Run(Pair pair) {
    const bool poll = arguments_.way == "poll";
    char bytes[kBytes] = {};
    while (pair.due < end_ns_) {
      const timespec at = {static_cast<time_t>(pair.due / kSecondNs),
                           static_cast<long>(pair.due % kSecondNs)};
      if (gap_ns_ != 0 && NowNs() < pair.due)
        (void)::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
      const std::uint64_t from = gap_ns_ != 0 ? pair.due : NowNs();
      SendAll(pair.fd, bytes, kBytes);
      if (!Readable(pair.fd, poll) || !RecvAll(pair.fd, bytes, kBytes)) DieWith("server ended");
      const std::uint64_t now = NowNs();
      latencies_.Add(now - from);
      pair.due = gap_ns_ != 0 ? pair.due + gap_ns_ : now;
    }
  }

  // Some pairs, by an event set.
  void Run(std::vector<Pair> pairs) {
    std::vector<int> fds;
    for (const Pair& pair : pairs) fds.push_back(pair.fd);
    const int set = SetOf(fds);
    char bytes[kBytes] = {};
    const auto waits = [](const Pair& pair) { return pair.under_way; };
    // To the last answer: what is left unread would be a reset.
    for (std::uint64_t now = NowNs();
         now < end_ns_ || std::any_of(pairs.begin(), pairs.end(), waits);) {
      std::uint64_t next = std::max(end_ns_, now + kSecondNs);
      for (Pair& pair : pairs) {
        if (!pair.under_way && pair.due <= now && now < end_ns_) {
          if (gap_ns_ == 0) pair.due = NowNs();
          SendAll(pair.fd, bytes, kBytes);
          pair.under_way = true;
        }
        if (!pair.under_way && now < end_ns_) next = std::min({next, pair.due, end_ns_});
      }
      now = NowNs();
      const std::uint64_t left = next > now ? next - now : 0;
      const timespec limit = {static_cast<time_t>(left / kSecondNs),
                              static_cast<long>(left % kSecondNs)};
      epoll_event events[64];
      const int n = ::epoll_pwait2(set, events, 64, &limit, nullptr);
      if (n < 0) Die("epoll_pwait2");
      for (int i = 0; i < n; i++) {
        const auto pair = std::find_if(pairs.begin(), pairs.end(),
                                       [&](const Pair& p) { return p.fd == events[i].data.fd; });
        if (!RecvAll(pair->fd, bytes, kBytes)) DieWith("server ended");
        now = NowNs();
        latencies_.Add(now - pair->due);
        pair->under_way = false;
        pair->due = gap_ns_ != 0 ? pair->due + gap_ns_ : now;
      }
      now = NowNs();
    }
    ::close(set);
  }

  const Histogram& latencies() const { return latencies_; }

 private:
  const Arguments& arguments_;
  const std::uint64_t gap_ns_, end_ns_;
  Histogram latencies_;
};

void Measure(const Arguments& arguments) {
  Endpoint endpoint;
  endpoint.port = arguments.port;
  const SocketAddress address(endpoint);
  std::vector<Pair> pairs;
  for (std::uint64_t i = 0; i < arguments.pairs; i++) pairs.push_back({Dial(address), 0});
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the schedule is kept, not the kernel's 50 us
  const std::uint64_t start = NowNs() + 50'000'000;
  for (std::size_t i = 0; i < pairs.size(); i++) {  // not all at once
    pairs[i].due = start;
    if (arguments.rate != 0) pairs[i].due += kSecondNs * i / arguments.rate;
  }
  const double cpu_before = CpuSeconds();
  std::vector<std::vector<Pair>> shares;
  if (arguments.way == "epoll" || arguments.way == "threads") {
    shares.resize(std::min<std::size_t>(arguments.way == "threads" ? 2 : 1, pairs.size()));
    for (std::size_t i = 0; i < pairs.size(); i++) shares[i % shares.size()].push_back(pairs[i]);
  }
  std::vector<Client> clients(shares.empty() ? pairs.size() : shares.size(),
                              Client(arguments, start));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < clients.size(); i++) {
    threads.emplace_back([&, i] {
      if (shares.empty()) {
        clients[i].Run(pairs[i]);
      } else {
        clients[i].Run(shares[i]);
      }
    });
  }
  Histogram all;
  for (std::size_t i = 0; i < clients.size(); i++) {
    threads[i].join();
    all.Add(clients[i].latencies());
  }
  std::printf(
      R"({"round_trips": %llu, "p50_ns": %llu, "p99_ns": %llu, "p999_ns": %llu, "cpu_s": %.6f})"
      "\n",
      static_cast<unsigned long long>(all.total()), static_cast<unsigned long long>(all.At(0.5)),
      static_cast<unsigned long long>(all.At(0.99)), static_cast<unsigned long long>(all.At(0.999)),
      CpuSeconds() - cpu_before);
}

int Main(int argc, char** argv) {
  Arguments arguments;
  const std::string role = argc > 1 ? argv[1] : "";
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const auto number = [&](std::uint64_t most) { return ParseNumber(argv[i + 1], most); };
    if (name == "--way") arguments.way = argv[i + 1];
    if (name == "--port") arguments.port = static_cast<std::uint16_t>(number(65535));
    if (name == "--pairs") arguments.pairs = number(10'000);
    if (name == "--rate") arguments.rate = number(100'000'000);
    if (name == "--seconds") arguments.seconds = number(3600);
  }
  RaiseFileLimit();
  if (role == "server") Serve(arguments);
  if (role != "client" || arguments.pairs == 0) DieWith("usage: pairs server|client ...");
  Measure(arguments);
  return 0;
}

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) { return postern::perf::Main(argc, argv); }
