// xsk_peer.cc - a process with a VI, which does what it is told on its standard input.
// SPDX-License-Identifier: Apache-2.0
//
// usage: xsk_peer SOCKET, the path of posternd's. It makes a stack and a packet area, says hello,
// and answers each command by one line, "ok ..." or "error N" (an errno):
//
//   open IFINDEX [VI] [SLOTS]       a VI of that interface, as number VI of the area
//   port tcp|udp ADDR PORT FLAGS VLAN             a listening (udp: bound) socket, and its filter
//   flow tcp|udp ADDR PORT LOCAL PEER PPORT FLAGS VLAN   a bound one, and a filter for that peer
//   again NUMBER LOCAL PEER PPORT [FLAGS]   one more for the socket of that filter
//   bound tcp ADDR PORT             only bound, and a filter as of "port": refused
//   keep 4|6 PORT                   a port for connections from here, PORT 0: any; "ok NUMBER PORT"
//   unfilter NUMBER                 takes the filter out, and closes its socket
//   leak NUMBER                     closes the socket, and leaves the filter
//   shut NUMBER                     its listener listens no more, by shutdown(); its filter is left
//   undo NUMBER                     the same, by connect() to no address
//   listen NUMBER                   it listens once more
//   hush NUMBER                     posternd is told that it has ended
//   recv COUNT MSEC                 waits for so many frames: "ok HEX HEX ..."
//   send HEX [COUNT]                sends it, and waits for its completion
//   fork                            a child maps everything anew and goes on; the parent ends
//   adopt IFINDEX                   a new posternd is told of what an earlier one has granted
//   recover                         as after a death; "ok LOST FREE"
//   check                           "ok 0" up, 1 busy, 2 down, 3 gone
//   stats                           "ok" and the counters
#include <arpa/inet.h>
#include <linux/if_xdp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ctl/msg_packet.h"
#include "ctl/vi_grant.h"
#include "state/area.h"
#include "vi/packet_area.h"
#include "vi/xsk.h"

namespace {

using namespace postern;  // NOLINT: a test's program

constexpr uint32_t kFrames = 4096, kFeed = 1024;

uint64_t StartTime() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string word;
  for (int field = 3; field <= 22; field++) rest >> word;
  return std::stoull(word);
}

class Daemon {
 public:
  // 0 or an errno.
  int Connect(const std::string& path) {
    close(fd_);
    fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  }
  // The answer's status, or EPIPE.
  int Ask(ctl::Msg& message, int fd, int& with) {
    message.seq = ++seq_;
    const ctl::Packet out(message, fd);
    if (sendmsg(fd_, &out.header, MSG_NOSIGNAL) < 0) return errno;
    for (;;) {
      ctl::Msg answer;
      ctl::Packet in(answer);
      if (recvmsg(fd_, &in.header, MSG_CMSG_CLOEXEC) != sizeof(answer)) return EPIPE;
      with = in.TakeFd([](int extra) { close(extra); });
      if (answer.seq != seq_) continue;  // pushed
      message = answer;
      return answer.status;
    }
  }

 private:
  int fd_ = -1;
  uint32_t seq_ = 0;
};

struct World {
  std::string path;
  Daemon daemon;
  pstn_uuid id = NewUuid();
  int stack_fd = -1, area_fd = -1;
  Area area;
  struct One {
    XskVi vi;
    uint64_t grant_id = 0;
    int line = -1, link = -1;
  };
  std::map<uint32_t, One> vis;
  std::map<uint32_t, int> sockets;  // by filter

  int Hello() {
    StackMap* const s = MapStack(stack_fd);
    s->slots.Own(ProcIndex(0)).start_time = StartTime();
    s->slots.Own(ProcIndex(0)).pid = static_cast<uint32_t>(getpid());
    s->slots.Own(ProcIndex(0)).state = PSTN_SL_LIVE;
    s->hdr.slots_hw = 1;
    UnmapStack(s);
    if (const int error = daemon.Connect(path); error != 0) return error;
    ctl::Msg m;
    m.type = ctl::Type::kHello;
    m.uuid = id;
    int directory = -1;
    const int error = daemon.Ask(m, stack_fd, directory);
    close(directory);
    return error;
  }

  int Start(const char* socket_path) {
    path = socket_path;
    stack_fd = CreateStack(id);
    area_fd = CreateArea(id, kFrames);
    if (stack_fd < 0 || area_fd < 0 || area.Map(area_fd) != 0) return ENOMEM;
    StackMap* const s = MapStack(stack_fd);
    for (uint32_t& chunk : s->slots.Own(ProcIndex(0)).chunk) chunk = PSTN_NONE;
    UnmapStack(s);
    return Hello();
  }

