// SPDX-License-Identifier: Apache-2.0
// offer.cc - the connection slot of a handshake: made by the client, taken over by the server's
// posternd, or withdrawn.
//
// It is the word of docs/protocols/smcd.md: PSTN_CS_OFFERED becomes SYN (attached) or FREE
// (withdrawn), by compare-and-swap, so that the two sides never believe different things.

#include "base/ip_address.h"
#include "base/sys.h"
#include "control/control_smc.h"
#include "endpoint/places/places.h"
#include "endpoint/state.h"
#include "family/family.h"
#include "peer/connect.h"
#include "peer/negotiate.h"
#include "peer/pair.h"

namespace postern {

bool NamesOf(int fd, pstn_addr& local, pstn_addr& peer) {
  sockaddr_storage ss = {};
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  if (sys::Call(SYS_getsockname, fd, sa, &len) < 0 ||
      !AddrFromSockaddr(sa, len, sa->sa_family, local))
    return false;
  len = sizeof ss;
  return sys::Call(SYS_getpeername, fd, sa, &len) == 0 &&
         AddrFromSockaddr(sa, len, sa->sa_family, peer);
}

bool OfferConn(Family& fam, pstn_ep& ep, const Offered& to, const pstn_addr& local,
               const pstn_addr& peer) {
  ConnSlot slot;
  if (TakeConnSlot(fam, to.stack, slot) != kReasonNone) return false;
  ep.owner_slot = fam.slot;  // after a death meanwhile: RecoverConns
  FillConn(fam, ep, slot, to.ep_idx, to.ep_gen, peer, local);
  StoreRelease(LgrConn(slot.lgr, slot.conn).setup.state, PSTN_CS_OFFERED);  // [C1]
  return true;
}

bool OfferTaken(Family& fam, const pstn_ep& ep) {
  uint8_t* lgr = LgrBase(fam.view, LoadRelaxed(ep.lgr_idx));
  // [C1]
  return lgr != nullptr && LoadAcquire(LgrConn(lgr, ep.conn_idx).setup.state) != PSTN_CS_OFFERED;
}

bool WithdrawOffer(Family& fam, pstn_ep& ep) {
  const uint32_t idx = LoadRelaxed(ep.lgr_idx);
  uint8_t* lgr = LgrBase(fam.view, idx);
  if (lgr == nullptr) return true;
  pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(idx));
  uint32_t state = PSTN_CS_OFFERED;
  if (!CompareExchange(LgrConn(lgr, ep.conn_idx).setup.state, state, PSTN_CS_FREE)) return false;
  StoreRelease(ref.conn_ep[ep.conn_idx % PSTN_CONNS], 0u);  // [E4]
  GiveConn(ref, ep.conn_idx);
  StoreRelaxed(ep.lgr_idx, PSTN_NONE);
  return true;
}

void AcceptOffer(Family& fam, pstn_ep& ep) {
  NoteNews(fam.bells);
  SetState(ep, PSTN_EP_ESTABLISHED);
  ShowConnected(fam, ep);
}

bool AdmitOffered(Family& fam, uint32_t lgr_idx, Admitted& as) {
  uint8_t* lgr = LgrBase(fam.view, lgr_idx);
  if (lgr == nullptr || as.conn >= PSTN_CONNS) return false;
  pstn_conn& c = LgrConn(lgr, as.conn);
  // [C1]
  if (LoadAcquire(c.setup.state) != PSTN_CS_OFFERED || LoadRelaxed(c.setup.gen) != as.conn_gen ||
      c.setup.listener_idx != as.ep_idx || c.setup.listener_gen != as.ep_gen)
    return false;
  as.translated = !SameName(c.setup.client, as.client) || !SameName(c.setup.server, as.server);
  // The program sees the names that TCP has here, where addresses were translated.
  c.setup.client = as.client;
  c.setup.server = as.server;
  uint32_t* const taken = TakenAt(fam, Stack(fam).lgrs.Own(LgrIndex(lgr_idx)), lgr, as.ep_idx);
  AddPlace(taken);  // before it can be accepted
  uint32_t state = PSTN_CS_OFFERED;
  if (!CompareExchange(c.setup.state, state, PSTN_CS_SYN)) {
    GivePlace(taken);
    return false;
  }
  AnnounceSyn(fam.bells, lgr, as.conn);
  (void)sys::FutexWake(&c.setup.state, 1);
  return true;
}

}  // namespace postern
