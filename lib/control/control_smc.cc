// SPDX-License-Identifier: Apache-2.0
// control_smc.cc - what posternd is asked for the sake of peers in other network namespaces.
#include <cerrno>

#include "base/cut_short.h"
#include "base/sys.h"
#include "control/control.h"
#include "control/control_smc.h"
#include "family/family.h"

namespace postern {

using ctl::Msg;
using ctl::Type;

int CtlAttach(Family& fam, uint64_t token, int tcp, Offered& to, CutShort& limit) {
  Msg m;
  m.type = Type::kAttach;
  m.cookie = token;
  int fd = -1;
  int r = CtlAsk(fam, m, tcp, &fd, &limit);
  if (r == 0 && m.d >= Stack(fam).lgrs.count()) r = -EPROTO;
  if (r != 0) {
    if (fd >= 0) sys::Close(fd);
    return r;
  }
  CtlTakeLgr(fam, m.d, fd);
  to = {m.uuid, m.a, m.b, m.c};
  return LgrBase(fam.view, m.d) != nullptr ? 0 : -ENOMEM;
}

int CtlRegister(Family& fam, uint32_t lgr_idx, uint32_t conn, uint32_t conn_gen, CutShort& limit,
                uint64_t* token) {
  Msg m;
  m.type = Type::kRegister;
  m.d = lgr_idx;
  m.a = conn;
  m.b = conn_gen;
  const int r = CtlAsk(fam, m, -1, nullptr, &limit);
  *token = m.cookie;
  return r;
}

void CtlRelease(Family& fam, uint64_t token) {
  Msg m;
  m.type = Type::kRelease;
  m.cookie = token;
  (void)CtlTell(fam, m, -1);
}

int CtlNegotiate(Family& fam, const pstn_ep& listener, int fd) {
  Msg m;
  m.type = Type::kNegotiate;
  m.a = EpIdx(Stack(fam), listener);
  m.b = listener.gen;
  StoreRelaxed(fam.ctl_retry_ns, 0);  // a client that is turned away now has to connect once more
  return CtlTell(fam, m, fd);
}

int CtlTakeHeld(Family& fam, const pstn_ep& listener) {
  Msg m;
  m.type = Type::kTakeHeld;
  m.a = EpIdx(Stack(fam), listener);
  m.b = listener.gen;
  int fd = -1;
  const int r = CtlAsk(fam, m, -1, &fd);
  if (r != 0 && r != -EMFILE) return r;
  Msg how;
  how.type = Type::kTakeHeld;
  how.a = EpIdx(Stack(fam), listener);
  how.b = listener.gen;
  how.c = fd >= 0 ? ctl::kHeldCame : ctl::kHeldLost;
  (void)CtlTell(fam, how, -1);
  return r != 0 ? r : fd >= 0 ? fd : -EPROTO;
}

int CtlBell(Family& fam, const BellName& name) {
  Msg m;
  m.type = Type::kBell;
  m.a = name.waiter;
  m.cookie = name.nonce;
  int fd = -1;
  const int r = CtlAsk(fam, m, -1, &fd);
  return r != 0 ? r : fd >= 0 ? fd : -EPROTO;
}

}  // namespace postern