  void Feed(Vi& vi) {
    uint32_t frames[kFeed];
    const uint32_t want = vi.RefillRoom() < kFeed ? vi.RefillRoom() : kFeed;
    const uint32_t n = area.Take(frames, want);
    const uint32_t took = vi.Refill(frames, n);
    area.Give(frames + took, n - took);
    vi.Kick();
  }
};

using Words = std::istringstream;
std::string Status(int error) { return error == 0 ? "ok" : "error " + std::to_string(error); }

std::string Open(World& w, Words& words) {
  uint32_t ifindex = 0, vi = 0, slots = 256;
  words >> ifindex >> vi >> slots;
  ctl::Msg m;
  m.type = ctl::Type::kVi;
  m.a = ifindex;
  m.c = slots;
  int line = -1;
  if (const int error = w.daemon.Ask(m, w.area_fd, line); error != 0) return Status(error);
  ctl::ViGrant grant;
  int fds[ctl::kGrantFdsMax];
  if (const int error = TakeGrant(line, grant, fds); error != 0) return Status(-error);
  World::One& one = w.vis[vi];
  one.line = line;
  one.link = fds[grant.queue_count];
  one.grant_id = grant.id;
  EnterGrant(grant, *w.area.ViAt(vi));
  const int error = one.vi.Attach(w.area, vi, fds, grant.queue_count);
  if (error != 0) return Status(-error);
  w.Feed(one.vi);
  char text[160];
  snprintf(text, sizeof(text), "ok queues %u mtu %u partial %d zerocopy %d fd %d",
           grant.queue_count, grant.mtu, (grant.caps & kCapRxPartial) != 0,
           (grant.caps & kCapZeroCopy) != 0, one.vi.Fd());
  return text;
}

std::string Adopt(World& w, Words& words) {
  uint32_t ifindex = 0;
  words >> ifindex;
  if (const int error = w.Hello(); error != 0) return Status(error);
  World::One& one = w.vis.begin()->second;
  ctl::Msg m;
  m.type = ctl::Type::kVi;
  m.a = ifindex;
  m.b = 1;
  int line = -1;
  if (const int error = w.daemon.Ask(m, one.vi.FdOf(0), line); error != 0) return Status(error);
  ctl::ViGrant grant;
  int fds[ctl::kGrantFdsMax];
  if (const int error = TakeGrant(line, grant, fds); error != 0) return Status(-error);
  close(fds[0]);
  close(one.line);
  one.line = line;
  one.grant_id = grant.id;
  return "ok";
}

// ---- filters -----------------------------------------------------------------------------------

socklen_t ToAddress(const std::string& text, uint16_t port, sockaddr_storage& out) {
  out = {};
  auto& in = reinterpret_cast<sockaddr_in&>(out);
  auto& in6 = reinterpret_cast<sockaddr_in6&>(out);
  if (inet_pton(AF_INET, text.c_str(), &in.sin_addr) == 1) {
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    return sizeof(in);
  }
  inet_pton(AF_INET6, text.c_str(), &in6.sin6_addr);
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  return sizeof(in6);
}

void ToBytes(const std::string& text, uint8_t* out) {
  sockaddr_storage storage;
  ToAddress(text, 0, storage);
  memset(out, 0, 16);
  if (storage.ss_family == AF_INET) {
    out[10] = out[11] = 0xff;
    memcpy(out + 12, &reinterpret_cast<sockaddr_in&>(storage).sin_addr, 4);
  } else {
    memcpy(out, &reinterpret_cast<sockaddr_in6&>(storage).sin6_addr, 16);
  }
}

// A socket of the kernel's that has the port, or -errno.
int Reserve(const std::string& protocol, const std::string& address, uint16_t port, bool listens) {
  sockaddr_storage storage;
  const socklen_t size = ToAddress(address, port, storage);
  const int type = protocol == "tcp" ? SOCK_STREAM : SOCK_DGRAM;
  const int fd = socket(storage.ss_family, type | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, reinterpret_cast<sockaddr*>(&storage), size) == 0 &&
      (!listens || type != SOCK_STREAM || listen(fd, 16) == 0))
    return fd;
  const int error = errno;
  close(fd);
  return -error;
}

