// SPDX-License-Identifier: Apache-2.0
// wire_filter.cc - what the interface steers to the stack: asked of posternd, and given back.
//
// A filter is posternd's, who has seen the kernel's socket that justifies it (docs/vi.md). It has a
// number, which whoever made it keeps in the wire segment: with the listener or the connection.
#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "sock/control.h"
#include "sock/wire.h"

namespace postern {
namespace {

int AskNow(ctl::Msg& m, int fd, int* reply_fd) { return CtlAsk(m, fd, reply_fd); }

ctl::Msg About(uint32_t change, uint32_t vi) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = g_wire->state().grant[vi % kAreaVis];
  m.a = change;
  return m;
}

// `to`, if it is not null: whom it comes from.
int AddFilter(WireAsk ask, int fd, uint32_t vi, const pstn_addr* local, const pstn_addr* to,
              uint32_t* number) {
  ctl::Msg m = About(ctl::kFilterAdd, vi);
  m.b = ctl::kFilterFragments;  // the kernel would answer them, once whole, with a RST
  if (to != nullptr) {
    m.addr = *to;
    memcpy(&m.id, local->ip, sizeof m.id);
  }
  const int r = ask(m, fd, nullptr);
  if (r == 0 && number != nullptr) *number = m.d;
  return r;
}

// The engine's connection whose program is `ep`; null: it has none.
stack::Conn* ConnOf(const pstn_ep& ep) {
  const pstn_stack& s = Stack();
  const uint32_t lgr = LoadRelaxed(ep.lgr_idx);
  if (lgr >= PSTN_LGRS || !SameUuid(s.lgrs[lgr].peer, s.hdr.id)) return nullptr;
  const uint32_t other = OtherSide(lgr);
  if (other >= PSTN_LGRS) return nullptr;
  const uint32_t end = LoadAcquire(s.lgrs[other].conn_ep[ep.conn_idx % PSTN_CONNS]);
  if (end == 0 || end > PSTN_EPS || (LoadRelaxed(s.eps[end - 1].flags) & PSTN_EPF_ENGINE) == 0)
    return nullptr;
  return &g_wire->ConnAt(s.eps[end - 1].accept_head);
}

}  // namespace

int WireFilter(int fd, uint32_t vi, uint32_t* number) {
  return AddFilter(AskNow, fd, vi, nullptr, nullptr, number);
}

int WireFilterPeer(int fd, uint32_t vi, const pstn_addr& local, const pstn_addr& peer,
                   uint32_t* number) {
  return AddFilter(AskNow, fd, vi, &local, &peer, number);
}

void WireUnfilter(uint32_t vi, uint32_t number, Unfilter how) {
  ctl::Msg m = About(how == Unfilter::kHush ? ctl::kFilterHush : ctl::kFilterRemove, vi);
  m.d = number;
  if (how == Unfilter::kLater)
    (void)CtlTell(m, -1);
  else
    (void)CtlAsk(m, -1, nullptr);
}

void WireRefilter(WireAsk ask, int fd, const pstn_ep& ep) {
  stack::WireState& w = g_wire->state();
  const uint32_t epoch = static_cast<uint32_t>(w.grant[0]), at = LoadRelaxed(ep.wire);
  if (at != 0 && at <= stack::kListeners) {
    stack::Listener& l = w.listeners[at - 1];
    if (Exchange(l.filter_epoch, epoch) == epoch) return;  // another process was here
    for (uint32_t vi = 0; vi < kAreaVis; vi++)
      if (w.grant[vi] != 0) (void)AddFilter(ask, fd, vi, nullptr, nullptr, &l.filter[vi]);
    return;
  }
  stack::Conn* c = ConnOf(ep);
  if (c == nullptr || LoadRelaxed(c->filter) == 0 || Exchange(c->filter_epoch, epoch) == epoch)
    return;
  (void)AddFilter(ask, fd, c->filter_vi, &c->local, &c->peer, &c->filter);
}

}  // namespace postern
