// SPDX-License-Identifier: Apache-2.0
// ioctl.cc - ioctl and fcntl on endpoints.
#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "family/family.h"
#include "offhost/datagram.h"
#include "offhost/datagram_calls.h"
#include "offhost/wire_options.h"
#include "option/kernel_only.h"
#include "option/socket_options.h"
#include "smcd/hold.h"

namespace postern {
namespace {

// Flags of the open file that only the kernel keeps.
constexpr int kOtherFlags = O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME;

long GiveInt(void* arg, int v) { return PutUser(arg, v) ? 0 : -EFAULT; }

}  // namespace

long SockIoctl(Family& fam, int fd, pstn_ep& ep, unsigned long request, void* arg) {
  IoctlForKernel(fam, fd, ep, request, arg);
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_KERNEL) {
    if (!IsDatagram(ep) || request != FIONREAD) return kPass;
    const long r = DatagramIoctl(fam, ep, request, arg);
    StoreRelaxed(ep.held, r == kPass ? kSeenInKernel : kSeenOnWire);
    return r;
  }
  switch (request) {
    case FIONBIO: {
      int v;
      if (!GetUser(v, arg)) return -EFAULT;
      if (v != 0) {
        FetchOr(ep.flags, PSTN_EPF_NONBLOCK);
      } else {
        FetchAnd(ep.flags, ~PSTN_EPF_NONBLOCK);
      }
      return 0;  // the kernel's socket hears of it when it takes over
    }
    case FIONREAD: {
      if (state == PSTN_EP_LISTEN) return -EINVAL;
      if (state != PSTN_EP_ESTABLISHED) return kPass;
      ConnEnd e;
      int v = 0;
      if (Resolve(fam, ep, e)) {
        const MarkState mark = LookAtMark(e);
        Guard g(e.ep->rx.lock);
        if (!StillHere(e)) return kPass;
        v = static_cast<int>(RingQueued(e, INT32_MAX));
        if (mark.hides && mark.before < static_cast<uint64_t>(v)) v = static_cast<int>(mark.before);
      }
      return GiveInt(arg, v);
    }
    case FIOCLEX:
      FetchOr(ep.flags, PSTN_EPF_CLOEXEC);
      return kPass;
    case FIONCLEX:
      FetchAnd(ep.flags, ~PSTN_EPF_CLOEXEC);
      return kPass;
    case 0x5411 /* SIOCOUTQ */:
    case 0x894B /* SIOCOUTQNSD */: {
      if (state != PSTN_EP_ESTABLISHED) return kPass;
      ConnEnd e;
      int v = 0;
      // What is in the ring has arrived: TCP would have had it acknowledged. A ring that takes no
      // more is a closed window, and what lies in it (headers included) waits to be sent.
      WireQueue queue;
      if (!Resolve(fam, ep, e)) return GiveInt(arg, v);
      if (PeerIsEngine(e) && WireQueued(fam, ep, queue))
        return GiveInt(arg, static_cast<int>(request == 0x5411 ? queue.all : queue.notsent));
      if (!Writable(fam, e)) {
        Guard g(ep.tx.lock);
        if (!StillHere(e)) return kPass;
        AssertHeld(e.ep->tx.lock);
        if (!RingDrained(e)) {
          uint32_t bytes = RingBytes(RingClass(ep.tx.ring) % PSTN_SLAB_CLASSES);
          v = static_cast<int>(ep.tx.off >= ep.tx.peer ? ep.tx.off - ep.tx.peer
                                                       : bytes - ep.tx.peer + ep.tx.off);
        }
      } else {
        v = static_cast<int>(HeldBytes(e));
      }
      return GiveInt(arg, v);
    }
    case 0x8905 /* SIOCATMARK */: {
      if (state != PSTN_EP_ESTABLISHED) return kPass;
      ConnEnd e;
      int v = Resolve(fam, ep, e) && LookAtMark(e).at ? 1 : 0;
      if (!Here(ep)) return kPass;
      return GiveInt(arg, v);
    }
    default:
      (void)fd;
      return kPass;
  }
}

long SockFcntl(Family& fam, int fd, pstn_ep& ep, int cmd, long arg) {
  FcntlForKernel(fam, fd, ep, cmd, arg);
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_KERNEL) return kPass;
  switch (cmd) {
    case F_GETFL:
      // The kernel's socket of a listener is always non-blocking; the program's flag is ours.
      return O_RDWR | ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0 ? O_NONBLOCK : 0) |
             ((LoadRelaxed(ep.flags) & PSTN_EPF_DIRTY) != 0
                  ? sys::Fcntl(fd, F_GETFL, 0) & kOtherFlags
                  : 0);
    case F_SETFL: {
      if ((arg & kOtherFlags) != 0) FetchOr(ep.flags, PSTN_EPF_DIRTY);
      if ((LoadRelaxed(ep.flags) & PSTN_EPF_DIRTY) != 0) {
        int r = sys::Fcntl(fd, F_SETFL, arg | (state == PSTN_EP_LISTEN ? O_NONBLOCK : 0));
        if (r < 0) return r;
      }
      if ((arg & O_NONBLOCK) != 0) {
        FetchOr(ep.flags, PSTN_EPF_NONBLOCK);
      } else {
        FetchAnd(ep.flags, ~PSTN_EPF_NONBLOCK);
      }
      return 0;
    }
    case F_SETFD: {
      int r = sys::Fcntl(fd, F_SETFD, arg);
      if (r == 0 && (arg & FD_CLOEXEC) != 0) FetchOr(ep.flags, PSTN_EPF_CLOEXEC);
      if (r == 0 && (arg & FD_CLOEXEC) == 0) FetchAnd(ep.flags, ~PSTN_EPF_CLOEXEC);
      return r;
    }
    case F_SETOWN:
    case F_SETSIG:
      FetchOr(ep.flags, PSTN_EPF_DIRTY);
      return kPass;
    default:
      return kPass;
  }
}

}  // namespace postern