std::string Install(World& w, ctl::Msg& m, int socket) {
  if (socket < 0) return Status(-socket);
  m.type = ctl::Type::kFilter;
  m.cookie = w.vis.begin()->second.grant_id;
  m.a = 1;
  int with = -1;
  if (const int error = w.daemon.Ask(m, socket, with); error != 0) {
    close(socket);
    return Status(error);
  }
  w.sockets[m.d] = socket;
  return "ok " + std::to_string(m.d);
}

std::string Port(World& w, Words& words, bool listens) {
  std::string protocol, address;
  uint16_t port = 0;
  ctl::Msg m;
  words >> protocol >> address >> port >> m.b >> m.c;
  return Install(w, m, Reserve(protocol, address, port, listens));
}

std::string Flow(World& w, Words& words) {
  std::string protocol, address, local, peer;
  uint16_t port = 0;
  ctl::Msg m;
  words >> protocol >> address >> port >> local >> peer >> m.addr.port >> m.b >> m.c;
  ToBytes(local, reinterpret_cast<uint8_t*>(&m.id));
  ToBytes(peer, m.addr.ip);
  return Install(w, m, Reserve(protocol, address, port, false));
}

std::string Again(World& w, Words& words) {
  uint32_t number = 0;
  std::string local, peer;
  ctl::Msg m;
  words >> number >> local >> peer >> m.addr.port >> m.b;
  ToBytes(local, reinterpret_cast<uint8_t*>(&m.id));
  ToBytes(peer, m.addr.ip);
  return Install(w, m, dup(w.sockets[number]));
}

std::string Keep(World& w, Words& words) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = w.vis.begin()->second.grant_id;
  m.a = ctl::kFilterAdd;
  m.b = ctl::kFilterOutgoing | ctl::kFilterFragments;
  std::string local;
  words >> local >> m.addr.port;
  ToBytes(local, m.addr.ip);
  int with = -1;
  if (const int error = w.daemon.Ask(m, -1, with); error != 0) return Status(error);
  w.sockets[m.d] = -1;
  return "ok " + std::to_string(m.d) + " " + std::to_string(m.a);
}

std::string Unfilter(World& w, Words& words) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = w.vis.begin()->second.grant_id;
  m.a = 2;
  words >> m.d;
  const uint32_t number = m.d;
  int with = -1;
  const int error = w.daemon.Ask(m, -1, with);
  if (error != 0) return Status(error);
  close(w.sockets[number]);
  w.sockets.erase(number);
  return "ok";
}

std::string Hush(World& w, Words& words) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = w.vis.begin()->second.grant_id;
  m.a = ctl::kFilterHush;
  words >> m.d;
  int with = -1;
  return Status(w.daemon.Ask(m, -1, with));
}

std::string Shut(World& w, Words& words) {
  uint32_t number = 0;
  words >> number;
  return Status(shutdown(w.sockets[number], SHUT_RD) == 0 ? 0 : errno);
}

std::string Undo(World& w, Words& words) {
  uint32_t number = 0;
  words >> number;
  const sockaddr nothing{};
  return Status(connect(w.sockets[number], &nothing, sizeof(nothing)) == 0 ? 0 : errno);
}

std::string Listen(World& w, Words& words) {
  uint32_t number = 0;
  words >> number;
  return Status(listen(w.sockets[number], 16) == 0 ? 0 : errno);
}

std::string Leak(World& w, Words& words) {
  uint32_t number = 0;
  words >> number;
  close(w.sockets[number]);
  w.sockets.erase(number);
  return "ok";
}

// ---- frames ------------------------------------------------------------------------------------

std::string Hex(const uint8_t* data, uint32_t bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint32_t i = 0; i < bytes; i++) {
    text += kDigits[data[i] >> 4];
    text += kDigits[data[i] & 15];
  }
  return text;
}

uint64_t NowMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000 + static_cast<uint64_t>(ts.tv_nsec) / 1'000'000;
}

// Sleeps on the VI's descriptor, as an engine would.
std::string Recv(World& w, Words& words) {
  uint32_t count = 0, msec = 0;
  words >> count >> msec;
  std::string text = "ok";
  uint32_t got = 0;
  const uint64_t end = NowMs() + msec;
  while (got < count) {
    for (auto& [number, one] : w.vis) {
      ViRx rx[kViBatchMax];
      const uint32_t n = one.vi.Receive(rx, kViBatchMax);
      for (uint32_t i = 0; i < n; i++) {
        text += " " + Hex(w.area.At(rx[i].frame, rx[i].off), rx[i].bytes);
        w.area.Give(rx[i].frame);
      }
      got += n;
      w.Feed(one.vi);
    }
    const uint64_t now = NowMs();
    if (got >= count || now >= end) break;
    std::vector<pollfd> polls;
    for (auto& [number, one] : w.vis) polls.push_back({one.vi.Fd(), POLLIN, 0});
    poll(polls.data(), polls.size(), static_cast<int>(end - now));
  }
  return text;
}

