// SPDX-License-Identifier: Apache-2.0
// wire_options.cc - options of connections that go through a VI, as the engine has them.

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "offhost/wire.h"
#include "offhost/wire_options.h"
#include "stack/names.h"

namespace postern {
namespace {

// The engine's connection behind the program's end; null: there is none. It may be another one as
// soon as this is back, but for the lock's holder.
stack::Conn* ConnBehind(Family& fam, stack::Engine& engine, const pstn_ep& ep) {
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED) return nullptr;  // [E1]
  const pstn_ep* end = EngineEnd(fam, LoadRelaxed(ep.lgr_idx), ep.conn_idx);
  if (end == nullptr) return nullptr;
  const uint32_t conn = LoadRelaxed(end->accept_head), owner = EpIdx(Stack(fam), *end);
  if (conn >= stack::kConns) return nullptr;
  stack::Conn& c = engine.ConnAt(conn);
  return LoadRelaxed(c.use) == stack::kConnUsed && LoadRelaxed(c.owner) == owner ? &c : nullptr;
}

// False: there is no such connection. `fn` is called under the engine's lock.
template <typename Fn>
bool WithConn(Family& fam, const pstn_ep& ep, Fn fn) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr || ConnBehind(fam, *engine, ep) == nullptr) return false;
  engine->Acquire();
  stack::Conn* c = ConnBehind(fam, *engine, ep);
  if (c != nullptr) fn(*engine, *c);
  engine->Release();
  // A thread that has found it taken meanwhile counts on its holder to look for news once more, as
  // Engine::Poll() does.
  FenceAfterLocked();  // [F1]
  (void)WirePoll(fam);
  return c != nullptr;
}

constexpr uint32_t kAllThere = 1u << 30;  // bytes; more than any ring has

uint32_t HeadBytes(const stack::Conn& c) { return stack::IpBytes(c.local) + wire::kTcpHeaderBytes; }

uint32_t NotSent(stack::Engine& engine, stack::Conn& c) {
  const bool sends = tcp::StateOf(c.tcb) == tcp::State::kEstablished ||
                     tcp::StateOf(c.tcb) == tcp::State::kCloseWait;
  return sends ? engine.Available(c.tcb, c.tcb.snd_cursor, kAllThere) : 0;
}

void GiveInt(uint32_t v, WireValue& out) {
  memcpy(out.bytes, &v, sizeof v);
  out.size = sizeof v;
}

}  // namespace

bool WireInfo(Family& fam, const pstn_ep& ep, tcp::Info& out) {
  return WithConn(fam, ep, [&](stack::Engine& engine, stack::Conn& c) {
    tcp::FillInfo(c.tcb, MonotonicNs(), HeadBytes(c), NotSent(engine, c), out);
  });
}

bool WireQueued(Family& fam, const pstn_ep& ep, WireQueue& out) {
  return WithConn(fam, ep, [&](stack::Engine& engine, stack::Conn& c) {
    out.notsent = NotSent(engine, c);
    out.all = out.notsent + static_cast<uint32_t>(c.tcb.snd_nxt - c.tcb.snd_una);
  });
}

bool WireGetOpt(Family& fam, const pstn_ep& ep, int level, int name, WireValue& out) {
  const bool mtu = (level == IPPROTO_IP && name == IP_MTU) ||
                   (level == IPPROTO_IPV6 && name == IPV6_MTU && ep.family == AF_INET6);
  const bool maxseg = level == IPPROTO_TCP && name == TCP_MAXSEG;
  const bool congestion = level == IPPROTO_TCP && name == TCP_CONGESTION;
  if (!mtu && !maxseg && !congestion) return false;
  return WithConn(fam, ep, [&](stack::Engine&, const stack::Conn& c) {
    if (!congestion) {
      GiveInt(mtu ? c.path_mss + HeadBytes(c) : c.tcb.mss_bytes, out);
      return;
    }
    const char* kind = tcp::CongestionName(static_cast<tcp::CongestionKind>(c.tcb.cc.kind));
    memset(out.bytes, 0, sizeof out.bytes);
    memcpy(out.bytes, kind, strlen(kind));
    out.size = sizeof out.bytes;  // TCP_CA_NAME_MAX
  });
}

