// SPDX-License-Identifier: Apache-2.0
// luggage.cc - see luggage.h.
#include "life/luggage.h"

#include <sys/epoll.h>

#include <cerrno>

#include "base/clock.h"
#include "base/sys.h"
#include "control/acceptor.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/kept_options.h"
#include "endpoint/refs.h"
#include "endpoint/state.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "family/fdtab.h"
#include "life/slot.h"
#include "peer/export.h"
#include "peer/kernel_half.h"
#include "peer/negotiate.h"
#include "state/in_hands.h"

namespace postern {
namespace {

// Of a socket's flags, what the kernel's socket and the program's wishes have to do with.
constexpr uint32_t kCarried =
    PSTN_EPF_NONBLOCK | PSTN_EPF_BOUND_AUTO | PSTN_EPF_BOUND | PSTN_EPF_NODELAY | PSTN_EPF_CORK |
    PSTN_EPF_KEEPALIVE | PSTN_EPF_OOBINLINE | PSTN_EPF_DIRTY | PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR |
    PSTN_EPF_DUPPED | PSTN_EPF_REUSEADDR | PSTN_EPF_REUSEPORT | PSTN_EPF_V6ONLY |
    PSTN_EPF_QUICKACK | PSTN_EPF_CLOEXEC | PSTN_EPF_KERNEL_OPTIONS | PSTN_EPF_INQ |
    PSTN_EPF_ZEROCOPY | PSTN_EPF_POLLED | PSTN_EPF_PORT_GIVEN_UP;

constexpr uint64_t kNewsNs = 2'000'000'000, kNewsNapNs = 100'000;  // the keeper is busy

void CopySocket(pstn_ep& to, const pstn_ep& from) {
  for (const KeptOption& o : kKept) {
    if (o.field != nullptr) StoreRelaxed(to.*o.field, from.*o.field);
  }
  StoreRelaxed(to.rcvlowat, from.rcvlowat);
  SetLingering(to, LingeringOf(from));
  StoreRelaxed(to.rcvtimeo_ns, from.rcvtimeo_ns);
  StoreRelaxed(to.sndtimeo_ns, from.sndtimeo_ns);
  StoreRelaxed(to.opt_set, from.opt_set);
  StoreRelaxed(to.kernel_options, from.kernel_options);
  StoreRelaxed(to.error, from.error);
  StoreRelaxed(to.backlog, from.backlog);
  to.local = from.local;
  to.peer = from.peer;
  to.kernel_port = from.kernel_port;
  StoreRelaxed(to.rcv_lines, LoadRelaxed(from.rcv_lines));
  StoreRelaxed(to.tx.budget, LoadRelaxed(from.tx.budget));
  StoreRelaxed(to.flags, from.flags & kCarried);
}

void CopyConnection(pstn_ep& to, const pstn_ep& from) {
  CopySocket(to, from);
  StoreRelaxed(to.zerocopy_sent, from.zerocopy_sent);
  StoreRelaxed(to.zerocopy_told, from.zerocopy_told);
  FetchOr(to.flags, from.flags & PSTN_EPF_CONNECTING);
}

// What can go along with a process that alone has it.
bool IsPortable(const pstn_ep& ep, uint32_t state) {
  constexpr uint32_t kFailed = PSTN_EPF_HUNG | PSTN_EPF_DISCONNECTING;
  return state == PSTN_EP_NEW ||
         (state == PSTN_EP_ESTABLISHED && (LoadRelaxed(ep.flags) & kFailed) == 0);
}

// A server binds before it becomes another user, and may listen afterwards.
bool IsToListen(const pstn_ep& ep) {
  return LoadAcquire(ep.state) == PSTN_EP_NEW &&  // [E1]
         (LoadRelaxed(ep.flags) & (PSTN_EPF_BOUND | PSTN_EPF_DATAGRAM)) == PSTN_EPF_BOUND;
}

uint32_t Numbers(Family& fam, uint32_t entry) {
  uint32_t count = 0;
  const uint32_t hw = LoadRelaxed(fam.fd_hw);
  for (uint32_t fd = 0; fd < hw; fd++) count += fam.fd[fd] == entry ? 1u : 0u;
  return count;
}

}  // namespace

template <typename T>
bool Luggage::List<T>::Reserve(size_t entries) {
  if (entries <= room) return true;
  size_t more = room == 0 ? 64 : room;
  while (more < entries) more *= 2;
  auto* const fresh = static_cast<T*>(sys::MapPrivate(more * sizeof(T)));
  if (fresh == nullptr) return false;
  for (size_t i = 0; i < count; i++) fresh[i] = at[i];
  Free();
  at = fresh;
  room = more;
  return true;
}

template <typename T>
void Luggage::List<T>::Free() {
  if (at != nullptr) sys::Unmap(at, room * sizeof(T));
  at = nullptr;
}

Luggage::~Luggage() {
  kept_.Free();
  watched_.Free();
}

bool Luggage::IsAlone(Family& fam, uint32_t entry, uint32_t refs) {
  return refs == 1 || refs == Numbers(fam, entry);
}

bool Luggage::IsLast(Family& fam, uint32_t entry, const pstn_ep& ep) {
  const bool alone = IsAlone(fam, entry, RefsOf(ep).count());
  return LoadAcquire(ep.state) == PSTN_EP_LISTEN ? alone : !alone && !IsToListen(ep);  // [E1]
}

bool Luggage::Pack(Family& fam) {
  StackMap& s = Stack(fam);
  const uint32_t hw = LoadRelaxed(fam.fd_hw);
  for (uint32_t n = 0; n < hw; n++) {
    const uint32_t entry = fam.fd[n];
    pstn_ep* const ep = EpOfEntry(fam, entry);
    if (ep == nullptr) continue;
    const uint32_t state = LoadAcquire(ep->state);  // [E1]
    const bool is_alone = IsAlone(fam, entry, RefsOf(*ep).count());
    const bool is_shared = state == PSTN_EP_LISTEN || (!is_alone && IsToListen(*ep));
    if (!is_shared && !(is_alone && IsPortable(*ep, state))) continue;
    if (!kept_.Reserve(kept_.count + 1)) return false;
    Kept& kept = kept_.at[kept_.count++];
    const bool is_connected = state == PSTN_EP_ESTABLISHED;
    const bool news = is_connected && (Readiness(fam, *ep) & EPOLLIN) != 0;
    ConnEnd e;
    const bool ended = is_connected && Resolve(fam, *ep, e) && HasEnded(e);
    kept = {static_cast<int>(n), entry, 0, state, {}, news, ended, is_shared, {}};
    if (is_connected) {
      CopyConnection(kept.ep, *ep);
    } else {
      CopySocket(kept.ep, *ep);
    }
    kept.ep.family = ep->family;
  }
  for (uint32_t n = 0; n < hw; n++) {
    const uint32_t entry = fam.fd[n];
    const pstn_epoll* const set = (entry & PSTN_FD_KIND) == PSTN_FD_EPOLL
                                      ? s.epolls.At(SetIndex(entry & PSTN_FD_IDX))
                                      : nullptr;
    if (set != nullptr && IsAlone(fam, entry, RefsOf(*set).count()))
      PackSet(fam, static_cast<int>(n), entry & PSTN_FD_IDX);
  }
  return true;
}

void Luggage::HandOnAll(Family& fam, const pstn_uuid& next) {
  for (size_t i = 0; i < kept_.count; i++) {
    Kept& kept = kept_.at[i];
    if (kept.as != PSTN_EP_ESTABLISHED) continue;
    const Kept* first = &kept_.at[0];
    while (first->was != kept.was) first++;
    pstn_ep* const ep = EpAt(Stack(fam), kept.was & PSTN_FD_IDX);
    if (first != &kept) {
      kept.as = first->as;
    } else if (ep == nullptr || !HandOn(fam, kept.fd, *ep, next, kept.place)) {
      kept.as = PSTN_EP_KERNEL;
    }
  }
}

void Luggage::PackSet(Family& fam, int epfd, uint32_t set_idx) {
  const uint32_t most = Stack(fam).items.count();
  for (uint32_t i = 0; i < most && TakeOne(fam, epfd, set_idx); i++) {
  }
  // What the kernel's set has of ours.
  SetLocal& local = fam.sets->local[set_idx];
  epoll_event none = {};
  if (local.bell > 0)
    (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), local.bell, &none);
}

