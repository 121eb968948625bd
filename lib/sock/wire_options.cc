// SPDX-License-Identifier: Apache-2.0
// wire_options.cc - options of connections that go through a VI, as the engine has them.
#include "sock/wire_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "sock/wire.h"
#include "stack/names.h"

namespace postern {
namespace {

// The engine's connection behind the program's end; null: there is none. It may be another one as
// soon as this is back, but for who has the lock.
stack::Conn* ConnBehind(stack::Engine& engine, const pstn_ep& ep) {
  pstn_stack& s = Stack();
  const uint32_t lgr = LoadRelaxed(ep.lgr_idx);
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED || lgr >= PSTN_LGRS ||
      !SameUuid(s.lgrs[lgr].peer, s.hdr.id))
    return nullptr;
  const uint32_t other = OtherSide(lgr);
  if (other >= PSTN_LGRS) return nullptr;
  const uint32_t idx = LoadAcquire(s.lgrs[other].conn_ep[ep.conn_idx % PSTN_CONNS]);
  if (idx == 0 || idx > PSTN_EPS) return nullptr;
  const pstn_ep& end = s.eps[idx - 1];
  if ((LoadRelaxed(end.flags) & PSTN_EPF_ENGINE) == 0) return nullptr;
  const uint32_t conn = LoadRelaxed(end.accept_head);
  if (conn >= stack::kConns) return nullptr;
  stack::Conn& c = engine.ConnAt(conn);
  return LoadRelaxed(c.use) == stack::kConnUsed && LoadRelaxed(c.owner) == idx - 1 ? &c : nullptr;
}

// False: there is no such connection. `fn` is called under the engine's lock.
template <typename Fn>
bool WithConn(const pstn_ep& ep, Fn fn) {
  stack::Engine* engine = LoadAcquire(g_wire);
  if (engine == nullptr || ConnBehind(*engine, ep) == nullptr) return false;
  stack::WireState& w = engine->state();
  if (Lock(w.lock)) engine->Recover(MonotonicNs());
  stack::Conn* c = ConnBehind(*engine, ep);
  if (c != nullptr) fn(*engine, *c);
  Unlock(w.lock);
  // Whoever has found it taken meanwhile counts on its holder to look for news once more, as
  // Engine::Poll() does.
  FenceAfterLocked();
  (void)WirePoll();
  return c != nullptr;
}

uint32_t HeadBytes(const stack::Conn& c) { return stack::IpBytes(c.local) + wire::kTcpHeaderBytes; }

void GiveInt(uint32_t v, WireValue& out) {
  memcpy(out.bytes, &v, sizeof v);
  out.size = sizeof v;
}

}  // namespace

bool WireInfo(const pstn_ep& ep, tcp::Info& out) {
  return WithConn(ep, [&](stack::Engine&, const stack::Conn& c) {
    tcp::FillInfo(c.tcb, MonotonicNs(), HeadBytes(c), out);
  });
}

bool WireGetOpt(const pstn_ep& ep, int level, int name, WireValue& out) {
  const bool mtu = (level == IPPROTO_IP && name == IP_MTU) ||
                   (level == IPPROTO_IPV6 && name == IPV6_MTU && ep.family == AF_INET6);
  const bool maxseg = level == IPPROTO_TCP && name == TCP_MAXSEG;
  const bool congestion = level == IPPROTO_TCP && name == TCP_CONGESTION;
  if (!mtu && !maxseg && !congestion) return false;
  return WithConn(ep, [&](stack::Engine&, const stack::Conn& c) {
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

long WireSetOpt(const pstn_ep& ep, int level, int name, const void* value, socklen_t len) {
  if (level != IPPROTO_TCP || name != TCP_CONGESTION) return kPass;
  if (static_cast<int>(len) < 1 || BadPointer(value)) return kPass;  // the kernel has the errors
  tcp::CongestionKind kind{};
  constexpr uint32_t kNameMax = 15;
  const bool known =
      tcp::CongestionByName(static_cast<const char*>(value), len < kNameMax ? len : kNameMax, kind);
  const bool ours = WithConn(ep, [&](stack::Engine&, stack::Conn& c) {
    if (!known) return;
    c.tcb.settings.congestion = static_cast<uint32_t>(kind);
    tcp::CongestionSetKind(c.tcb.cc, kind);
  });
  return !ours ? kPass : known ? 0 : -ENOENT;
}

void WireOptionSet(const pstn_ep& ep) {
  stack::Engine* engine = LoadAcquire(g_wire);
  ConnEnd e;
  if (engine == nullptr || ConnBehind(*engine, ep) == nullptr ||
      !Resolve(const_cast<pstn_ep&>(ep), e))
    return;
  AnnounceData(g_proc.bells, e);  // it looks at the options whenever it looks at the ring
  (void)WirePoll();
}

namespace {

// False: it can't be told.
bool KernelInt(int fd, int level, int name, uint32_t& out) {
  int v = 0;
  socklen_t size = sizeof v;
  if (sys::Call(SYS_getsockopt, fd, static_cast<long>(level), static_cast<long>(name), &v, &size) <
          0 ||
      v < 0)
    return false;
  out = static_cast<uint32_t>(v);
  return true;
}

}  // namespace

// Options that the endpoint does not keep are the kernel's socket's. It says 536 of a maximum that
// nobody has set (and before 6.2 of any).
stack::OpenWish WireWish(int fd, const pstn_ep& ep) {
  stack::OpenWish wish = {};
  wish.settings.congestion = g_wire->state().settings.tcp_congestion;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) == 0) return wish;
  char name[16] = {};
  socklen_t size = sizeof name;
  tcp::CongestionKind kind{};
  if (sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP),
                static_cast<long>(TCP_CONGESTION), &name[0], &size) == 0 &&
      tcp::CongestionByName(name, sizeof name, kind))
    wish.settings.congestion = static_cast<uint32_t>(kind);
  constexpr uint32_t kNotSet = 536;
  uint32_t v = 0;
  if (KernelInt(fd, IPPROTO_TCP, TCP_MAXSEG, v) && v != kNotSet) wish.settings.maxseg = v;
  if (KernelInt(fd, IPPROTO_TCP, TCP_SYNCNT, v)) wish.settings.syn_retries = v;
  const bool v4 = AddrIsV4(ep.peer) || ep.family == AF_INET;
  (void)KernelInt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, wish.tos);
  return wish;
}

int WireTakeSoftError(const pstn_ep& ep) {
  stack::Engine* engine = LoadAcquire(g_wire);
  const stack::Conn* c = engine != nullptr ? ConnBehind(*engine, ep) : nullptr;
  if (c == nullptr || LoadRelaxed(c->tcb.soft_error) == 0) return 0;
  uint32_t error = 0;
  (void)WithConn(ep, [&](stack::Engine&, stack::Conn& at) {
    error = at.tcb.soft_error;
    at.tcb.soft_error = 0;
  });
  return static_cast<int>(error);
}

}  // namespace postern
