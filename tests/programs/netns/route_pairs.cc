// route_pairs.cc - asks the tables and the kernel the same, and tells where they differ.
// SPDX-License-Identifier: Apache-2.0
//
//   route_pairs SOCKET STATE    commands on standard input, an answer in one line each
//
// SOCKET: posternd's. STATE: a file of two 64-bit numbers that the test writes when it changes the
// configuration: the first is odd while it does, the second is what the marker route's MTU is
// afterwards (kMarker, minus 1000), which tells that the tables have caught up.
//
//   queries FILE     dst src oif mark uid tos proto sport dport ("-": not told) in each line
//   round N          all of them N times. "compared N same N multipath N late N ...
//                    undecided:REASON N"
//   caught-up        waits until the tables have what STATE says
//   overruns         how often notifications were lost
//   resolve IF IP    asks posternd for a neighbour
//   neighbour IF IP  its state in the tables
//
// A pair counts if neither the version of the tables nor STATE has changed meanwhile. One that
// differs is repeated for a while: what the kernel does in its own time (carriers) is told late.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/mman.h>
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

#include "base/atomic.h"
#include "base/clock.h"
#include "ctl/msg_packet.h"
#include "stack/route/route.h"
#include "stack/route/route_key.h"
#include "state/area.h"

namespace {

using namespace postern;  // NOLINT(google-build-using-namespace): a program of its own

constexpr uint64_t kLateNs = 400'000'000, kCatchUpNs = 10'000'000'000;
constexpr size_t kDifferencesShown = 12;
constexpr uint8_t kMarker[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 254};

[[noreturn]] void Die(const std::string& what) {
  std::cout << "error " << what << ": " << strerror(errno) << std::endl;
  exit(1);
}

struct State {
  uint64_t seq, marker;
};

struct Kernel {
  int error = 0;
  int type = 0;
  uint32_t oif = 0;
  bool has_gateway = false;
  uint8_t gateway[16] = {}, source[16] = {};
  bool has_source = false;
  uint32_t mtu = 0, advmss = 0, window = 0, initcwnd = 0;
  struct Hop {
    uint32_t oif;
    uint8_t gateway[16];
    bool has_gateway;
  };
  std::vector<Hop> hops;  // of a fib match
};

bool ParseIp(const std::string& text, uint8_t out[16]) {
  memset(out, 0, 16);
  if (text == "-") return true;
  if (inet_pton(AF_INET6, text.c_str(), out) == 1) return true;
  out[10] = out[11] = 0xff;
  return inet_pton(AF_INET, text.c_str(), out + 12) == 1;
}

std::string IpText(const uint8_t ip[16]) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = IpAt(ip).IsV4();
  return inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? ip + 12 : ip, text, sizeof text);
}

// The macros of linux/rtnetlink.h mix signs.
constexpr size_t kAttrHeader = sizeof(rtattr);
size_t Aligned(size_t bytes) { return (bytes + 3) / 4 * 4; }
size_t PayloadOf(const rtattr* attr) { return attr->rta_len - kAttrHeader; }
const uint8_t* DataOf(const rtattr* attr) {
  return reinterpret_cast<const uint8_t*>(attr) + kAttrHeader;
}

bool TakeIp(const rtattr* attr, uint8_t out[16]) {
  const size_t bytes = PayloadOf(attr);
  memset(out, 0, 16);
  if (bytes == 4) out[10] = out[11] = 0xff;
  if (bytes != 4 && bytes != 16) return false;
  memcpy(out + 16 - bytes, DataOf(attr), bytes);
  return true;
}

// ---- the kernel's answer -----------------------------------------------------------------------

class KernelRoutes {
 public:
  KernelRoutes() : fd_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {
    if (fd_ < 0) Die("netlink");
  }

  Kernel Ask(const RouteQuery& q, bool fib_match) {
    Build(q, fib_match);
    if (send(fd_, buffer_, header()->nlmsg_len, 0) < 0) Die("send");
    for (;;) {
      const ssize_t n = recv(fd_, buffer_, sizeof buffer_, 0);
      if (n < 0) Die("recv");
      if (header()->nlmsg_seq == seq_) break;
    }
    Kernel k;
    if (header()->nlmsg_type == NLMSG_ERROR) {
      k.error = -static_cast<nlmsgerr*>(NLMSG_DATA(header()))->error;
      return k;
    }
    const auto* route = static_cast<rtmsg*>(NLMSG_DATA(header()));
    k.type = route->rtm_type;
    const size_t left = header()->nlmsg_len - sizeof(nlmsghdr) - sizeof *route;
    Each(route + 1, left, [&](const rtattr* attr) { Take(attr, k); });
    return k;
  }

