// SPDX-License-Identifier: Apache-2.0
// pair.cc - a connection slot towards another stack: in which of the pair's link groups.
//
// A link group holds PSTN_CONNS connections. When all that a pair has are full, posternd makes it
// one more, up to PSTN_PAIR_LGRS (docs/adr/0008). A connect looks first where the last one towards
// that stack found room, so it does not matter to it how many link groups there are; only one that
// meets a full group looks at the others of the pair, and only one that meets full groups alone
// asks posternd.
#include <cerrno>

#include "control/posternd.h"
#include "family/family.h"
#include "peer/pair.h"
#include "peer/peers.h"
#include "state/address_limit.h"
#include "state/slab.h"

namespace postern {
namespace {

constexpr int kAsks = 4;  // others of the family may fill what posternd has made before we get it

bool IsClientOf(const pstn_lgr_ref& ref, const pstn_uuid& stack) {
  return LoadAcquire(ref.state) == 1 && ref.side == 0 && SameUuid(ref.peer, stack);  // [L1]
}

bool TakeIn(Family& fam, uint32_t idx, const pstn_uuid& stack, ConnSlot& out) {
  pstn_lgr_ref* const place = Stack(fam).lgrs.At(LgrIndex(idx));
  if (place == nullptr) return false;
  pstn_lgr_ref& ref = *place;
  if (!IsClientOf(ref, stack)) return false;
  if (LoadRelaxed(ref.conns) >= PSTN_CONNS && LoadRelaxed(ref.zombies) == 0) return false;
  uint8_t* lgr = EnsureLgr(fam, idx);
  if (lgr == nullptr) return false;
  uint32_t conn = TakeConn(ref, lgr);
  if (conn == PSTN_NONE) return false;
  out = {idx, conn, lgr};
  return true;
}

// `fn` gets each link group in which we are the client of `stack`, until it says true.
template <typename Fn>
bool EachOfPair(Family& fam, const pstn_uuid& stack, Fn fn) {
  StackMap& s = Stack(fam);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (IsClientOf(ref, stack) && fn(s.lgrs.IndexOf(ref).word())) return true;
  }
  return false;
}

bool TakeInAny(Family& fam, const pstn_uuid& stack, ConnSlot& out) {
  return EachOfPair(fam, stack, [&](uint32_t i) { return TakeIn(fam, i, stack, out); });
}

// Slots that the server has left since we closed them, where TakeConn did not look.
bool TakeSwept(Family& fam, const pstn_uuid& stack, ConnSlot& out) {
  return EachOfPair(fam, stack, [&](uint32_t i) {
    pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(i));
    uint8_t* lgr = LgrBase(fam.view, i);
    if (lgr == nullptr || LoadRelaxed(ref.zombies) == 0) return false;
    SweepZombies(ref, lgr);
    return TakeIn(fam, i, stack, out);
  });
}

}  // namespace

Reason ReasonOf(const Family& fam, int error) {
  switch (error) {
    case -ENOTCONN:
      return WhyNoDaemon(fam);
    case -ENOMEM:
      return kReasonNoMemory;
    case -EMFILE:
      return kReasonNoDescriptor;
    case -ENOSPC:
      return kReasonLgrFull;
    default:
      return kReasonDaemonRefused;
  }
}

namespace {

// A link group that the pair does not have yet: the first, or one more.
Reason TakeInNew(Family& fam, const pstn_uuid& stack, ConnSlot& out) {
  if (!NoteRoom(Stack(fam), fam.slot)) return kReasonNoMemory;
  for (int i = 0; i < kAsks; i++) {
    const uint32_t known = LinksKnown(fam, stack);
    uint32_t idx = PSTN_NONE;
    int r = CtlIntroduce(fam, stack, known, &idx);
    if (r != 0) return ReasonOf(fam, r);
    if (TakeIn(fam, idx, stack, out) || TakeInAny(fam, stack, out)) return kReasonNone;
  }
  return kReasonLgrFull;
}

}  // namespace

uint32_t LinksKnown(Family& fam, const pstn_uuid& stack, uint32_t* free_slots) {
  uint32_t known = 0, free = 0;
  (void)EachOfPair(fam, stack, [&](uint32_t i) {
    const pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(i));
    uint8_t* const lgr = LgrBase(fam.view, i);
    const uint32_t conns = LoadRelaxed(ref.conns);
    const uint32_t slots = lgr != nullptr ? SlotsOf(ref, lgr) : PSTN_CONNS;
    known++;
    free += conns < slots ? slots - conns : 0;
    return false;
  });
  if (free_slots != nullptr) *free_slots = free;
  return known;
}

Reason TakeConnSlot(Family& fam, const pstn_uuid& stack, ConnSlot& out, MayAsk may_ask) {
  uint32_t& hint = fam.peers->hints[stack.lo % kHints];
  const uint32_t likely = LoadRelaxed(hint);
  if (likely != 0 && TakeIn(fam, likely - 1, stack, out)) return kReasonNone;
  if (!TakeInAny(fam, stack, out) && !TakeSwept(fam, stack, out)) {
    const Reason why = may_ask == MayAsk::kYes ? TakeInNew(fam, stack, out) : kReasonLgrFull;
    if (why != kReasonNone) return why;
  }
  StoreRelaxed(hint, out.lgr_idx + 1);
  return kReasonNone;
}

}  // namespace postern