// Moves one registration of what goes along from the set into the list. False: there is none.
bool Luggage::TakeOne(Family& fam, int epfd, uint32_t set_idx) {
  StackMap& s = Stack(fam);
  pstn_epoll& set = s.epolls.Own(SetIndex(set_idx));
  if (!watched_.Reserve(watched_.count + 1)) return false;
  Watched& one = watched_.at[watched_.count];
  bool found = false;
  {
    SetGuard g(s, set);
    const pstn_item* item = s.items.At(ItemIndex(set.all_head));
    for (uint32_t guard = 0; item != nullptr && !found && guard < s.items.count();
         item = s.items.At(ItemIndex(item->all_next)), guard++) {
      for (size_t i = 0; i < kept_.count && !found; i++) {
        found = kept_.at[i].was == (PSTN_FD_EP | item->ep_idx) &&
                kept_.at[i].fd == static_cast<int>(item->fd);
      }
      if (!found) continue;
      // One that has fired its one shot stays silent.
      const bool silent = (item->flags & PSTN_IT_DISABLED) != 0;
      one = {epfd, static_cast<int>(item->fd),
             silent ? item->events & (EPOLLET | EPOLLONESHOT) : item->events, item->data};
    }
  }
  if (!found) return false;
  epoll_event none = {};
  if (SockEpollCtl(fam, epfd, EPOLL_CTL_DEL, one.fd, &none) != 0) return false;
  watched_.count++;
  return true;
}