 private:
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(buffer_); }

  void Put(unsigned short type, const void* data, size_t bytes) {
    char* at = buffer_ + header()->nlmsg_len;
    const rtattr attr = {static_cast<unsigned short>(kAttrHeader + bytes), type};
    memcpy(at, &attr, kAttrHeader);
    memcpy(at + kAttrHeader, data, bytes);
    header()->nlmsg_len += static_cast<uint32_t>(Aligned(kAttrHeader + bytes));
  }
  template <typename T>
  void Put(unsigned short type, T value) {
    Put(type, &value, sizeof value);
  }

  void Build(const RouteQuery& q, bool fib_match) {
    memset(buffer_, 0, 512);
    header()->nlmsg_len = sizeof(nlmsghdr) + sizeof(rtmsg);
    header()->nlmsg_type = RTM_GETROUTE;
    header()->nlmsg_flags = NLM_F_REQUEST;
    header()->nlmsg_seq = ++seq_;
    auto* route = static_cast<rtmsg*>(NLMSG_DATA(header()));
    const bool v4 = IpAt(q.dst).IsV4();
    const size_t at = v4 ? 12 : 0, bytes = v4 ? 4 : 16;
    route->rtm_family = v4 ? AF_INET : AF_INET6;
    route->rtm_dst_len = static_cast<unsigned char>(bytes * 8);
    route->rtm_tos = q.tos;
    route->rtm_flags = fib_match ? RTM_F_FIB_MATCH : RTM_F_LOOKUP_TABLE;
    Put(RTA_DST, q.dst + at, bytes);
    if (!IpAt(q.src).IsAny()) {
      route->rtm_src_len = route->rtm_dst_len;
      Put(RTA_SRC, q.src + at, bytes);
    }
    if (q.oif != 0) Put(RTA_OIF, q.oif);
    Put(RTA_MARK, q.mark);
    Put(RTA_UID, q.uid);
    if (q.proto != 0) Put(RTA_IP_PROTO, q.proto);
    if (q.sport != 0) Put(RTA_SPORT, htons(q.sport));
    if (q.dport != 0) Put(RTA_DPORT, htons(q.dport));
  }

  template <typename Fn>
  static void Each(const void* data, size_t left, Fn fn) {
    const auto* at = static_cast<const uint8_t*>(data);
    while (left >= kAttrHeader) {
      const auto* attr = reinterpret_cast<const rtattr*>(at);
      if (attr->rta_len < kAttrHeader || attr->rta_len > left) return;
      fn(attr);
      const size_t step = Aligned(attr->rta_len);
      if (step >= left) return;
      at += step;
      left -= step;
    }
  }

  static uint32_t U32(const rtattr* attr) {
    uint32_t v;
    memcpy(&v, DataOf(attr), sizeof v);
    return v;
  }

  static bool TakeVia(const rtattr* attr, uint8_t out[16]) {
    if (PayloadOf(attr) != 18) return false;
    memcpy(out, DataOf(attr) + 2, 16);
    return true;
  }

  static void TakeHops(const rtattr* list, Kernel& k) {
    const auto* at = reinterpret_cast<const rtnexthop*>(DataOf(list));
    size_t left = PayloadOf(list);
    while (left >= sizeof *at && at->rtnh_len >= sizeof *at && at->rtnh_len <= left) {
      Kernel::Hop hop{static_cast<uint32_t>(at->rtnh_ifindex), {}, false};
      Each(at + 1, at->rtnh_len - sizeof *at, [&](const rtattr* attr) {
        if (attr->rta_type == RTA_GATEWAY) hop.has_gateway = TakeIp(attr, hop.gateway);
        if (attr->rta_type == RTA_VIA) hop.has_gateway = TakeVia(attr, hop.gateway);
      });
      k.hops.push_back(hop);
      const size_t step = Aligned(at->rtnh_len);
      if (step >= left) break;
      left -= step;
      at = reinterpret_cast<const rtnexthop*>(reinterpret_cast<const char*>(at) + step);
    }
  }

  static void TakeMetrics(const rtattr* list, Kernel& k) {
    Each(DataOf(list), PayloadOf(list), [&](const rtattr* attr) {
      if (attr->rta_type == RTAX_MTU) k.mtu = U32(attr);
      if (attr->rta_type == RTAX_ADVMSS) k.advmss = U32(attr);
      if (attr->rta_type == RTAX_WINDOW) k.window = U32(attr);
      if (attr->rta_type == RTAX_INITCWND) k.initcwnd = U32(attr);
    });
  }

  static void Take(const rtattr* attr, Kernel& k) {
    if (attr->rta_type == RTA_OIF) k.oif = U32(attr);
    if (attr->rta_type == RTA_GATEWAY) k.has_gateway = TakeIp(attr, k.gateway);
    if (attr->rta_type == RTA_VIA) k.has_gateway = TakeVia(attr, k.gateway);
    if (attr->rta_type == RTA_PREFSRC) k.has_source = TakeIp(attr, k.source);
    if (attr->rta_type == RTA_METRICS) TakeMetrics(attr, k);
    if (attr->rta_type == RTA_MULTIPATH) TakeHops(attr, k);
  }

  int fd_;
  uint32_t seq_ = 0;
  alignas(nlmsghdr) char buffer_[65536];
};

