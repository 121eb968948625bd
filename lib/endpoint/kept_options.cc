// SPDX-License-Identifier: Apache-2.0
// kept_options.cc - the options that an endpoint keeps for itself, and for the kernel's socket.
#include <fcntl.h>

#include <initializer_list>

#include "base/sys.h"
#include "endpoint/kept_options.h"

namespace postern {

uint32_t FindKept(int level, int name) {
  for (uint32_t i = 0; i < sizeof kKept / sizeof kKept[0]; i++) {
    if (kKept[i].level == level && kKept[i].name == name) return i;
  }
  if (level != SOL_SOCKET) return kKeptCount;
  switch (name) {
    case SO_RCVLOWAT:
      return kRcvlowat;
    case SO_LINGER:
      return kLinger;
    case SO_RCVTIMEO:
      return kRcvtimeo;
    case SO_SNDTIMEO:
      return kSndtimeo;
    default:
      return kKeptCount;
  }
}

long KernelSetOpt(int fd, int level, int name, const void* value, socklen_t len) {
  return sys::Call(SYS_setsockopt, fd, static_cast<long>(level), static_cast<long>(name), value,
                   static_cast<long>(len));
}

void ResetForListen(pstn_ep& ep) {
  FetchAnd(ep.flags, ~PSTN_EPF_QUICKACK);
  FetchAnd(ep.opt_set, ~(1u << kQuickack));
}

void InheritKeptOptions(pstn_ep& ep, const pstn_ep& listener) {
  uint32_t flags = 0, kept = 0, set = 0;
  for (const FlaggedOption& o : kFlagged) flags |= o.flag;
  for (uint32_t i = 0; i < sizeof kKept / sizeof kKept[0]; i++) {
    const KeptOption& o = kKept[i];
    if (o.child == Child::kHasNot) continue;
    kept |= 1u << i;
    flags |= o.flag;
    if (o.field != nullptr) StoreRelaxed(ep.*o.field, LoadRelaxed(listener.*o.field));
    // bind() sets IPV6_V6ONLY, too.
    if ((LoadRelaxed(listener.flags) & o.flag) != 0) set |= 1u << i;
  }
  for (const uint32_t i : {kRcvlowat, kLinger, kRcvtimeo, kSndtimeo}) kept |= 1u << i;
  StoreRelaxed(ep.rcvlowat, LoadRelaxed(listener.rcvlowat));
  SetLingering(ep, LingeringOf(listener));
  StoreRelaxed(ep.rcvtimeo_ns, LoadRelaxed(listener.rcvtimeo_ns));
  StoreRelaxed(ep.sndtimeo_ns, LoadRelaxed(listener.sndtimeo_ns));
  StoreRelaxed(ep.flags, LoadRelaxed(listener.flags) & flags);
  StoreRelaxed(ep.opt_set, (LoadRelaxed(listener.opt_set) & kept) | set);
}

void ApplyOptions(int fd, const pstn_ep& ep) {
  const uint32_t was_set = LoadRelaxed(ep.opt_set);
  for (uint32_t i = 0; i < sizeof kKept / sizeof kKept[0]; i++) {
    if ((was_set >> i & 1u) == 0) continue;
    int v = kKept[i].flag != 0 ? (LoadRelaxed(ep.flags) & kKept[i].flag) != 0
                               : static_cast<int>(LoadRelaxed(ep.*kKept[i].field));
    (void)KernelSetOpt(fd, kKept[i].level, kKept[i].name, &v, sizeof v);
  }
  if ((was_set >> kRcvlowat & 1u) != 0) {
    int v = static_cast<int>(LoadRelaxed(ep.rcvlowat));
    (void)KernelSetOpt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v);
  }
  if ((was_set >> kLinger & 1u) != 0) {
    const Lingering kept = LingeringOf(ep);
    linger l = {kept.on ? 1 : 0, static_cast<int>(kept.sec)};
    (void)KernelSetOpt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
  }
  for (uint32_t i : {kRcvtimeo, kSndtimeo}) {
    if ((was_set >> i & 1u) == 0) continue;
    uint64_t ns = LoadRelaxed(i == kRcvtimeo ? ep.rcvtimeo_ns : ep.sndtimeo_ns);
    timeval tv = {static_cast<time_t>(ns / 1000000000u),
                  static_cast<suseconds_t>(ns % 1000000000u / 1000u)};
    (void)KernelSetOpt(fd, SOL_SOCKET, i == kRcvtimeo ? SO_RCVTIMEO : SO_SNDTIMEO, &tv, sizeof tv);
  }
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) {
    int fl = sys::Fcntl(fd, F_GETFL, 0);
    if (fl >= 0) (void)sys::Fcntl(fd, F_SETFL, fl | O_NONBLOCK);
  }
}

}  // namespace postern