bool KernelInt(int fd, int level, int name, int& out) {
  socklen_t size = sizeof out;
  return sys::Call(SYS_getsockopt, fd, static_cast<long>(level), static_cast<long>(name), &out,
                   &size) == 0;
}

namespace {

void ReadCount(int fd, int level, int name, uint32_t& out) {
  int v = 0;
  if (KernelInt(fd, level, name, v) && v >= 0) out = static_cast<uint32_t>(v);
}

void ReadCongestion(int fd, uint32_t& out) {
  char name[16] = {};
  socklen_t size = sizeof name;
  tcp::CongestionKind kind{};
  if (sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP),
                static_cast<long>(TCP_CONGESTION), &name[0], &size) == 0 &&
      tcp::CongestionByName(name, sizeof name, kind))
    out = static_cast<uint32_t>(kind);
}

// What the kernel's socket keeps: bounded, and with the host's tcp_fin_timeout if no call has set
// another time.
void ReadKept(int fd, tcp::Settings& s) {
  int linger2 = 0;
  if (KernelInt(fd, IPPROTO_TCP, TCP_LINGER2, linger2))
    s.fin_wait2_s = linger2 < 0 ? tcp::kNoFinWait2 : static_cast<uint32_t>(linger2);
  ReadCount(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, s.window_clamp);
}

// The kernel checks the value, and its socket keeps it.
long SetKept(Family& fam, int fd, pstn_ep& ep, int name, const void* value, socklen_t len) {
  if (!WithConn(fam, ep, [](stack::Engine&, stack::Conn&) {})) return kPass;
  const long r = sys::Call(SYS_setsockopt, fd, static_cast<long>(IPPROTO_TCP),
                           static_cast<long>(name), value, static_cast<long>(len));
  if (r < 0) return r;
  FetchOr(ep.flags, PSTN_EPF_DIRTY | PSTN_EPF_KERNEL_OPTIONS);
  tcp::Settings kept = {};
  ReadKept(fd, kept);
  (void)WithConn(fam, ep, [&](stack::Engine&, stack::Conn& c) {
    c.tcb.settings.fin_wait2_s = kept.fin_wait2_s;
    c.tcb.settings.window_clamp = kept.window_clamp;
  });
  return 0;
}

}  // namespace

long WireSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                socklen_t len) {
  if (level == IPPROTO_TCP && (name == TCP_LINGER2 || name == TCP_WINDOW_CLAMP))
    return SetKept(fam, fd, ep, name, value, len);
  if (level != IPPROTO_TCP || name != TCP_CONGESTION) return kPass;
  if (static_cast<int>(len) < 1) return kPass;  // the kernel has the errors
  tcp::CongestionKind kind{};
  constexpr uint32_t kNameMax = 15;
  char text[kNameMax];
  const uint32_t bytes = len < kNameMax ? len : kNameMax;
  if (!CopyUser(text, value, bytes)) return kPass;
  const bool known = tcp::CongestionByName(text, bytes, kind);
  const bool ours = WithConn(fam, ep, [&](stack::Engine&, stack::Conn& c) {
    if (!known) return;
    c.tcb.settings.congestion = static_cast<uint32_t>(kind);
    tcp::CongestionSetKind(c.tcb.cc, kind);
  });
  return !ours ? kPass : known ? 0 : -ENOENT;
}

void WireInherit(Family& fam, int fd, const pstn_ep& ep) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr || ConnBehind(fam, *engine, ep) == nullptr) return;
  tcp::Settings kept = {};
  kept.congestion = LoadRelaxed(engine->state().settings.tcp_congestion);
  ReadKept(fd, kept);
  ReadCongestion(fd, kept.congestion);
  (void)WithConn(fam, ep, [&](stack::Engine&, stack::Conn& c) {
    tcp::Settings& s = c.tcb.settings;
    s.fin_wait2_s = kept.fin_wait2_s;
    s.window_clamp = kept.window_clamp;
    s.congestion = kept.congestion;
    tcp::CongestionSetKind(c.tcb.cc, static_cast<tcp::CongestionKind>(kept.congestion));
  });
}

