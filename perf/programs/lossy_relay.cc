// lossy_relay.cc - carries frames between two interfaces as the simulator's links carry packets.
// SPDX-License-Identifier: Apache-2.0
//
//   lossy_relay A B [there:NAME=VALUE] [back:NAME=VALUE] ...
//
// There is from A to B. Names: loss, late, copy, corrupt (parts of 1), delay_us, jitter_us,
// late_us, rate_bps, queue_bytes, seed. The model is the simulator's own (tests/sim/link_model.h),
// on the IP length of each frame; only the clock is real. Frames that are not IP (ARP, neighbours)
// are late by the delay and nothing else. Prints "ready", and at SIGTERM what it has counted, as
// JSON.
//
// It looks for frames and for what is due in turn, and sleeps in ppoll() until the next of both:
// late by some tens of microseconds on an idle machine, which is why round trips below a
// millisecond are not measured with it.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <queue>
#include <string>
#include <vector>

#include "../../tests/sim/link_model.h"

namespace {

using postern::LinkCounts;
using postern::LinkModel;
using postern::LinkSettings;
using postern::LinkVerdict;

constexpr size_t kFrameMax = 65'536;
constexpr int kBatch = 64;  // frames that are taken before time is looked at again

[[noreturn]] void Die(const char* what) {
  perror(what);
  exit(1);
}

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

int OpenEnd(const char* name) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
  if (fd < 0) Die("socket");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name));
  if (address.sll_ifindex == 0) Die(name);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Die("bind");
  // What the kernel would drop for want of room would be a loss that nobody has asked for.
  const int bytes = 16 << 20;
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) != 0) Die("SO_RCVBUFFORCE");
  setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes));
  return fd;
}

struct Flying {
  uint64_t at_ns, order;
  std::vector<uint8_t> frame;
  bool operator<(const Flying& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
  }
};

class Direction {
 public:
  Direction(int from, int to, const LinkSettings& settings, uint64_t seed)
      : from_(from), to_(to), delay_ns_(settings.delay_ns), model_(settings, seed) {}

  void Take(uint64_t now_ns) {
    uint8_t frame[kFrameMax];
    for (int i = 0; i < kBatch; i++) {
      sockaddr_ll from{};
      socklen_t from_bytes = sizeof(from);
      const ssize_t got =
          recvfrom(from_, frame, sizeof(frame), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got < 0) Die("recvfrom");
      if (from.sll_pkttype != PACKET_OUTGOING && got > ETHER_HDR_LEN)
        Offer(std::vector<uint8_t>(frame, frame + got), now_ns);
    }
  }

  // Sends what is due; when the next one is.
  uint64_t Give(uint64_t now_ns) {
    while (!flying_.empty() && flying_.top().at_ns <= now_ns) {
      const std::vector<uint8_t>& frame = flying_.top().frame;
      if (send(to_, frame.data(), frame.size(), 0) < 0 && errno != ENOBUFS && errno != EAGAIN)
        Die("send");
      flying_.pop();
    }
    return flying_.empty() ? UINT64_MAX : flying_.top().at_ns;
  }

  const LinkCounts& counts() const { return model_.counts(); }

 private:
  void Offer(std::vector<uint8_t> frame, uint64_t now_ns) {
    const int kind = frame[12] << 8 | frame[13];
    if (kind != ETHERTYPE_IP && (kind != ETHERTYPE_IPV6 || frame[20] == IPPROTO_ICMPV6)) {
      flying_.push({now_ns + delay_ns_, order_++, std::move(frame)});
      return;
    }
    const uint32_t ip_bytes = static_cast<uint32_t>(frame.size() - ETHER_HDR_LEN);
    const LinkVerdict verdict = model_.Offer(now_ns, ip_bytes, false);
    if (verdict.corrupt) frame.back() ^= 0x55;
    for (uint32_t i = 0; i < verdict.copies; i++)
      flying_.push({verdict.arrive_ns[i], order_++, frame});
  }

  int from_, to_;
  uint64_t delay_ns_;
  LinkModel model_;
  std::priority_queue<Flying> flying_;
  uint64_t order_ = 0;
};

bool Set(LinkSettings& link, uint64_t& seed, const std::string& name, const char* value) {
  const double part = atof(value);
  const uint64_t number = strtoull(value, nullptr, 10);
  if (name == "loss")
    link.loss = part;
  else if (name == "late")
    link.late = part;
  else if (name == "copy")
    link.copy = part;
  else if (name == "corrupt")
    link.corrupt = part;
  else if (name == "delay_us")
    link.delay_ns = number * 1000;
  else if (name == "jitter_us")
    link.jitter_ns = number * 1000;
  else if (name == "late_us")
    link.late_ns = number * 1000;
  else if (name == "rate_bps")
    link.rate_bps = number;
  else if (name == "queue_bytes")
    link.queue_bytes = number;
  else if (name == "seed")
    seed = number;
  else
    return false;
  return true;
}

void Show(const char* name, const LinkCounts& c, const char* end) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  printf(
      "\"%s\": {\"offered\": %llu, \"lost\": %llu, \"overflowed\": %llu, \"late\": %llu, "
      "\"copied\": %llu}%s",
      name, number(c.offered), number(c.lost), number(c.overflowed), number(c.late),
      number(c.copied), end);
}

volatile sig_atomic_t stopped = 0;

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: lossy_relay A B [there:NAME=VALUE] [back:NAME=VALUE] ...\n");
    return 2;
  }
  LinkSettings settings[2];
  uint64_t seeds[2] = {1, 2};
  for (int i = 3; i < argc; i++) {
    const std::string argument = argv[i];
    const size_t colon = argument.find(':'), equals = argument.find('=');
    const int way = argument.rfind("back:", 0) == 0 ? 1 : 0;
    if (colon == std::string::npos || equals == std::string::npos || equals < colon ||
        !Set(settings[way], seeds[way], argument.substr(colon + 1, equals - colon - 1),
             argument.c_str() + equals + 1)) {
      fprintf(stderr, "lossy_relay: not understood: %s\n", argv[i]);
      return 2;
    }
  }
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = 1; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  const int a = OpenEnd(argv[1]), b = OpenEnd(argv[2]);
  Direction there(a, b, settings[0], seeds[0]), back(b, a, settings[1], seeds[1]);
  puts("ready");
  fflush(stdout);
  pollfd fds[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
  while (stopped == 0) {
    there.Take(NowNs());
    back.Take(NowNs());
    const uint64_t now_ns = NowNs();
    const uint64_t next_there = there.Give(now_ns), next_back = back.Give(now_ns);
    const uint64_t next_ns = next_there < next_back ? next_there : next_back;
    const uint64_t most_ns = 100'000'000;
    const uint64_t left_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    const timespec wait = {0, static_cast<long>(left_ns < most_ns ? left_ns : most_ns)};
    if (ppoll(fds, 2, &wait, nullptr) < 0 && errno != EINTR) Die("ppoll");
  }
  printf("{");
  Show("there", there.counts(), ", ");
  Show("back", back.counts(), "}\n");
  return 0;
}
