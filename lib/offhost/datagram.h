// SPDX-License-Identifier: Apache-2.0
// datagram.h - UDP sockets that the wire serves beside the kernel (option vi.udp; docs/adr/0012).
//
// For all that is said of TCP such an endpoint is the kernel's (PSTN_EP_KERNEL): whatever is not
// here is the kernel's business. PSTN_EPF_DATAGRAM says what it is, `wire` its place among the
// engine's sockets + 1. What comes by a VI waits there, what comes by other interfaces and from
// this host in the kernel's socket; a receive looks at both.
//
// An endpoint is, in this order: without a name; on the wire (`wire` is not 0); the kernel's for
// good (`reason`), though what waits on the wire is read first.
#pragma once
#include <sys/socket.h>

#include "family/family.h"
#include "family/verbs.h"
#include "offhost/wire.h"

namespace postern {

// ---- the life of one. All but the first under ep.setup_lock.
long DatagramSocket(Family& fam, int domain, int type, int protocol);
long DatagramBind(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len)
    PSTN_REQUIRES(ep.setup_lock);
long DatagramConnect(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len)
    PSTN_REQUIRES(ep.setup_lock);
// The kernel has given its socket a name, or another one.
// `patience_ns` as for WireStart().
void DatagramNamed(Family& fam, int fd, pstn_ep& ep, uint64_t patience_ns = 0)
    PSTN_REQUIRES(ep.setup_lock);
void DatagramLeave(Family& fam, pstn_ep& ep, Reason why) PSTN_REQUIRES(ep.setup_lock);
// The last reference is dropped. False: this process has no wire; its keeper has to look
// (DatagramSweep) when the endpoint is free.
bool DatagramClosed(Family& fam, pstn_ep& ep);
// For a new posternd, and for the wire's keeper: sockets whose program is gone without a word.
void DatagramRefilter(Family& fam, LineAsk ask, int fd, const pstn_ep& ep);
void DatagramSweep(Family& fam);

// The engine's socket of `ep`, under the engine's lock until the guard ends; null: there is none.
class DatagramGuard {
 public:
  explicit DatagramGuard(Family& fam, const pstn_ep& ep);
  ~DatagramGuard();
  DatagramGuard(const DatagramGuard&) = delete;
  DatagramGuard& operator=(const DatagramGuard&) = delete;
  bool ok() const { return idx_ != PSTN_NONE; }
  uint32_t idx() const { return idx_; }
  stack::Datagrams& all() const { return fam_.engine->datagrams(); }
  stack::DatagramSocket& socket() const { return all().At(idx_); }

 private:
  Family& fam_;
  uint32_t idx_ = PSTN_NONE;
  bool locked_ = false;
};

// ---- options (datagram_options.cc)
long DatagramSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                    socklen_t len);
long DatagramGetOpt(Family& fam, pstn_ep& ep, int level, int name, void* value, socklen_t* len);
// What the kernel's socket has been given goes to the engine's.
void DatagramLearnOptions(int fd, const pstn_ep& ep, stack::DatagramSocket& s);
// Control messages of a datagram that was received, as far as the program wants them
// (DatagramSocket::wants).
void DatagramControl(uint32_t family, uint32_t wants, const udp::ReceiveInfo& info, msghdr& m);
// The source and interface that a program's control messages ask for. False: something else.
bool DatagramWish(Family& fam, const msghdr& m, udp::SendArgs& args);

// ---- DatagramSocket::wants
inline constexpr uint32_t kWantsPktinfo = 1, kWantsTtl = 2, kWantsTos = 4;

// pstn_ep::held of such an endpoint: where the last look (MSG_PEEK, FIONREAD) has found something,
// so that the next receive takes just that.
inline constexpr uint32_t kSeenNowhere = 0, kSeenOnWire = 1, kSeenInKernel = 2;

}  // namespace postern
