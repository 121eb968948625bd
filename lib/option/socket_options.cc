// SPDX-License-Identifier: Apache-2.0
// socket_options.cc - socket options of endpoints.
//
// An accelerated socket keeps what the program sets; the kernel's socket hears of it only when it
// takes over (ApplyOptions), so that an accepted connection needs no system call. Options that we
// do not know go to the kernel's socket at once: it checks them, and keeps them for that case.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <cerrno>
#include <initializer_list>

#include "base/ip_address.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/endpoint.h"
#include "endpoint/inherit.h"
#include "endpoint/kept_options.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "family/family.h"
#include "family/verbs.h"
#include "offhost/datagram.h"
#include "offhost/wire_options.h"
#include "option/kernel_loopback.h"
#include "option/kernel_only.h"
#include "option/socket_options.h"
#include "option/tcp_info.h"
#include "peer/port.h"
#include "smcd/hold.h"
#include "smcd/notify.h"
#include "smcd/ring.h"

namespace postern {
namespace {

// Values whose limits only the kernel knows: it checks them, on its own socket.
bool KernelMustCheck(uint32_t i) {
  return i == kSndbuf || i == kRcvbuf || i == kKeepidle || i == kKeepintvl || i == kKeepcnt ||
         i == kUserTimeout || i == kPriority || i == kDeferAccept || i == kBusyPoll;
}

// Ticks of the kernel's clock a second: it keeps socket timeouts in whole ticks.
uint64_t TicksPerSecond() {
  timespec tick = {};
  (void)clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
  uint64_t ns = static_cast<uint64_t>(tick.tv_nsec);
  return ns < 100'000 || ns > 100'000'000 ? 1000u : (1000000000u + ns / 2) / ns;
}

long SetTime(pstn_u64& ns, const void* value, socklen_t len) {
  if (len < sizeof(timeval)) return -EINVAL;
  timeval tv;
  if (!GetUser(tv, value)) return -EFAULT;
  if (tv.tv_usec < 0 || tv.tv_usec >= 1000000) return -EDOM;
  // Negative: the kernel takes it as "do not wait"; one tick is as close.
  uint64_t hz = TicksPerSecond(), tick_usec = 1000000u / hz;
  uint64_t ticks = (static_cast<uint64_t>(tv.tv_usec) + tick_usec - 1) / tick_usec;
  constexpr int64_t kForEver =
      INT64_MAX / 1000000000;  // so long is no timeout, for the kernel neither
  StoreRelaxed(ns, tv.tv_sec < 0 ? 1u
                   : tv.tv_sec >= kForEver
                       ? 0u
                       : static_cast<uint64_t>(tv.tv_sec) * 1000000000u + ticks * 1000000000u / hz);
  return 0;
}

// The kernel checks it, and keeps it for itself.
long SetFlag(int fd, pstn_ep& ep, int level, int name, uint32_t flag, const void* value,
             socklen_t len) {
  long r = KernelSetOpt(fd, level, name, value, len);
  if (r < 0) return r;
  int v;
  if (!GetUser(v, value)) return -EFAULT;
  if (v != 0) {
    FetchOr(ep.flags, flag);
  } else {
    FetchAnd(ep.flags, ~flag);
  }
  return 0;
}

int KernelInt(int fd, int name, int level = SOL_SOCKET) {
  int v = 0;
  socklen_t len = sizeof v;
  const long r =
      sys::Call(SYS_getsockopt, fd, static_cast<long>(level), static_cast<long>(name), &v, &len);
  return r < 0 ? 0 : v;
}

constexpr int kBufLock = 72;  // SO_BUF_LOCK: which sizes the program has set
constexpr int kSndLock = 1, kRcvLock = 2;

// What a size that was set has done to the kernel's socket, it has done to an accepted one's.
void ApplySizes(int fd, pstn_ep& ep) {
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  const int has = KernelInt(fd, kBufLock);
  for (const uint32_t i : {kSndbuf, kRcvbuf}) {
    const int v = static_cast<int>(LoadRelaxed(ep.*kKept[i].field));
    if ((LoadRelaxed(ep.opt_set) >> i & 1u) != 0 &&
        (has & (i == kSndbuf ? kSndLock : kRcvLock)) == 0)
      (void)KernelSetOpt(fd, SOL_SOCKET, kKept[i].name, &v, sizeof v);
  }
}

// What the program's sizes come to: the kernel's socket has doubled, rounded and bounded them.
void SizesChanged(Family& fam, int fd, pstn_ep& ep) {
  const int set = KernelInt(fd, kBufLock);
  uint64_t snd = (set & kSndLock) != 0 ? static_cast<uint64_t>(KernelInt(fd, SO_SNDBUF)) : 0;
  const bool has_lowat = (LoadRelaxed(ep.opt_set) >> kNotsentLowat & 1u) != 0;
  const uint64_t lowat = has_lowat ? LoadRelaxed(ep.notsent_lowat) : 0;  // 0: the sysctl's
  if (lowat != 0 && (snd == 0 || lowat < snd)) snd = lowat;
  const int rcv = (set & kRcvLock) != 0 ? KernelInt(fd, SO_RCVBUF) : 0;
  StoreRelaxed(ep.rcv_lines, rcv != 0 ? RingLines(static_cast<uint64_t>(rcv)) : 0u);
  ConnEnd e;
  const bool connected =
      LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && Resolve(fam, ep, e);  // [E1]
  const uint16_t budget = snd != 0 ? RingLines(snd) : 0;
  const uint16_t before = Exchange(ep.tx.budget, budget);
  if (!connected) return;
  StoreRelaxed(e.ctl().rcv_room, uint32_t{LoadRelaxed(ep.rcv_lines)} * PSTN_REC_ALIGN);
  if (before != 0 && (budget == 0 || budget > before)) AnnounceLocal(fam.bells, e);
}

// An option that we do not keep.
long SetKernels(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                socklen_t len) {
  NoteKernelOption(ep, level, name);
  if (level == SOL_SOCKET && (name == SO_SNDBUFFORCE || name == SO_RCVBUFFORCE)) {
    ApplySizes(fd, ep);
    const long r = KernelSetOpt(fd, level, name, value, len);
    if (r == 0) SizesChanged(fam, fd, ep);
    return r;
  }
  for (const FlaggedOption& o : kFlagged) {
    if (o.level == level && o.name == name) return SetFlag(fd, ep, level, name, o.flag, value, len);
  }
  return kPass;
}

// Of a connection it is checked, and changes nothing.
long SetMaxSegment(const void* value, socklen_t len) {
  constexpr int kLeast = 88, kMost = 32767;
  if (len < sizeof(int)) return -EINVAL;
  int v;
  if (!GetUser(v, value)) return -EFAULT;
  return v != 0 && (v < kLeast || v > kMost) ? -EINVAL : 0;
}

// What the kernel refuses once there is a connection; its own socket has none.
long RefusedConnected(int level, int name, const void* value, socklen_t len) {
  constexpr int kFastOpenNoCookie = 34;
  if (level == SOL_SOCKET && name == kPeekOff) return -EOPNOTSUPP;  // before 6.9 never with TCP
  if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY) return -EINVAL;
  if (level != IPPROTO_TCP) return 0;
  int v = 1;
  if (len >= sizeof v && !GetUser(v, value)) v = 1;
  switch (name) {
    case TCP_FASTOPEN:
    case kFastOpenConnect:
    case kFastOpenNoCookie:
      return -EINVAL;
    case TCP_WINDOW_CLAMP:
      return v == 0 ? -EINVAL : 0;
    case TCP_QUEUE_SEQ:
      return -EPERM;
    default:
      return 0;
  }
}

}  // namespace