// A listener of the kernel's has one endpoint in a family, however many have brought it; and so has
// a socket that is bound, and that one of them may listen at.
uint32_t Luggage::ResumeShared(Family& fam, const Kept& kept) {
  StackMap& s = Stack(fam);
  const uint64_t cookie = CookieOf(kept.fd);
  if (cookie == 0) return 0;
  Guard g(s.hdr.slot_lock);  // two that come at once
  for (pstn_ep& ep : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    const bool is_same = LoadAcquire(ep.state) == PSTN_EP_LISTEN || IsToListen(ep);  // [E1]
    if (!is_same || ep.cookie != cookie || (LoadRelaxed(ep.flags) & PSTN_EPF_BROUGHT) == 0)
      continue;
    const uint32_t entry = PSTN_FD_EP | EpIdx(s, ep);
    if (!ShareRef(fam, entry, PlaceOf(fam, kept.fd, true))) continue;
    MarkPrivate(fam, kept.fd, entry);
    if (kept.as == PSTN_EP_LISTEN && IsToListen(ep)) SetState(ep, PSTN_EP_LISTEN);
    return entry;
  }
  const uint32_t entry = Resume(fam, kept);
  if (entry == 0) return 0;
  pstn_ep& ep = s.eps.Own(EpIndex(entry & PSTN_FD_IDX));
  ep.cookie = cookie;
  FetchOr(ep.flags, PSTN_EPF_BROUGHT);
  if (kept.as == PSTN_EP_LISTEN) SetState(ep, PSTN_EP_LISTEN);
  return entry;
}