void WireListenerMaxseg(Family& fam, const pstn_ep& ep, uint32_t maxseg) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  const uint32_t at = LoadAcquire(ep.wire);         // [E7]
  if (engine == nullptr || at == 0 || at > stack::kListeners) return;
  engine->Acquire();
  stack::Listener& l = engine->state().listeners[at - 1];
  if (l.use == stack::kListenerUsed && l.owner == EpIdx(Stack(fam), ep)) l.maxseg = maxseg;
  engine->Release();
  FenceAfterLocked();  // [F1] as in WithConn()
  (void)WirePoll(fam);
}

void WireListenerFastOpen(Family& fam, pstn_ep& ep, uint32_t queue) {
  constexpr uint32_t kServers = 2;  // a bit of tcp_fastopen
  if (queue == 0 || LoadAcquire(ep.wire) == 0 || (WireFastOpen() & kServers) == 0) return;  // [E7]
  WireUnlisten(fam, ep, Unfilter::kLeave);
  StoreRelaxed(ep.reason, kReasonFastOpen);
}

void WireOptionSet(Family& fam, const pstn_ep& ep, int level, int name) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  ConnEnd e;
  if (engine == nullptr || ConnBehind(fam, *engine, ep) == nullptr ||
      !Resolve(fam, const_cast<pstn_ep&>(ep), e))
    return;
  const bool no_delay = (LoadRelaxed(ep.flags) & PSTN_EPF_NODELAY) != 0;
  if (level == IPPROTO_TCP && name == TCP_NODELAY && no_delay)
    (void)WithConn(fam, ep, [](stack::Engine& held, stack::Conn& c) {
      // What is there by now, and not what is written before the engine's next turn.
      const uint32_t unsent = held.Available(c.tcb, c.tcb.snd_cursor, kAllThere);
      if (unsent != 0)
        tcp::MarkRecord(c.tcb, static_cast<uint32_t>(c.tcb.snd_nxt - c.tcb.snd_una) + unsent);
      tcp::Flush(c.tcb);
    });
  // What MSG_MORE holds back goes, too, as if it had been written without. With bytes under way it
  // goes with their acknowledgement.
  if (level == IPPROTO_TCP && name == TCP_CORK && (LoadRelaxed(ep.flags) & PSTN_EPF_CORK) == 0)
    (void)WithConn(fam, ep, [](const stack::Engine&, stack::Conn& c) {
      if (c.tcb.snd_nxt == c.tcb.snd_una) tcp::Flush(c.tcb);
    });
  AnnounceData(fam.bells, e);  // it looks at the options whenever it looks at the ring
  (void)WirePoll(fam);
}

// Options that the endpoint does not keep are the kernel's socket's. It says 536 of a maximum that
// no program has set (and before 6.2 of any).
stack::OpenWish WireWish(Family& fam, int fd, const pstn_ep& ep) {
  WireFollowSettings(*fam.engine, MonotonicNs());
  stack::OpenWish wish = {};
  wish.settings.congestion = LoadRelaxed(fam.engine->state().settings.tcp_congestion);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) == 0) return wish;
  ReadCongestion(fd, wish.settings.congestion);
  ReadKept(fd, wish.settings);
  constexpr uint32_t kNotSet = 536;
  ReadCount(fd, IPPROTO_TCP, TCP_MAXSEG, wish.settings.maxseg);
  if (wish.settings.maxseg == kNotSet) wish.settings.maxseg = 0;
  ReadCount(fd, IPPROTO_TCP, TCP_SYNCNT, wish.settings.syn_retries);
  const bool v4 = AddrIsV4(ep.peer) || ep.family == AF_INET;
  ReadCount(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, wish.tos);
  return wish;
}

int WireTakeSoftError(Family& fam, const pstn_ep& ep) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  const stack::Conn* c = engine != nullptr ? ConnBehind(fam, *engine, ep) : nullptr;
  if (c == nullptr || LoadRelaxed(c->tcb.soft_error) == 0) return 0;
  uint32_t error = 0;
  (void)WithConn(fam, ep, [&](stack::Engine&, stack::Conn& at) {
    error = at.tcb.soft_error;
    at.tcb.soft_error = 0;
  });
  return static_cast<int>(error);
}

}  // namespace postern