namespace {

// The kernel checks it, and has it for its own clients.
long SetListenerMaxseg(Family& fam, int fd, pstn_ep& ep, const void* value, socklen_t len) {
  NoteKernelOption(ep, IPPROTO_TCP, TCP_MAXSEG);
  const long r = KernelSetOpt(fd, IPPROTO_TCP, TCP_MAXSEG, value, len);
  if (r < 0) return r;
  int v;
  if (!GetUser(v, value)) return -EFAULT;
  WireListenerMaxseg(fam, ep, static_cast<uint32_t>(v));
  return 0;
}

// Set before listen() it is known there (MayListen, lib/offhost/wire.cc).
long SetListenerFastOpen(Family& fam, int fd, pstn_ep& ep, const void* value, socklen_t len) {
  NoteKernelOption(ep, IPPROTO_TCP, TCP_FASTOPEN);
  const long r = KernelSetOpt(fd, IPPROTO_TCP, TCP_FASTOPEN, value, len);
  if (r < 0) return r;
  int v;
  if (!GetUser(v, value)) return -EFAULT;
  WireListenerFastOpen(fam, ep, static_cast<uint32_t>(v));
  return 0;
}

// TCP_NODELAY, and TCP_CORK's end, send what is held back. TCP_CORK set behind MSG_MORE keeps it.
void PushHeld(Family& fam, pstn_ep& ep, uint32_t i, bool on) {
  ConnEnd e;
  if (!Resolve(fam, ep, e) || HeldBytes(e) == 0 || (i == kNodelay && !on)) return;
  if (i == kCork && on) {
    Guard g(e.ep->tx.lock);
    if (StillHere(e)) HoldByCork(e);
    return;
  }
  // [C2]
  const bool gone = (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0;
  SendHeld(fam.bells, e);
  if (!gone) return;
  StoreRelaxed(ep.error, static_cast<uint32_t>(EPIPE));  // they meet a RST
  FetchOr(ep.flags, PSTN_EPF_HUNG);
  FetchOr(ep.rx.gate, PSTN_RXG_RESET);
  AnnounceLocal(fam.bells, e);
}

}  // namespace

long SockSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                socklen_t len) {
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_KERNEL)
    return IsDatagram(ep) ? DatagramSetOpt(fam, fd, ep, level, name, value, len) : kPass;
  if (ep.family == AF_INET && level == IPPROTO_IPV6) return kPass;  // an error
  if (state == PSTN_EP_ESTABLISHED) {
    long refused = RefusedConnected(level, name, value, len);
    if (refused != 0) return refused;
    const long wire = WireSetOpt(fam, fd, ep, level, name, value, len);
    if (wire != kPass) return wire;
    if (level == IPPROTO_TCP && name == TCP_MAXSEG) return SetMaxSegment(value, len);
  }
  if (!OptionForKernel(fam, fd, ep, level, name, value, len)) return -EADDRNOTAVAIL;
  if ((state = LoadAcquire(ep.state)) == PSTN_EP_KERNEL) return kPass;  // [E1]
  uint32_t i = FindKept(level, name);
  if (state == PSTN_EP_LISTEN ||
      (state == PSTN_EP_NEW && (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0)) {
    if (level == IPPROTO_TCP && name == TCP_MAXSEG && LoadRelaxed(ep.wire) != 0)
      return SetListenerMaxseg(fam, fd, ep, value, len);
    if (level == IPPROTO_TCP && name == TCP_FASTOPEN && LoadRelaxed(ep.wire) != 0)
      return SetListenerFastOpen(fam, fd, ep, value, len);
    if (i == kKeptCount) return SetKernels(fam, fd, ep, level, name, value, len);
    long r = KernelSetOpt(fd, level, name, value, len);  // a bound socket is the kernel's too
    if (r < 0) return r;
  } else if (i == kKeptCount) {
    FetchOr(ep.flags, PSTN_EPF_DIRTY);
    return SetKernels(fam, fd, ep, level, name, value, len);
  }
  if (static_cast<int>(len) < 0) return -EINVAL;
  int v = 0;
  if (len < sizeof v) return -EINVAL;
  if (!GetUser(v, value)) return -EFAULT;
  if (i == kLinger) {
    linger l;
    if (len < sizeof l) return -EINVAL;
    if (!GetUser(l, value)) return -EFAULT;
    const bool on = l.l_onoff != 0;
    SetLingering(ep, {on, on ? static_cast<uint32_t>(l.l_linger) : LoadRelaxed(ep.linger_sec)});
  } else if (i == kRcvtimeo || i == kSndtimeo) {
    long r = SetTime(i == kRcvtimeo ? ep.rcvtimeo_ns : ep.sndtimeo_ns, value, len);
    if (r < 0) return r;
  } else {
    if (i == kRcvlowat) {
      StoreRelaxed(ep.rcvlowat, v < 0 ? INT32_MAX : v == 0 ? 1u : static_cast<uint32_t>(v));
      // As in the kernel's tcp_set_rcvlowat(): an event, also an edge where nothing has changed.
      if (state == PSTN_EP_ESTABLISHED && (Readiness(fam, ep) & EPOLLIN) != 0) PostEp(fam, ep);
    } else if (kKept[i].flag != 0) {
      if (v != 0) {
        FetchOr(ep.flags, kKept[i].flag);
      } else {
        FetchAnd(ep.flags, ~kKept[i].flag);
      }
    } else {
      if (KernelMustCheck(i) && state != PSTN_EP_LISTEN) {
        FetchOr(ep.flags, PSTN_EPF_DIRTY);
        long r = KernelSetOpt(fd, level, name, value, len);
        if (r < 0) return r;
      }
      StoreRelaxed(ep.*kKept[i].field, static_cast<uint32_t>(v));
    }
  }
  FetchOr(ep.opt_set, 1u << i);  // [E13]
  if (i == kSndbuf || i == kRcvbuf || i == kNotsentLowat) {
    if (ep.listener != PSTN_NONE) ApplySizes(fd, ep);
    SizesChanged(fam, fd, ep);
  }
  if (state == PSTN_EP_ESTABLISHED) WireOptionSet(fam, ep, level, name);
  if ((i == kCork || i == kNodelay) && LoadRelaxed(ep.hold) != 0 && state == PSTN_EP_ESTABLISHED)
    PushHeld(fam, ep, i, v != 0);
  ConnEnd e;
  if ((i == kReuseaddr || i == kReuseport) && state == PSTN_EP_ESTABLISHED &&
      LoadRelaxed(ep.side) != 0 && Resolve(fam, ep, e))
    ShowReuse(ep, e.ctl());
  return 0;
}

