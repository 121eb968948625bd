// SPDX-License-Identifier: Apache-2.0
// wire_filter.cc - what the interface steers to the stack: asked of posternd, and given back.
//
// A filter is posternd's, which has seen the kernel's socket that justifies it (docs/vi.md). It has
// a number, which its maker keeps in the wire segment: with the listener or the connection.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "control/control.h"
#include "endpoint/endpoint.h"
#include "family/verbs.h"
#include "offhost/datagram.h"
#include "offhost/wire.h"
#include "offhost/wire_here.h"

namespace postern {

int AskNow(Family& fam, ctl::Msg& m, int fd, int* reply_fd) { return CtlAsk(fam, m, fd, reply_fd); }

namespace {

ctl::Msg About(Family& fam, uint32_t change, uint32_t vi) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = fam.engine->state().grant[vi % kAreaVis];
  m.a = change;
  return m;
}

// `to`, if it is not null: the peer that it comes from.
// Of TCP fragments, too: the kernel would answer them, once whole, with a RST.
int AddFilter(Family& fam, LineAsk ask, int fd, uint32_t vi, const pstn_addr* local,
              const pstn_addr* to, uint32_t* number, uint32_t flags = ctl::kFilterFragments) {
  ctl::Msg m = About(fam, ctl::kFilterAdd, vi);
  m.b = flags;
  if (to != nullptr) {
    m.addr = *to;
    memcpy(&m.id, local->ip, sizeof m.id);
  }
  const int r = ask(fam, m, fd, nullptr);
  if (r == 0 && number != nullptr) *number = m.d;
  return r;
}

// The engine's connection whose program is `ep`; null: it has none.
stack::Conn* ConnOf(Family& fam, const pstn_ep& ep) {
  const pstn_ep* end = EngineEnd(fam, LoadRelaxed(ep.lgr_idx), ep.conn_idx);
  return end != nullptr ? &fam.engine->ConnAt(LoadRelaxed(end->accept_head)) : nullptr;
}

}  // namespace

int WireFilter(Family& fam, int fd, uint32_t vi, uint32_t* number) {
  return AddFilter(fam, AskNow, fd, vi, nullptr, nullptr, number);
}

int WireFilterPeer(Family& fam, int fd, uint32_t vi, const pstn_addr& local, const pstn_addr& peer,
                   uint32_t* number) {
  return AddFilter(fam, AskNow, fd, vi, &local, &peer, number);
}

int WireFilterDatagrams(Family& fam, int fd, uint32_t vi, const pstn_addr& local,
                        const pstn_addr* peer, uint32_t* number, LineAsk ask) {
  return AddFilter(fam, ask != nullptr ? ask : AskNow, fd, vi, &local, peer, number, 0);
}

namespace {

// Under the engine's lock.
bool PutUnfilter(Family& fam, uint32_t vi, uint32_t number, uint32_t change)
    PSTN_REQUIRES(fam.engine) {
  stack::WireState& w = fam.engine->state();
  stack::Errand errand = {};
  errand.kind = static_cast<uint32_t>(stack::ErrandKind::kUnfilter);
  errand.a = vi % kAreaVis;
  errand.b = number;
  errand.c = change;
  errand.grant = w.grant[vi % kAreaVis];
  return stack::PutErrand(w.errands, errand);
}

}  // namespace

void WireNeverWaits(Family& fam) { fam.wire->never_waits = true; }

void WireUnfilter(Family& fam, uint32_t vi, uint32_t number, Unfilter how) {
  const uint32_t change = how == Unfilter::kHush    ? ctl::kFilterHush
                          : how == Unfilter::kLeave ? ctl::kFilterLeave
                                                    : ctl::kFilterRemove;
  if (how == Unfilter::kLater) {
    fam.engine->AssertHeld();
    return (void)PutUnfilter(fam, vi, number, change);
  }
  if (fam.wire->never_waits) {
    fam.engine->Acquire();
    (void)PutUnfilter(fam, vi, number, change);
    fam.engine->Release();
    return WireErrands(fam);
  }
  ctl::Msg m = About(fam, change, vi);
  m.d = number;
  (void)CtlAsk(fam, m, -1, nullptr);
}

namespace {

// A socket of the kernel's that is bound to the name that `fd` has, beside it. -errno: there can't
// be one.
int StandIn(int fd) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  if (const long r = sys::Call(SYS_getsockname, fd, &name, &size); r < 0)
    return static_cast<int>(r);
  const int made = sys::Socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return made;
  const auto share = [](int of, int on) {
    return sys::Call(SYS_setsockopt, of, static_cast<long>(SOL_SOCKET),
                     static_cast<long>(SO_REUSEADDR), &on, sizeof on);
  };
  int before = 0;
  socklen_t length = sizeof before;
  long r = sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET),
                     static_cast<long>(SO_REUSEADDR), &before, &length);
  if (r == 0) r = share(fd, 1);
  if (r == 0) r = share(made, 1);
  if (r == 0) r = sys::Call(SYS_bind, made, &name, static_cast<long>(size));
  (void)share(fd, before);
  if (r == 0) return made;
  sys::Close(made);
  return static_cast<int>(r);
}

}  // namespace

void WireRehouse(Family& fam, int fd, const pstn_ep& ep) {
  if (LoadAcquire(fam.engine) == nullptr) return;  // [T3]
  const stack::Conn* old = ConnOf(fam, ep);
  if (old == nullptr || LoadRelaxed(old->filter) == 0) return;
  const int stand_in = StandIn(fd);
  uint32_t number = 0;
  const uint32_t vi = old->filter_vi;
  if (stand_in < 0 || WireFilterPeer(fam, stand_in, vi, old->local, old->peer, &number) != 0)
    number = 0;
  if (stand_in >= 0) sys::Close(stand_in);
  if (number == 0) return;
  fam.engine->Acquire();
  stack::Conn* c = ConnOf(fam, ep);  // it may have ended meanwhile, and its filter with it
  if (c != nullptr && c->filter != 0) number = Exchange(c->filter, number);
  fam.engine->Release();
  WireUnfilter(fam, vi, number, Unfilter::kNow);
}

void WireRefilter(Family& fam, LineAsk ask, int fd, const pstn_ep& ep) {
  if (IsDatagram(ep)) return DatagramRefilter(fam, ask, fd, ep);
  stack::WireState& w = fam.engine->state();
  const uint32_t epoch = static_cast<uint32_t>(w.grant[0]), at = LoadRelaxed(ep.wire);
  if (at != 0 && at <= stack::kListeners) {
    stack::Listener& l = w.listeners[at - 1];
    if (Exchange(l.filter_epoch, epoch) == epoch) return;  // another process was here
    for (uint32_t vi = 0; vi < kAreaVis; vi++)
      if (w.grant[vi] != 0) (void)AddFilter(fam, ask, fd, vi, nullptr, nullptr, &l.filter[vi]);
    return;
  }
  stack::Conn* c = ConnOf(fam, ep);
  if (c == nullptr || LoadRelaxed(c->filter) == 0 || Exchange(c->filter_epoch, epoch) == epoch)
    return;
  (void)AddFilter(fam, ask, fd, c->filter_vi, &c->local, &c->peer, &c->filter);
}

}  // namespace postern