std::string Send(World& w, Words& words) {
  std::string hex;
  uint32_t count = 1;
  words >> hex >> count;
  Vi& vi = w.vis.begin()->second.vi;
  uint32_t sent = 0, done = 0;
  const uint64_t end = NowMs() + 5000;
  while (done < count && NowMs() < end) {
    uint32_t frames[kViBatchMax];
    const uint32_t want = count - sent < kViBatchMax ? count - sent : kViBatchMax;
    const uint32_t n = w.area.Take(frames, want);
    ViTx tx[kViBatchMax];
    for (uint32_t i = 0; i < n; i++) {
      for (size_t at = 0; at < hex.size() / 2; at++)
        w.area.At(frames[i], 0)[at] =
            static_cast<uint8_t>(std::stoul(hex.substr(2 * at, 2), nullptr, 16));
      tx[i] = {frames[i], 0, static_cast<uint16_t>(hex.size() / 2), 0, 0};
    }
    const uint32_t took = vi.Send(tx, n);
    w.area.Give(frames + took, n - took);
    sent += took;
    vi.Kick();
    for (uint32_t c; (c = vi.Completed(frames, kViBatchMax)) != 0; done += c)
      w.area.Give(frames, c);
  }
  return done == count ? "ok" : Status(ETIMEDOUT);
}

// The child has the descriptors and nothing else: it maps area and rings anew.
std::string Fork(World& w) {
  if (fork() != 0) _exit(0);
  w.area.Unmap();
  if (w.area.Map(w.area_fd) != 0) return Status(ENOMEM);
  for (auto& [number, one] : w.vis) {
    std::vector<int> fds;
    for (uint32_t q = 0; q < one.vi.fd_count(); q++) fds.push_back(dup(one.vi.FdOf(q)));
    one.vi.Detach();
    const int error = one.vi.Attach(w.area, number, fds.data(), static_cast<uint32_t>(fds.size()));
    if (error != 0) return Status(-error);
  }
  return "ok " + std::to_string(getpid());
}

std::string Recover(World& w) {
  for (auto& [number, one] : w.vis) one.vi.Recover();
  w.area.ReclaimBegin();
  const uint32_t lost = w.area.ReclaimEnd();
  std::vector<uint8_t> seen(w.area.frame_count());
  if (!w.area.Validate(seen.data())) return Status(EUCLEAN);
  return "ok " + std::to_string(lost) + " " + std::to_string(w.area.FreeCount());
}

std::string Stats(World& w) {
  XskVi& vi = w.vis.begin()->second.vi;
  const pstn_vi_counters& c = vi.info().counters;
  xdp_statistics kernel{};
  vi.Statistics(0, kernel);
  std::ostringstream text;
  text << "ok rx " << c.rx_frames << " tx " << c.tx_frames << " kicks " << c.kicks << " dropped "
       << kernel.rx_dropped << " ring_full " << kernel.rx_ring_full << " fill_empty "
       << kernel.rx_fill_ring_empty_descs << " invalid "
       << kernel.rx_invalid_descs + kernel.tx_invalid_descs;
  return text.str();
}

std::string Obey(World& w, const std::string& line) {
  Words words(line);
  std::string command;
  words >> command;
  if (command == "open") return Open(w, words);
  if (command == "adopt") return Adopt(w, words);
  if (command == "port") return Port(w, words, true);
  if (command == "bound") return Port(w, words, false);
  if (command == "flow") return Flow(w, words);
  if (command == "again") return Again(w, words);
  if (command == "keep") return Keep(w, words);
  if (command == "unfilter") return Unfilter(w, words);
  if (command == "leak") return Leak(w, words);
  if (command == "shut") return Shut(w, words);
  if (command == "undo") return Undo(w, words);
  if (command == "listen") return Listen(w, words);
  if (command == "hush") return Hush(w, words);
  if (command == "recv") return Recv(w, words);
  if (command == "send") return Send(w, words);
  if (command == "fork") return Fork(w);
  if (command == "recover") return Recover(w);
  if (command == "stats") return Stats(w);
  if (command == "check")
    return "ok " + std::to_string(static_cast<int>(w.vis.begin()->second.vi.Check()));
  return Status(EINVAL);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  World world;
  std::cout << Status(world.Start(argv[1])) << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << Obey(world, line) << std::endl;
  return 0;
}