uint32_t Luggage::Resume(Family& fam, const Kept& kept) {
  const uint32_t idx = NewEp(fam, kept.ep.family);
  if (idx == PSTN_NONE) return 0;
  CopySocket(Stack(fam).eps.Own(EpIndex(idx)), kept.ep);
  SetFd(fam, kept.fd, PSTN_FD_EP | idx);
  return PSTN_FD_EP | idx;
}

uint32_t Luggage::ResumeConnection(Family& fam, const Kept& kept) {
  const uint32_t entry = Resume(fam, kept);
  if (entry == 0) return 0;
  pstn_ep& ep = Stack(fam).eps.Own(EpIndex(entry & PSTN_FD_IDX));
  CopyConnection(ep, kept.ep);
  FetchOr(ep.flags, PSTN_EPF_DIRTY);  // its kernel socket is the last user's
  ConnEnd e;
  if (!Meet(fam, ep, kept.place) || !Resolve(fam, ep, e)) {
    StoreRelaxed(ep.error, static_cast<uint32_t>(ECONNRESET));
    return entry;
  }
  const bool deaf = (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0;
  if (kept.ended) FetchOr(e.ctl().flags, deaf ? PSTN_CF_FIN | PSTN_CF_RD_SHUT : PSTN_CF_FIN);
  AnnounceData(fam.bells, e);
  // What could be read before can be read now.
  const Deadline until = Deadline::AfterNs(kNewsNs);
  while (kept.had_news && (Readiness(fam, ep) & EPOLLIN) == 0 && until.left_ns() != 0)
    sys::Nap(kNewsNapNs);
  return entry;
}

void Luggage::Unpack(Family& fam) {
  for (size_t i = 0; i < kept_.count; i++) {
    Kept& kept = kept_.at[i];
    for (size_t k = 0; k < i && kept.now == 0; k++) {
      if (kept_.at[k].was == kept.was) kept.now = kept_.at[k].now;
    }
    if (kept.as == PSTN_EP_KERNEL) continue;
    if (!fam.attached) {
      // In none.
    } else if (kept.now != 0) {
      SockDup(fam, kept.now, kept.fd);
    } else if (kept.as == PSTN_EP_LISTEN) {
      // As listen() does it: accept() merges two queues, and waits for both itself.
      const int fl = sys::Fcntl(kept.fd, F_GETFL, 0);
      if (fl >= 0) (void)sys::Fcntl(kept.fd, F_SETFL, fl | O_NONBLOCK);
      kept.now = ResumeShared(fam, kept);
      if (kept.now != 0)
        MarkListener(fam, kept.fd, Stack(fam).eps.Own(EpIndex(kept.now & PSTN_FD_IDX)));
    } else if (kept.as == PSTN_EP_ESTABLISHED) {
      kept.now = ResumeConnection(fam, kept);
    } else if (kept.is_shared) {
      kept.now = ResumeShared(fam, kept);
    } else {
      kept.now = Resume(fam, kept);
    }
    if (kept.now != 0) continue;
    ApplyOptions(kept.fd, kept.ep);
    const int fl = sys::Fcntl(kept.fd, F_GETFL, 0);
    if (fl >= 0 && (kept.ep.flags & PSTN_EPF_NONBLOCK) == 0)
      (void)sys::Fcntl(kept.fd, F_SETFL, fl & ~O_NONBLOCK);
  }
  for (size_t i = 0; i < watched_.count; i++) {
    const Watched& w = watched_.at[i];
    epoll_event event = {};
    event.events = w.events;
    event.data.u64 = w.data;
    // Exported before it was packed, the listener is in the kernel's set by now.
    (void)sys::Call(SYS_epoll_ctl, w.set, static_cast<long>(EPOLL_CTL_DEL), w.fd, &event);
    const long r = fam.attached ? SockEpollCtl(fam, w.set, EPOLL_CTL_ADD, w.fd, &event) : kPass;
    if (r == kPass) (void)KernelAdd(w.set, w.fd, w.events, w.data);
  }
}

}  // namespace postern