// ---- comparing ---------------------------------------------------------------------------------

bool IsMulticast(const uint8_t ip[16]) {
  return IpAt(ip).IsV4() ? ip[12] >> 4 == 14 : ip[0] == 0xff;
}

bool SameType(RouteVerdict ours, int kernel, const uint8_t dst[16]) {
  if (IsMulticast(dst)) return ours == RouteVerdict::kMulticast;
  switch (kernel) {
    case RTN_LOCAL:
    case RTN_ANYCAST:
      return ours == RouteVerdict::kLocal;
    case RTN_BROADCAST:
      return ours == RouteVerdict::kBroadcast;
    case RTN_MULTICAST:
      return ours == RouteVerdict::kMulticast;
    default:
      return ours == RouteVerdict::kUnicast;
  }
}

bool SameGateway(const RouteAnswer& a, bool has, const uint8_t gateway[16]) {
  return (a.has_gateway != 0) == has && (!has || memcmp(a.next_hop, gateway, 16) == 0);
}

bool SameSource(const RouteQuery& q, const RouteAnswer& a, const Kernel& k) {
  if (!IpAt(q.src).IsAny()) return memcmp(a.source, q.src, 16) == 0;
  return !k.has_source ? IpAt(a.source).IsAny() : memcmp(a.source, k.source, 16) == 0;
}

bool SameMetrics(const RouteAnswer& a, const Kernel& k) {
  const uint32_t mtu = k.mtu != 0 && k.mtu < a.link.mtu ? k.mtu : 0;
  return (mtu == 0 || a.mtu == mtu) && a.metrics.advmss == k.advmss &&
         a.metrics.window == k.window && a.metrics.initcwnd == k.initcwnd;
}

enum class Result { kSame, kMultipath, kDiffer };

class Comparer {
 public:
  Comparer(const pstn_routes& tables, const State& state) : tables_(tables), state_(state) {}

  void Round(const std::vector<RouteQuery>& queries, uint32_t times) {
    counts_.clear();
    shown_.clear();
    for (; times > 0; times--) {
      for (const RouteQuery& q : queries) Pair(q);
    }
    for (const auto& [name, count] : counts_) std::cout << name << " " << count << " ";
    for (const std::string& text : shown_) std::cout << "| " << text << " ";
    std::cout << std::endl;
  }

  bool CaughtUp() const {
    RouteQuery q;
    memcpy(q.dst, kMarker, sizeof kMarker);
    const RouteAnswer a = RouteLookup(tables_, q);
    return a.mtu == 1000 + LoadAcquire(state_.marker);
  }

