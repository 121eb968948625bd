// SPDX-License-Identifier: Apache-2.0
// udp_input.cc - what comes in: datagrams to one or to many, and ICMP errors about ours.
#include <errno.h>
#include <sys/socket.h>

#include "udp/parts.h"

namespace postern::udp {
namespace {

//= rfc768#fields
//# An all zero transmitted checksum value means that the transmitter generated no checksum
// RFC 8200, 8.1 does not allow that for IPv6; a program that wants it all the same
// (RFC 6935, tunnels) says so.
bool ChecksumAllowed(const Endpoint& e, const DatagramIn& in) {
  return in.checksum == Checksum::kGood || in.dest.IsV4() || Has(e, kNoChecksum6In);
}

// Broadcast and multicast: to every endpoint that may hear it, connected or not.
Verdict Deliver(const Ports& ports, const DatagramIn& in, Host& host) {
  uint32_t delivered = 0, refused = 0;
  for (uint32_t i = ports.by_port[PortBucket(in.dest_port)]; i != kNone;) {
    const Endpoint& e = host.EndpointAt(i);
    const uint32_t next = e.port_next;
    const bool wanted = MatchesLocal(e, in) && MatchesRemote(e, in) && ChecksumAllowed(e, in) &&
                        (in.cast == Cast::kBroadcast || WantsFrom(e, in, host));
    if (wanted && Enqueue(i, in, host)) {
      delivered++;
    } else if (wanted) {
      refused++;
    }
    i = next;
  }
  if (delivered > 0) return Verdict::kDelivered;
  return refused > 0 ? Verdict::kDropped : Verdict::kNoPort;
}

struct IcmpMeaning {
  int error;   // 0: none that a program is told
  bool fatal;  // told to a connected endpoint that has not asked for errors
};

// RFC 1122, 3.2.2.1 and 4.1.3.3; the errno are those of Linux's icmp_err_convert.
constexpr IcmpMeaning kUnreachable4[] = {
    {ENETUNREACH, false},                                               // 0 net
    {EHOSTUNREACH, false}, {ENOPROTOOPT, true},  {ECONNREFUSED, true},  // 3 port
    {EMSGSIZE, false},    // 4 fragmentation needed: see below
    {EOPNOTSUPP, false},  // source route failed
    {ENETUNREACH, true},   {EHOSTDOWN, true},    {ENONET, true},
    {ENETUNREACH, true},   {EHOSTUNREACH, true}, {ENETUNREACH, false},
    {EHOSTUNREACH, false}, {EHOSTUNREACH, true},  // 13 administratively prohibited
    {EHOSTUNREACH, true},  {EHOSTUNREACH, true},
};
constexpr IcmpMeaning kUnreachable6[] = {
    {ENETUNREACH, false},   // 0 no route
    {EACCES, true},         // administratively prohibited
    {EHOSTUNREACH, false},  // beyond the scope
    {EHOSTUNREACH, false},  // address
    {ECONNREFUSED, true},   // 4 port
    {EACCES, true},        {EACCES, true},
};

constexpr uint8_t kDestUnreachable4 = 3, kTimeExceeded4 = 11, kParameter4 = 12, kFragNeeded = 4;
constexpr uint8_t kDestUnreachable6 = 1, kTooBig6 = 2, kTimeExceeded6 = 3, kParameter6 = 4;
constexpr uint32_t kMtuLeast4 = 68, kMtuLeast6 = 1280;  // RFC 791, RFC 8200, 5

template <size_t kCount>
IcmpMeaning Unreachable(const IcmpMeaning (&table)[kCount], uint8_t code, IcmpMeaning other) {
  return code < kCount ? table[code] : other;
}

bool IsTooBig(const IcmpIn& icmp) {
  return icmp.v6 ? icmp.type == kTooBig6
                 : icmp.type == kDestUnreachable4 && icmp.code == kFragNeeded;
}

IcmpMeaning Meaning(const IcmpIn& icmp) {
  if (icmp.v6) {
    if (icmp.type == kDestUnreachable6)
      return Unreachable(kUnreachable6, icmp.code, {EPROTO, true});
    if (icmp.type == kParameter6) return {EPROTO, true};
    return {icmp.type == kTimeExceeded6 ? EHOSTUNREACH : 0, false};
  }
  if (icmp.type == kDestUnreachable4)
    return Unreachable(kUnreachable4, icmp.code, {EHOSTUNREACH, false});
  if (icmp.type == kParameter4) return {EPROTO, true};
  return {icmp.type == kTimeExceeded4 ? EHOSTUNREACH : 0, false};
}

// RFC 8201, 4 and RFC 1191, 3: a smaller MTU than each link has is no news but an attack.
IcmpMeaning TooBig(const Endpoint& e, const IcmpIn& icmp, Host& host) {
  const bool believed = e.mtu_discover != kPmtuInterface && e.mtu_discover != kPmtuOmit;
  if (!believed || icmp.info < (icmp.v6 ? kMtuLeast6 : kMtuLeast4)) return {0, false};
  host.PathMtu(icmp.dest, icmp.info);
  // Without discovery the Host fragments from now on: nothing to tell. IPv6 tells if asked.
  if (e.mtu_discover != kPmtuDont) return {EMSGSIZE, true};
  return {icmp.v6 ? EMSGSIZE : 0, false};
}

void Tell(uint32_t idx, const IcmpIn& icmp, int error, Host& host) {
  constexpr uint8_t kOriginIcmp = 2, kOriginIcmp6 = 3;
  Failed f = {};
  f.dest = icmp.dest;
  f.from = icmp.from;
  f.dest_port = icmp.dest_port;
  f.origin = icmp.v6 ? kOriginIcmp6 : kOriginIcmp;
  f.type = icmp.type;
  f.code = icmp.code;
  f.error = error;
  f.info = icmp.info;
  f.ifindex = icmp.ifindex;
  f.packet = icmp.bytes == 0 ? kNone : icmp.packet;
  f.off = icmp.off;
  f.bytes = icmp.bytes;
  EnqueueError(idx, f, host);
}

}  // namespace

Verdict Input(Ports& ports, const DatagramIn& in, Host& host) {
  if (in.checksum == Checksum::kBad || in.dest_port == 0) return Verdict::kInvalid;
  if (in.cast != Cast::kUnicast) return Deliver(ports, in, host);
  const uint32_t idx = Lookup(ports, in, host);
  if (idx == kNone)
    return in.checksum == Checksum::kZero && !in.dest.IsV4() ? Verdict::kInvalid : Verdict::kNoPort;
  if (!ChecksumAllowed(host.EndpointAt(idx), in)) return Verdict::kInvalid;
  return Enqueue(idx, in, host) ? Verdict::kDelivered : Verdict::kDropped;
}

//= rfc1122#4.1.3.3
//# UDP MUST pass to the application layer all ICMP error messages that it receives from the IP
// layer.
// Linux: the hard ones to connected sockets, all of them to sockets with IP_RECVERR.
void Icmp(Ports& ports, const IcmpIn& icmp, Host& host) {
  DatagramIn answer;
  answer.source = icmp.dest;
  answer.dest = icmp.source;
  answer.source_port = icmp.dest_port;
  answer.dest_port = icmp.source_port;
  answer.ifindex = icmp.ifindex;
  const uint32_t idx = Lookup(ports, answer, host);
  if (idx == kNone) return;
  Endpoint& e = host.EndpointAt(idx);
  const IcmpMeaning meaning = IsTooBig(icmp) ? TooBig(e, icmp, host) : Meaning(icmp);
  if (meaning.error == 0) return;
  if (Has(e, kRecvErr)) {
    Tell(idx, icmp, meaning.error, host);
  } else if (!meaning.fatal || !Has(e, kConnected)) {
    return;
  }
  e.error = meaning.error;
  host.Wake(idx, Event::kError);
}

}  // namespace postern::udp
