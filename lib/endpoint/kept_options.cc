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

namespace {

// What an accepted endpoint has of its listener's, by bits of opt_set and by flags.
struct Inherited {
  uint32_t options = 1u << kRcvlowat | 1u << kLinger | 1u << kRcvtimeo | 1u << kSndtimeo;
  uint32_t fields = 0;  // those with a field in kKept
  uint32_t flags = 0, option_flags = 0;
};
constexpr Inherited FindInherited() {
  Inherited all;
  for (uint32_t i = 0; i < sizeof kKept / sizeof kKept[0]; i++) {
    if (kKept[i].child == Child::kHasNot) continue;
    all.options |= 1u << i;
    if (kKept[i].field != nullptr) all.fields |= 1u << i;
    all.option_flags |= kKept[i].flag;
  }
  all.flags = all.option_flags;
  for (const FlaggedOption& o : kFlagged) all.flags |= o.flag;
  return all;
}
constexpr Inherited kInherited = FindInherited();

}  // namespace

// Most listeners have set one or two.
void InheritKeptOptions(pstn_ep& ep, const pstn_ep& listener) {
  uint32_t set = LoadAcquire(listener.opt_set) & kInherited.options;  // [E13]
  for (uint32_t rest = set & kInherited.fields; rest != 0; rest &= rest - 1) {
    pstn_u32 pstn_ep::*const field = kKept[__builtin_ctz(rest)].field;
    StoreRelaxed(ep.*field, LoadRelaxed(listener.*field));
  }
  if ((set >> kRcvlowat & 1u) != 0) StoreRelaxed(ep.rcvlowat, LoadRelaxed(listener.rcvlowat));
  if ((set >> kLinger & 1u) != 0) SetLingering(ep, LingeringOf(listener));
  if ((set >> kRcvtimeo & 1u) != 0) StoreRelaxed(ep.rcvtimeo_ns, LoadRelaxed(listener.rcvtimeo_ns));
  if ((set >> kSndtimeo & 1u) != 0) StoreRelaxed(ep.sndtimeo_ns, LoadRelaxed(listener.sndtimeo_ns));
  const uint32_t flags = LoadRelaxed(listener.flags) & kInherited.flags;
  StoreRelaxed(ep.flags, flags);
  if ((flags & kInherited.option_flags) != 0) {
    for (uint32_t i = 0; i < sizeof kKept / sizeof kKept[0]; i++) {
      // bind() sets IPV6_V6ONLY, too.
      if ((flags & kKept[i].flag) != 0 && kKept[i].child == Child::kHas) set |= 1u << i;
    }
  }
  StoreRelaxed(ep.opt_set, set);
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