 private:
  // Whether it counts. `result` is set then.
  bool Once(const RouteQuery& q, RouteAnswer& a, Kernel& k, Result& result) {
    const uint64_t seq = LoadAcquire(state_.seq);
    if ((seq & 1) != 0) return Count("changing");
    if (!CaughtUp()) return Count("behind");
    a = RouteLookup(tables_, q);
    if (a.routes == RouteVerdict::kUndecided)
      return Count(std::string("undecided:") + RouteReasonName(a.reason));
    k = kernel_.Ask(q, false);
    result = Compare(q, a, k);
    if (result == Result::kDiffer && IsOneOfSeveral(q, a)) result = Result::kMultipath;
    if (RouteVersion(tables_) != a.version || LoadAcquire(state_.seq) != seq)
      return Count("changed");
    return true;
  }

  void Pair(const RouteQuery& q) {
    RouteAnswer a;
    Kernel k;
    Result result;
    if (!Once(q, a, k, result)) return;
    bool late = false;
    for (const uint64_t end = MonotonicNs() + kLateNs;
         result == Result::kDiffer && MonotonicNs() < end;) {
      late = true;
      usleep(2000);
      if (!Once(q, a, k, result)) return;
    }
    Count("compared");
    if (result == Result::kDiffer) {
      Count("differ");
      if (shown_.size() < kDifferencesShown) shown_.push_back(Describe(q, a, k));
    } else {
      Count(late ? "late" : result == Result::kSame ? "same" : "multipath");
      Count(a.routes == RouteVerdict::kRefused ? "refused"
            : a.routes == RouteVerdict::kLocal ? "local"
            : a.has_gateway != 0               ? "by-gateway"
                                               : "on-link");
    }
  }

  bool Count(const std::string& name) {
    counts_[name]++;
    return false;
  }

  static Result Compare(const RouteQuery& q, const RouteAnswer& a, const Kernel& k) {
    if (k.error != 0)
      return a.routes == RouteVerdict::kRefused && a.error == k.error ? Result::kSame
                                                                      : Result::kDiffer;
    if (!SameType(a.routes, k.type, q.dst)) return Result::kDiffer;
    if (!SameSource(q, a, k)) return Result::kDiffer;
    if (a.routes == RouteVerdict::kLocal) return Result::kSame;
    const bool gateway = IsMulticast(q.dst) || SameGateway(a, k.has_gateway, k.gateway);
    return a.ifindex == k.oif && gateway && SameMetrics(a, k) ? Result::kSame : Result::kDiffer;
  }

  // Our next hop is one of those that the kernel chooses from.
  bool IsOneOfSeveral(const RouteQuery& q, const RouteAnswer& a) {
    if (a.routes == RouteVerdict::kLocal || a.routes == RouteVerdict::kRefused) return false;
    const bool one = a.routes == RouteVerdict::kUnicast;
    const Kernel k = kernel_.Ask(q, true);
    for (const Kernel::Hop& hop : k.hops) {
      if (k.hops.size() > 1 && hop.oif == a.ifindex &&
          (!one || SameGateway(a, hop.has_gateway, hop.gateway)))
        return true;
    }
    return false;
  }

  static std::string Describe(const RouteQuery& q, const RouteAnswer& a, const Kernel& k) {
    std::ostringstream out;
    out << IpText(q.dst) << " from " << IpText(q.src) << " oif " << q.oif << " mark " << q.mark
        << " uid " << q.uid << " tos " << int{q.tos} << " proto " << int{q.proto} << " sport "
        << q.sport << " dport " << q.dport << ": ours " << static_cast<int>(a.routes) << " error "
        << a.error << " dev " << a.ifindex << " via " << int{a.has_gateway} << " "
        << IpText(a.next_hop) << " src " << IpText(a.source) << " mtu " << a.mtu << " table "
        << a.table << " metrics " << a.metrics.advmss << " " << a.metrics.window << " "
        << a.metrics.initcwnd << "; kernel " << k.type << " error " << k.error << " dev " << k.oif
        << " via " << k.has_gateway << " " << IpText(k.gateway) << " src " << IpText(k.source)
        << " mtu " << k.mtu << " metrics " << k.advmss << " " << k.window << " " << k.initcwnd;
    return out.str();
  }

  const pstn_routes& tables_;
  const State& state_;
  KernelRoutes kernel_;
  std::map<std::string, uint64_t> counts_;
  std::vector<std::string> shown_;
};

// ---- posternd ----------------------------------------------------------------------------------

int ConnectTo(const char* path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) Die(path);
  return fd;
}