namespace {

long GiveBytes(const void* from, socklen_t bytes, void* value, socklen_t* len) {
  socklen_t room;
  if (!GetUser(room, len)) return -EFAULT;
  if (static_cast<int>(room) < 0) return -EINVAL;
  if (room > bytes) room = bytes;
  return PutUser(len, room) && CopyUser(value, from, room) ? 0 : -EFAULT;
}
long GiveInt(int v, void* value, socklen_t* len) { return GiveBytes(&v, sizeof v, value, len); }

// What the kernel's socket, which has no connection, does not know of one over the loopback: its
// segments are half of a window at most, of which the client's first is without options. A size
// that the program has set before it connected counts with them.
constexpr int kMssUnset = 536, kMssMost = 32768, kTimestampBytes = 12, kClamp = 65536;
int MaxSegment(int fd, const pstn_ep& ep) {
  const int asked = KernelInt(fd, TCP_MAXSEG, IPPROTO_TCP);
  if (asked != kMssUnset) return asked - kTimestampBytes;
  const bool fresh =
      LoadRelaxed(ep.side) == 0 && LoadRelaxed(ep.rx.bytes) == 0 && LoadRelaxed(ep.tx.bytes) == 0;
  const int whole = AddrIsV4(LoadAddr(ep.peer)) ? 65483 : 65464;
  return fresh ? whole / 2 : kMssMost;
}
int WindowClamp(int fd) {
  const int asked = KernelInt(fd, TCP_WINDOW_CLAMP, IPPROTO_TCP);
  return asked != 0 ? asked : kClamp;
}

// The kernel's send buffer of a connection over the loopback, where the program has not set it.
int LoopbackSndbuf(Family& fam, int fd) {
  const Loopback* const said = LoopbackSays(fam);
  return said != nullptr ? static_cast<int>(said->sndbuf) : KernelInt(fd, SO_SNDBUF);
}

long GivePeerName(const pstn_ep& ep, void* value, socklen_t* len) {
  sockaddr_storage ss = {};
  socklen_t size = sizeof ss;
  AddrToSockaddr(LoadAddr(ep.peer), ep.family, reinterpret_cast<sockaddr*>(&ss), &size);
  socklen_t room;
  if (!GetUser(room, len)) return -EFAULT;
  if (room > size) return -EINVAL;
  return CopyUser(value, &ss, room) && PutUser(len, room) ? 0 : -EFAULT;
}

}  // namespace

long SockGetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, void* value,
                socklen_t* len) {
  uint32_t state = StateNow(fam, ep);
  if (state == PSTN_EP_KERNEL)
    return IsDatagram(ep) ? DatagramGetOpt(fam, ep, level, name, value, len) : kPass;
  socklen_t room;  // that comes first: the error stays
  if (level == SOL_SOCKET && name == SO_ERROR && !GetUser(room, len)) return -EFAULT;
  // A listener shows that of the connection that it has given up before.
  if (level == SOL_SOCKET && name == SO_ERROR &&
      (state == PSTN_EP_NEW || state == PSTN_EP_LISTEN) && LoadRelaxed(ep.error) != 0)
    return GiveInt(static_cast<int>(Exchange(ep.error, 0u)), value, len);
  if (level == SOL_SOCKET && name == SO_ERROR && state == PSTN_EP_ESTABLISHED) {
    ConnEnd e;
    int error = Resolve(fam, ep, e) ? TakeError(e, LoadAcquire(e.peer_ctl().flags))  // [C2]
                                    : static_cast<int>(Exchange(ep.error, 0u));
    if (error == 0) error = WireTakeSoftError(fam, ep);
    return GiveInt(error, value, len);
  }
  if (level == IPPROTO_TCP && name == TCP_INFO &&
      (state == PSTN_EP_ESTABLISHED || state == PSTN_EP_CONNECTING))
    return GiveTcpInfo(fam, fd, ep, value, len);
  if (level == IPPROTO_IPV6 && name == IPV6_ADDRFORM && state == PSTN_EP_ESTABLISHED &&
      ep.family == AF_INET6)
    return GiveInt(AF_INET6, value, len);
  if (level == SOL_SOCKET && name == SO_ACCEPTCONN && state == PSTN_EP_ESTABLISHED)
    return GiveInt(0, value, len);
  WireValue wire;
  if (state == PSTN_EP_ESTABLISHED && WireGetOpt(fam, ep, level, name, wire))
    return GiveBytes(wire.bytes, wire.size, value, len);
  bool mtu = (level == IPPROTO_IP && name == IP_MTU) ||
             (level == IPPROTO_IPV6 && name == IPV6_MTU && ep.family == AF_INET6);
  if (mtu && state == PSTN_EP_ESTABLISHED)  // lo's
    return GiveInt(ep.family == AF_INET6 && !AddrIsV4(LoadAddr(ep.peer)) ? 65536 : 65535, value,
                   len);
  if (level == SOL_SOCKET && name == SO_PEERNAME && state == PSTN_EP_ESTABLISHED)
    return GivePeerName(ep, value, len);
  if (level == SOL_SOCKET && name == SO_INCOMING_CPU && state == PSTN_EP_ESTABLISHED) {
    unsigned cpu = 0;
    (void)sys::Call(SYS_getcpu, &cpu, nullptr, nullptr);
    return GiveInt(static_cast<int>(cpu), value, len);
  }
  const bool here = state == PSTN_EP_ESTABLISHED &&
                    !kVerbs.wire_is_end(fam, LoadRelaxed(ep.lgr_idx), LoadRelaxed(ep.conn_idx));
  if (level == SOL_SOCKET && name == SO_SNDBUF && here &&
      (LoadRelaxed(ep.opt_set) >> kSndbuf & 1u) == 0 && (KernelInt(fd, kBufLock) & kSndLock) == 0)
    return GiveInt(LoopbackSndbuf(fam, fd), value, len);
  if (level == IPPROTO_TCP && name == TCP_MAXSEG && here)
    return GiveInt(MaxSegment(fd, ep), value, len);
  if (level == IPPROTO_TCP && name == TCP_WINDOW_CLAMP && here)
    return GiveInt(WindowClamp(fd), value, len);
  // Its number is for one socket's life: this one is not kept for the next connection.
  if (level == SOL_SOCKET && name == SO_COOKIE) FetchOr(ep.flags, PSTN_EPF_DIRTY);
  // What a size that was set has done to the kernel's socket, it has done to an accepted one's.
  if (level == SOL_SOCKET && name == kBufLock && ep.listener != PSTN_NONE) ApplySizes(fd, ep);
  uint32_t i = FindKept(level, name);
  if (state == PSTN_EP_LISTEN || i == kKeptCount || (LoadRelaxed(ep.opt_set) >> i & 1u) == 0)
    return kPass;
  switch (i) {
    case kLinger: {
      const Lingering kept = LingeringOf(ep);
      linger l = {kept.on ? 1 : 0, static_cast<int>(kept.sec)};
      return GiveBytes(&l, sizeof l, value, len);
    }
    case kRcvtimeo:
    case kSndtimeo: {
      uint64_t ns = LoadRelaxed(i == kRcvtimeo ? ep.rcvtimeo_ns : ep.sndtimeo_ns);
      timeval tv = {static_cast<time_t>(ns / 1000000000u),
                    static_cast<suseconds_t>(ns % 1000000000u / 1000u)};
      return GiveBytes(&tv, sizeof tv, value, len);
    }
    case kRcvlowat:
      return GiveInt(static_cast<int>(LoadRelaxed(ep.rcvlowat)), value, len);
    default:
      break;
  }
  if (KernelMustCheck(i)) {
    // Its socket has the value, doubled or rounded as it does; not yet if the listener had it set.
    if (ep.listener != PSTN_NONE) {
      int v = static_cast<int>(LoadRelaxed(ep.*kKept[i].field));
      FetchOr(ep.flags, PSTN_EPF_DIRTY);
      (void)KernelSetOpt(fd, level, name, &v, sizeof v);
    }
    return kPass;
  }
  if (kKept[i].flag != 0)
    return GiveInt((LoadRelaxed(ep.flags) & kKept[i].flag) != 0 ? 1 : 0, value, len);
  (void)fd;
  return GiveInt(static_cast<int>(LoadRelaxed(ep.*kKept[i].field)), value, len);
}

}  // namespace postern
