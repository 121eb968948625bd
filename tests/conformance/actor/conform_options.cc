// conform_options.cc - commands that ask a socket and set it up: getsockopt, setsockopt, ioctl.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

#include "conform.h"

namespace conform {
namespace {

enum class Kind { kInt, kLinger, kTime, kText };
struct Option {
  int level, name;
  Kind kind;
};

const std::map<std::string, Option> kOptions = {
    {"ACCEPTCONN", {SOL_SOCKET, SO_ACCEPTCONN, Kind::kInt}},
    {"BROADCAST", {SOL_SOCKET, SO_BROADCAST, Kind::kInt}},
    {"DOMAIN", {SOL_SOCKET, SO_DOMAIN, Kind::kInt}},
    {"ERROR", {SOL_SOCKET, SO_ERROR, Kind::kInt}},
    {"KEEPALIVE", {SOL_SOCKET, SO_KEEPALIVE, Kind::kInt}},
    {"LINGER", {SOL_SOCKET, SO_LINGER, Kind::kLinger}},
    {"OOBINLINE", {SOL_SOCKET, SO_OOBINLINE, Kind::kInt}},
    {"PRIORITY", {SOL_SOCKET, SO_PRIORITY, Kind::kInt}},
    {"PROTOCOL", {SOL_SOCKET, SO_PROTOCOL, Kind::kInt}},
    {"RCVBUF", {SOL_SOCKET, SO_RCVBUF, Kind::kInt}},
    {"SNDBUF", {SOL_SOCKET, SO_SNDBUF, Kind::kInt}},
    {"RCVLOWAT", {SOL_SOCKET, SO_RCVLOWAT, Kind::kInt}},
    {"SNDLOWAT", {SOL_SOCKET, SO_SNDLOWAT, Kind::kInt}},
    {"RCVTIMEO", {SOL_SOCKET, SO_RCVTIMEO, Kind::kTime}},
    {"SNDTIMEO", {SOL_SOCKET, SO_SNDTIMEO, Kind::kTime}},
    {"REUSEADDR", {SOL_SOCKET, SO_REUSEADDR, Kind::kInt}},
    {"REUSEPORT", {SOL_SOCKET, SO_REUSEPORT, Kind::kInt}},
    {"TYPE", {SOL_SOCKET, SO_TYPE, Kind::kInt}},
    {"BUSY_POLL", {SOL_SOCKET, SO_BUSY_POLL, Kind::kInt}},
    {"DONTROUTE", {SOL_SOCKET, SO_DONTROUTE, Kind::kInt}},
    {"TIMESTAMP", {SOL_SOCKET, SO_TIMESTAMP, Kind::kInt}},
    {"NODELAY", {IPPROTO_TCP, TCP_NODELAY, Kind::kInt}},
    {"CORK", {IPPROTO_TCP, TCP_CORK, Kind::kInt}},
    {"KEEPIDLE", {IPPROTO_TCP, TCP_KEEPIDLE, Kind::kInt}},
    {"KEEPINTVL", {IPPROTO_TCP, TCP_KEEPINTVL, Kind::kInt}},
    {"KEEPCNT", {IPPROTO_TCP, TCP_KEEPCNT, Kind::kInt}},
    {"DEFER_ACCEPT", {IPPROTO_TCP, TCP_DEFER_ACCEPT, Kind::kInt}},
    {"QUICKACK", {IPPROTO_TCP, TCP_QUICKACK, Kind::kInt}},
    {"LINGER2", {IPPROTO_TCP, TCP_LINGER2, Kind::kInt}},
    {"SYNCNT", {IPPROTO_TCP, TCP_SYNCNT, Kind::kInt}},
    {"USER_TIMEOUT", {IPPROTO_TCP, TCP_USER_TIMEOUT, Kind::kInt}},
    {"NOTSENT_LOWAT", {IPPROTO_TCP, TCP_NOTSENT_LOWAT, Kind::kInt}},
    {"CONGESTION", {IPPROTO_TCP, TCP_CONGESTION, Kind::kText}},
    {"TOS", {IPPROTO_IP, IP_TOS, Kind::kInt}},
    {"TTL", {IPPROTO_IP, IP_TTL, Kind::kInt}},
    {"V6ONLY", {IPPROTO_IPV6, IPV6_V6ONLY, Kind::kInt}},
    {"INCOMING_CPU", {SOL_SOCKET, SO_INCOMING_CPU, Kind::kInt}},
    {"BINDTODEVICE", {SOL_SOCKET, SO_BINDTODEVICE, Kind::kText}},
    {"MARK", {SOL_SOCKET, SO_MARK, Kind::kInt}},
    {"PASSCRED", {SOL_SOCKET, SO_PASSCRED, Kind::kInt}},
    {"RXQ_OVFL", {SOL_SOCKET, SO_RXQ_OVFL, Kind::kInt}},
    {"SELECT_ERR_QUEUE", {SOL_SOCKET, SO_SELECT_ERR_QUEUE, Kind::kInt}},
    {"TIMESTAMPNS", {SOL_SOCKET, SO_TIMESTAMPNS, Kind::kInt}},
    {"ZEROCOPY", {SOL_SOCKET, SO_ZEROCOPY, Kind::kInt}},
    {"MAX_PACING_RATE", {SOL_SOCKET, SO_MAX_PACING_RATE, Kind::kInt}},
    {"PREFER_BUSY_POLL", {SOL_SOCKET, SO_PREFER_BUSY_POLL, Kind::kInt}},
    {"BUSY_POLL_BUDGET", {SOL_SOCKET, SO_BUSY_POLL_BUDGET, Kind::kInt}},
    {"NO_CHECK", {SOL_SOCKET, SO_NO_CHECK, Kind::kInt}},
    {"PEEK_OFF", {SOL_SOCKET, SO_PEEK_OFF, Kind::kInt}},
    {"RCVBUFFORCE", {SOL_SOCKET, SO_RCVBUFFORCE, Kind::kInt}},
    {"SNDBUFFORCE", {SOL_SOCKET, SO_SNDBUFFORCE, Kind::kInt}},
    {"LOCK_FILTER", {SOL_SOCKET, SO_LOCK_FILTER, Kind::kInt}},
    {"DETACH_FILTER", {SOL_SOCKET, SO_DETACH_FILTER, Kind::kInt}},
    {"WIFI_STATUS", {SOL_SOCKET, SO_WIFI_STATUS, Kind::kInt}},
    {"NOFCS", {SOL_SOCKET, SO_NOFCS, Kind::kInt}},
    {"BSDCOMPAT", {SOL_SOCKET, SO_BSDCOMPAT, Kind::kInt}},
    {"DEBUG", {SOL_SOCKET, SO_DEBUG, Kind::kInt}},
    {"PEERCRED", {SOL_SOCKET, SO_PEERCRED, Kind::kInt}},
    {"TXREHASH", {SOL_SOCKET, 74, Kind::kInt}},
    {"RCVMARK", {SOL_SOCKET, 75, Kind::kInt}},
    {"BUF_LOCK", {SOL_SOCKET, 72, Kind::kInt}},
    {"BINDTOIFINDEX", {SOL_SOCKET, SO_BINDTOIFINDEX, Kind::kInt}},
    {"RESERVE_MEM", {SOL_SOCKET, 73, Kind::kInt}},
    {"TIMESTAMPING", {SOL_SOCKET, SO_TIMESTAMPING, Kind::kInt}},
    {"PEERNAME", {SOL_SOCKET, SO_PEERNAME, Kind::kInt}},
    {"MAXSEG", {IPPROTO_TCP, TCP_MAXSEG, Kind::kInt}},
    {"WINDOW_CLAMP", {IPPROTO_TCP, TCP_WINDOW_CLAMP, Kind::kInt}},
    {"FASTOPEN", {IPPROTO_TCP, TCP_FASTOPEN, Kind::kInt}},
    {"FASTOPEN_CONNECT", {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, Kind::kInt}},
    {"FASTOPEN_NO_COOKIE", {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, Kind::kInt}},
    {"INQ", {IPPROTO_TCP, TCP_INQ, Kind::kInt}},
    {"SAVE_SYN", {IPPROTO_TCP, TCP_SAVE_SYN, Kind::kInt}},
    {"SAVED_SYN", {IPPROTO_TCP, TCP_SAVED_SYN, Kind::kInt}},
    {"THIN_LINEAR_TIMEOUTS", {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, Kind::kInt}},
    {"THIN_DUPACK", {IPPROTO_TCP, TCP_THIN_DUPACK, Kind::kInt}},
    {"REPAIR", {IPPROTO_TCP, TCP_REPAIR, Kind::kInt}},
    {"TX_DELAY", {IPPROTO_TCP, TCP_TX_DELAY, Kind::kInt}},
    {"REPAIR_OPTIONS", {IPPROTO_TCP, TCP_REPAIR_OPTIONS, Kind::kInt}},
    {"QUEUE_SEQ", {IPPROTO_TCP, TCP_QUEUE_SEQ, Kind::kInt}},
    {"COOKIE_TRANSACTIONS", {IPPROTO_TCP, TCP_COOKIE_TRANSACTIONS, Kind::kInt}},
    {"TIMESTAMP_TCP", {IPPROTO_TCP, TCP_TIMESTAMP, Kind::kInt}},
    {"FASTOPEN_KEY", {IPPROTO_TCP, TCP_FASTOPEN_KEY, Kind::kInt}},
    {"MD5SIG", {IPPROTO_TCP, TCP_MD5SIG, Kind::kInt}},
    {"ULP", {IPPROTO_TCP, TCP_ULP, Kind::kText}},
    {"MTU", {IPPROTO_IP, IP_MTU, Kind::kInt}},
    {"MTU_DISCOVER", {IPPROTO_IP, IP_MTU_DISCOVER, Kind::kInt}},
    {"FREEBIND", {IPPROTO_IP, IP_FREEBIND, Kind::kInt}},
    {"NO_PORT", {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, Kind::kInt}},
    {"RECVERR", {IPPROTO_IP, IP_RECVERR, Kind::kInt}},
    {"RECVTOS", {IPPROTO_IP, IP_RECVTOS, Kind::kInt}},
    {"RECVTTL", {IPPROTO_IP, IP_RECVTTL, Kind::kInt}},
    {"IP_PKTINFO", {IPPROTO_IP, IP_PKTINFO, Kind::kInt}},
    {"MINTTL", {IPPROTO_IP, IP_MINTTL, Kind::kInt}},
    {"TRANSPARENT", {IPPROTO_IP, IP_TRANSPARENT, Kind::kInt}},
    {"HDRINCL", {IPPROTO_IP, IP_HDRINCL, Kind::kInt}},
    {"ROUTER_ALERT", {IPPROTO_IP, IP_ROUTER_ALERT, Kind::kInt}},
    {"NODEFRAG", {IPPROTO_IP, IP_NODEFRAG, Kind::kInt}},
    {"RECVOPTS", {IPPROTO_IP, IP_RECVOPTS, Kind::kInt}},
    {"RETOPTS", {IPPROTO_IP, IP_RETOPTS, Kind::kInt}},
    {"OPTIONS", {IPPROTO_IP, IP_OPTIONS, Kind::kInt}},
    {"MULTICAST_TTL", {IPPROTO_IP, IP_MULTICAST_TTL, Kind::kInt}},
    {"MULTICAST_LOOP", {IPPROTO_IP, IP_MULTICAST_LOOP, Kind::kInt}},
    {"MULTICAST_ALL", {IPPROTO_IP, IP_MULTICAST_ALL, Kind::kInt}},
    {"RECVORIGDSTADDR", {IPPROTO_IP, IP_RECVORIGDSTADDR, Kind::kInt}},
    {"CHECKSUM", {IPPROTO_IP, IP_CHECKSUM, Kind::kInt}},
    {"LOCAL_PORT_RANGE", {IPPROTO_IP, 51, Kind::kInt}},
    {"PASSSEC", {IPPROTO_IP, IP_PASSSEC, Kind::kInt}},
    {"UNICAST_IF", {IPPROTO_IP, IP_UNICAST_IF, Kind::kInt}},
    {"UNICAST_HOPS", {IPPROTO_IPV6, IPV6_UNICAST_HOPS, Kind::kInt}},
    {"V6MTU", {IPPROTO_IPV6, IPV6_MTU, Kind::kInt}},
    {"V6MTU_DISCOVER", {IPPROTO_IPV6, IPV6_MTU_DISCOVER, Kind::kInt}},
    {"V6RECVERR", {IPPROTO_IPV6, IPV6_RECVERR, Kind::kInt}},
    {"RECVPKTINFO", {IPPROTO_IPV6, IPV6_RECVPKTINFO, Kind::kInt}},
    {"TCLASS", {IPPROTO_IPV6, IPV6_TCLASS, Kind::kInt}},
    {"RECVTCLASS", {IPPROTO_IPV6, IPV6_RECVTCLASS, Kind::kInt}},
    {"RECVHOPLIMIT", {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, Kind::kInt}},
    {"ADDRFORM", {IPPROTO_IPV6, IPV6_ADDRFORM, Kind::kInt}},
    {"MULTICAST_HOPS", {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, Kind::kInt}},
    {"V6MULTICAST_LOOP", {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, Kind::kInt}},
    {"AUTOFLOWLABEL", {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, Kind::kInt}},
    {"DONTFRAG", {IPPROTO_IPV6, IPV6_DONTFRAG, Kind::kInt}},
    {"V6TRANSPARENT", {IPPROTO_IPV6, IPV6_TRANSPARENT, Kind::kInt}},
    {"V6FREEBIND", {IPPROTO_IPV6, IPV6_FREEBIND, Kind::kInt}},
    {"MINHOPCOUNT", {IPPROTO_IPV6, IPV6_MINHOPCOUNT, Kind::kInt}},
    {"ADDR_PREFERENCES", {IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, Kind::kInt}},
    {"V6CHECKSUM", {IPPROTO_IPV6, IPV6_CHECKSUM, Kind::kInt}},
    {"UNKNOWN", {SOL_SOCKET, 9999, Kind::kInt}},
    {"UNKNOWN_TCP", {IPPROTO_TCP, 9999, Kind::kInt}},
    {"UNKNOWN_LEVEL", {7777, 1, Kind::kInt}}};

std::string GetOption(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  char value[64] = {};
  socklen_t len = args.size() > 2           ? static_cast<socklen_t>(Number(args[2]))
                  : o.kind == Kind::kInt    ? sizeof(int)
                  : o.kind == Kind::kLinger ? sizeof(linger)
                  : o.kind == Kind::kTime   ? sizeof(timeval)
                                            : 16;
  if (getsockopt(Fd(args[0]), o.level, o.name, value, &len) != 0) return Errno();
  std::string out;
  if (o.kind == Kind::kText) return std::string(value) + " len " + std::to_string(len);
  if (o.kind == Kind::kTime) {
    timeval t;
    memcpy(&t, value, sizeof t);
    out = std::to_string(t.tv_sec) + "." + std::to_string(t.tv_usec);
  } else {
    int n[2];
    memcpy(n, value, sizeof n);
    out = std::to_string(n[0]) + (o.kind == Kind::kLinger ? "," + std::to_string(n[1]) : "");
    if (args[1] == "ERROR") out = n[0] == 0 ? "none" : strerrorname_np(n[0]);
  }
  return out + " len " + std::to_string(len);
}

// `getset C NAME VALUE...`: the option that a `setopt` with the same words has set.
std::string GetWhatWasSet(const Args& args) { return GetOption({args[0], args[1]}); }

std::string SetOption(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  const int n[2] = {static_cast<int>(Number(args[2])),
                    args.size() > 3 ? static_cast<int>(Number(args[3])) : 0};
  const timeval t{n[0] / 1000, (n[0] % 1000) * 1000};
  if (o.kind == Kind::kTime) return Outcome(setsockopt(Fd(args[0]), o.level, o.name, &t, sizeof t));
  if (o.kind == Kind::kText)
    return Outcome(setsockopt(Fd(args[0]), o.level, o.name, args[2].c_str(),
                              static_cast<socklen_t>(args[2].size())));
  return Outcome(setsockopt(Fd(args[0]), o.level, o.name, n, o.kind == Kind::kLinger ? 8 : 4));
}

// `optnull set|get C NAME`: the value or its length where no memory is.
std::string NullOption(const Args& args) {
  const Option& o = kOptions.at(args[2]);
  void* nowhere = Nowhere();
  int value = 0;
  if (args[0] == "set")
    return Outcome(setsockopt(Fd(args[1]), o.level, o.name, nowhere, sizeof value));
  if (args[0] == "get")
    return Outcome(
        getsockopt(Fd(args[1]), o.level, o.name, &value, static_cast<socklen_t*>(nowhere)));
  socklen_t len = args[0] == "negative" ? static_cast<socklen_t>(-1) : sizeof value;
  return Outcome(
      getsockopt(Fd(args[1]), o.level, o.name, args[0] == "negative" ? &value : nowhere, &len));
}

uint64_t Cookie(const std::string& name) {
  uint64_t cookie = 0;
  socklen_t len = sizeof cookie;
  return getsockopt(Fd(name), SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}

std::string Cookies(const Args& args) {
  const uint64_t a = Cookie(args[0]), b = Cookie(args[1]);
  return a == 0 || b == 0 ? "none" : a == b ? "same" : "different";
}

std::string SetOptionShort(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  const int n[16] = {1};
  return Outcome(
      setsockopt(Fd(args[0]), o.level, o.name, n, static_cast<socklen_t>(Number(args[2]))));
}

// The states that programs look at, by number as in TCP_ESTABLISHED = 1.
std::string TcpState(const Args& args) {
  tcp_info info{};
  socklen_t len = sizeof info;
  return getsockopt(Fd(args[0]), IPPROTO_TCP, TCP_INFO, &info, &len) != 0
             ? Errno()
             : "state " + std::to_string(info.tcpi_state);
}

// What is defined in the others: counts of what never happens on the same host, and what is never
// nothing.
std::string TcpInfo(const Args& args) {
  tcp_info info{};
  socklen_t len = args.size() > 1 ? static_cast<socklen_t>(Number(args[1])) : sizeof info;
  if (getsockopt(Fd(args[0]), IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return Errno();
  if (args.size() > 1)
    return "state " + std::to_string(info.tcpi_state) + " len " + std::to_string(len);
  std::string out =
      "state " + std::to_string(info.tcpi_state) + " ca " + std::to_string(info.tcpi_ca_state) +
      " lost " +
      std::to_string(0u + info.tcpi_retransmits + info.tcpi_probes + info.tcpi_backoff +
                     info.tcpi_lost + info.tcpi_retrans + info.tcpi_total_retrans);
  const std::pair<const char*, bool> never_nothing[] = {
      {"mss", info.tcpi_snd_mss > 0},   {"rcvmss", info.tcpi_rcv_mss > 0},
      {"rto", info.tcpi_rto > 0},       {"cwnd", info.tcpi_snd_cwnd > 0},
      {"rtt", info.tcpi_rtt > 0},       {"pmtu", info.tcpi_pmtu > 0},
      {"advmss", info.tcpi_advmss > 0}, {"rcvspace", info.tcpi_rcv_space > 0}};
  for (const auto& [name, has] : never_nothing) out += has ? std::string(" ") + name : "";
  return out;
}

// What a connection over the loopback begins with, whatever time it takes.
std::string TcpInfoFresh(const Args& args) {
  tcp_info info{};
  socklen_t len = sizeof info;
  if (getsockopt(Fd(args[0]), IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return Errno();
  const std::pair<const char*, uint32_t> fields[] = {{"options", 0u + info.tcpi_options},
                                                     {"snd_wscale", 0u + info.tcpi_snd_wscale},
                                                     {"rcv_wscale", 0u + info.tcpi_rcv_wscale},
                                                     {"snd_mss", info.tcpi_snd_mss},
                                                     {"rcv_mss", info.tcpi_rcv_mss},
                                                     {"pmtu", info.tcpi_pmtu},
                                                     {"rcv_ssthresh", info.tcpi_rcv_ssthresh},
                                                     {"snd_ssthresh", info.tcpi_snd_ssthresh},

                                                     {"advmss", info.tcpi_advmss},
                                                     {"reordering", info.tcpi_reordering},
                                                     {"rcv_space", info.tcpi_rcv_space}};
  std::string out;
  for (const auto& [name, value] : fields)
    out += std::string(name) + " " + std::to_string(value) + " ";
  return out;
}

std::string Ioctl(const Args& args) {
  static const std::map<std::string, unsigned long> kRequests = {
      {"FIONREAD", FIONREAD},       {"SIOCOUTQ", SIOCOUTQ},     {"SIOCATMARK", SIOCATMARK},
      {"SIOCOUTQNSD", SIOCOUTQNSD}, {"TIOCGWINSZ", TIOCGWINSZ}, {"SIOCINQ", SIOCINQ},
      {"SIOCGPGRP", SIOCGPGRP},     {"FIOQSIZE", FIOQSIZE},     {"SIOCGSTAMP", SIOCGSTAMP},
      {"UNKNOWN", 0x12345678}};
  int value[8] = {};
  if (ioctl(Fd(args[0]), kRequests.at(args[1]), value) != 0) return Errno();
  const std::string said = std::to_string(value[0]);
  // The C library's own way to ask the same.
  return args[1] == "SIOCATMARK" ? said + " " + std::to_string(sockatmark(Fd(args[0]))) : said;
}

std::string FioClex(const Args& args) {
  return Outcome(ioctl(Fd(args[0]), args[1] == "on" ? FIOCLEX : FIONCLEX));
}

std::string Fionbio(const Args& args) {
  int on = static_cast<int>(Number(args[1]));
  return Outcome(ioctl(Fd(args[0]), FIONBIO, &on));
}

}  // namespace

const Entry kOptionCommands[] = {{"getset", 2, GetWhatWasSet}, {"getopt", 2, GetOption},
                                 {"setopt", 3, SetOption},     {"setoptlen", 3, SetOptionShort},
                                 {"optnull", 3, NullOption},   {"cookies", 2, Cookies},
                                 {"tcpstate", 1, TcpState},    {"tcpinfo", 1, TcpInfo},
                                 {"ioctl", 2, Ioctl},          {"tcpfresh", 1, TcpInfoFresh},
                                 {"fionbio", 2, Fionbio},      {"fioclex", 2, FioClex},
                                 {nullptr, 0, nullptr}};

}  // namespace conform