const pstn_routes* TablesOf(int line) {
  ctl::Msg message;
  message.type = ctl::Type::kRoutes;
  message.seq = 1;
  if (send(line, &message, sizeof message, 0) < 0) Die("posternd");
  ctl::Packet packet(message);
  if (recvmsg(line, &packet.header, 0) != sizeof message) Die("posternd");
  const int fd = packet.TakeFd(close);
  const pstn_routes* tables = fd >= 0 ? MapRoutes(fd) : nullptr;
  if (tables == nullptr) Die("tables");
  // They can't be made writable.
  if (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
    Die("the tables can be written");
  return tables;
}

uint32_t Number(const std::string& text) {
  return text == "-" ? 0 : static_cast<uint32_t>(strtoul(text.c_str(), nullptr, 0));
}

std::vector<RouteQuery> ReadQueries(const std::string& path) {
  std::vector<RouteQuery> all;
  std::ifstream file(path);
  std::string dst, src, oif, mark, uid, tos, proto, sport, dport;
  while (file >> dst >> src >> oif >> mark >> uid >> tos >> proto >> sport >> dport) {
    RouteQuery q;
    if (!ParseIp(dst, q.dst) || !ParseIp(src, q.src)) Die(dst);
    q.oif = Number(oif);
    q.mark = Number(mark);
    q.uid = Number(uid);
    q.tos = static_cast<uint8_t>(Number(tos));
    q.proto = static_cast<uint8_t>(Number(proto));
    q.sport = static_cast<uint16_t>(Number(sport));
    q.dport = static_cast<uint16_t>(Number(dport));
    q.known =
        kRouteKnowsMark | kRouteKnowsUid | kRouteKnowsProto | kRouteKnowsSport | kRouteKnowsDport;
    all.push_back(q);
  }
  return all;
}

void Resolve(int line, const std::string& oif, const std::string& ip) {
  ctl::Msg message;
  message.type = ctl::Type::kResolve;
  message.a = Number(oif);
  ParseIp(ip, message.addr.ip);
  if (send(line, &message, sizeof message, 0) < 0) Die("posternd");
  std::cout << "asked" << std::endl;
}

const char* StateName(NeighbourState state) {
  static const char* const kNames[] = {"unknown", "asking", "good",
                                       "stale",   "failed", "not-needed"};
  return kNames[static_cast<size_t>(state)];
}

bool WaitFor(const Comparer& comparer) {
  for (const uint64_t end = MonotonicNs() + kCatchUpNs; MonotonicNs() < end; usleep(500)) {
    if (comparer.CaughtUp()) return true;
  }
  return false;
}

int Main(const char* socket_path, const char* state_path) {
  const int line = ConnectTo(socket_path);
  const pstn_routes* tables = TablesOf(line);
  const int state_fd = open(state_path, O_RDONLY | O_CLOEXEC);
  void* map = mmap(nullptr, sizeof(State), PROT_READ, MAP_SHARED, state_fd, 0);
  if (map == MAP_FAILED) Die(state_path);
  Comparer comparer(*tables, *static_cast<const State*>(map));
  std::vector<RouteQuery> queries;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream words(text);
    std::string command, a, b;
    words >> command >> a >> b;
    if (command == "queries") {
      queries = ReadQueries(a);
      std::cout << "queries " << queries.size() << std::endl;
    } else if (command == "round") {
      comparer.Round(queries, Number(a));
    } else if (command == "caught-up") {
      std::cout << (WaitFor(comparer) ? "yes" : "no") << std::endl;
    } else if (command == "overruns") {
      std::cout << "overruns " << LoadRelaxed(tables->overruns) << " syncs "
                << LoadRelaxed(tables->syncs) << std::endl;
    } else if (command == "resolve") {
      Resolve(line, a, b);
    } else if (command == "neighbour") {
      uint8_t ip[16];
      ParseIp(b, ip);
      const NeighbourAnswer n = NeighbourOf(*tables, Number(a), ip);
      char mac[24];
      snprintf(mac, sizeof mac, "%02x:%02x:%02x:%02x:%02x:%02x", n.mac[0], n.mac[1], n.mac[2],
               n.mac[3], n.mac[4], n.mac[5]);
      std::cout << StateName(n.state) << " " << mac << std::endl;
    } else {
      std::cout << "error no command " << command << std::endl;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: route_pairs SOCKET STATE\n");
    return 2;
  }
  return Main(argv[1], argv[2]);
}
