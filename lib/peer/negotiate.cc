// SPDX-License-Identifier: Apache-2.0
// negotiate.cc - the client's half of a handshake, in connect().
//
// Until the handshake's end nothing is given up: whatever goes wrong leaves a TCP connection that
// works (a Decline), or one that is dropped before the program knew of it, and the kernel makes
// another one, unmarked. So no error of a connect() comes from here.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>

#include "abi/syn_option.h"
#include "base/clock.h"
#include "base/cut_short.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "control/control_smc.h"
#include "endpoint/call.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/kept_options.h"
#include "event/block.h"
#include "family/family.h"
#include "family/local_lock.h"
#include "peer/negotiate.h"
#include "peer/peers.h"
#include "smcd/clc_fsm.h"
#include "smcd/clc_local.h"

namespace postern {
namespace {

constexpr uint64_t kMsNs = 1'000'000;
// On one host a SYN is answered within the call, or not for a while (a full backlog): then a
// program that must not wait does not.
constexpr uint64_t kSynNs = 20 * kMsNs;
constexpr uint64_t kLookNs = 1 * kMsNs;          // at TCP, while the word is waited for
constexpr uint64_t kPenaltyNs = 10'000 * kMsNs;  // no handshake with an address that did not answer
constexpr uint8_t kSizeCode = 2;                 // 64 KiB; a ring has no fixed size

PSTN_LOCK_ENTRY(slow_lock, fam.peers->slow_lock, nullptr);

bool IsSlow(Family& fam, const pstn_addr& to) {
  Guard g(fam.peers->slow_lock);
  for (const Slow& s : fam.peers->slow) {
    if (s.until_ns != 0 && SameName(s.addr, to) && MonotonicNs() < s.until_ns) return true;
  }
  return false;
}

void NoteSlow(Family& fam, const pstn_addr& to) {
  Guard g(fam.peers->slow_lock);
  fam.peers->slow[fam.peers->slow_next++ % kSlow] = {to, MonotonicNs() + kPenaltyNs};
}

uint32_t DiagnosisOf(long error) {
  switch (error) {
    case -EPERM:
      return kClcDiagConfig;
    case -ENOSPC:
      return kClcDiagDmbLimit;
    case -ETIMEDOUT:
      return kClcDiagInternal;
    default:
      return kClcDiagNoMemory;
  }
}

// One handshake. The endpoint is NEW, and stays so until its end.
class Dialogue {
 public:
  Dialogue(Family& fam, const Call& call, pstn_ep& ep, CutShort& limit)
      : fam_(fam), call_(call), ep_(ep), limit_(limit) {
    local_ = ClcLocalOf(LoadAcquire(fam.dir)->host);  // [T4]
    ClcInit(machine_, ClcRole::kClient);
  }
  Became Run();

 private:
  int fd() const { return call_.fd(); }
  // The device's answers, and what came meanwhile.
  ClcEvent Next(ClcDo asked);
  ClcEvent Register();
  ClcEvent Wait();
  ClcEvent Read();
  ClcEvent Half(size_t want);
  bool HasEnded() const;
  bool Send(std::span<const uint8_t> bytes);
  void Release(uint8_t held);

  Family& fam_;
  const Call& call_;
  pstn_ep& ep_;
  CutShort& limit_;
  uint64_t now_ns_ = 0;  // as the machine is told
  bool offered_ = false;
  bool ended_ = false;  // the TCP connection, by FIN or RST
  ClcLocal local_;
  ClcMachine machine_;
  uint8_t bytes_[kClcMessageBytesMax];
};

// Not if the peer died while we were busy; nor after our time: what the device waited for may be
// what the server's posternd, in whose hands this connection is, doesn't do. Another connection is
// the program's own from the start.
bool Dialogue::Send(std::span<const uint8_t> bytes) {
  return MonotonicNs() < limit_.end_ns() && !HasEnded() &&
         sys::Call(SYS_sendto, fd(), bytes.data(), bytes.size(),
                   static_cast<long>(MSG_DONTWAIT | MSG_NOSIGNAL), 0L,
                   0L) == static_cast<long>(bytes.size());
}

// The peer's token leads to its listener; then our buffer, which is a connection in the link group
// with it, gets a token of its own.
ClcEvent Dialogue::Register() {
  Offered to;
  int r = CtlAttach(fam_, machine_.peer_token, fd(), to, limit_);
  if (r != 0) return ClcEvent::DeviceFailed(DiagnosisOf(r));
  pstn_addr local, peer;
  if (!NamesOf(fd(), local, peer)) return ClcEvent::DeviceFailed(kClcDiagInternal);
  if (!OfferConn(fam_, ep_, to, local, peer)) return ClcEvent::DeviceFailed(kClcDiagDmbLimit);
  offered_ = true;
  ClcDmb dmb;
  r = CtlRegister(fam_, ep_.lgr_idx, ep_.conn_idx, ep_.conn_gen, limit_, &dmb.token);
  if (r != 0) {
    Release(kClcHeldDmb);
    return ClcEvent::DeviceFailed(DiagnosisOf(r));
  }
  dmb.link_id = ep_.conn_idx;
  dmb.size_code = kSizeCode;
  return ClcEvent::DeviceOk(dmb);
}

void Dialogue::Release(uint8_t held) {
  if ((held & kClcHeldDmb) == 0) return;
  if (machine_.own_token != 0) CtlRelease(fam_, machine_.own_token);
  if (offered_) (void)WithdrawOffer(fam_, ep_);
  offered_ = false;
}

bool Dialogue::HasEnded() const {
  pollfd p = {fd(), POLLRDHUP, 0};
  const timespec none = {0, 0};
  return sys::Call(SYS_ppoll, &p, 1L, &none, nullptr, 0L) == 1;
}

// Less than `want` bytes are there. An end behind them is not read: they would have to be first.
ClcEvent Dialogue::Half(size_t want) {
  if (!HasEnded()) return ClcEvent::Timer();
  const long n = sys::Call(SYS_recvfrom, fd(), static_cast<uint8_t*>(bytes_), want,
                           static_cast<long>(MSG_PEEK | MSG_DONTWAIT), 0L, 0L);
  return n == static_cast<long>(want) ? ClcEvent::Timer() : ClcEvent::PeerClosed();
}

// Exactly one message, or the end; kTimer: it is not there yet.
ClcEvent Dialogue::Read() {
  constexpr long kPeek = MSG_PEEK | MSG_DONTWAIT;
  long n =
      sys::Call(SYS_recvfrom, fd(), static_cast<uint8_t*>(bytes_), sizeof bytes_, kPeek, 0L, 0L);
  if (n == 0) return ClcEvent::PeerClosed();
  if (n < 0) return n == -EAGAIN || n == -EINTR ? ClcEvent::Timer() : ClcEvent::Reset();
  size_t want = kClcPeekBytes;
  ClcHead head;
  const std::span<const uint8_t, kClcPeekBytes> first(bytes_, kClcPeekBytes);
  if (static_cast<size_t>(n) >= want && ClcPeek(first, head).ok()) want = head.len_bytes;
  if (static_cast<size_t>(n) < want) return Half(want);
  n = sys::Call(SYS_recvfrom, fd(), static_cast<uint8_t*>(bytes_), want,
                static_cast<long>(MSG_DONTWAIT), 0L, 0L);
  return n == static_cast<long>(want) ? ClcEvent::Message({bytes_, want}) : ClcEvent::Reset();
}

// Until something happens, or the time is over. The machine's own times are longer than ours: when
// ours is over it is told that its is.
ClcEvent Dialogue::Wait() {
  for (bool woken = false;;) {
    now_ns_ = MonotonicNs();
    if (machine_.state == static_cast<uint8_t>(ClcState::kProvisional) && OfferTaken(fam_, ep_))
      return ClcEvent::Acknowledged();
    const ClcEvent event = Read();
    if (event.kind != ClcEventKind::kTimer) return event;
    if (woken) sys::Nap(kLookNs / 10);  // half a message: poll() would go on saying so
    const uint64_t end_ns = limit_.end_ns();
    const uint64_t deadline =
        ClcNextDeadline(machine_) < end_ns ? ClcNextDeadline(machine_) : end_ns;
    if (now_ns_ >= deadline) {
      now_ns_ = ClcNextDeadline(machine_);
      return ClcEvent::Timer();
    }
    uint64_t left = deadline - now_ns_;
    if (machine_.state == static_cast<uint8_t>(ClcState::kProvisional)) {
      uint8_t* lgr = LgrBase(fam_.view, LoadRelaxed(ep_.lgr_idx));
      timespec ts = {0, static_cast<long>(left < kLookNs ? left : kLookNs)};
      if (lgr != nullptr)
        (void)sys::FutexWait(&LgrConn(lgr, ep_.conn_idx).setup.state, PSTN_CS_OFFERED, &ts);
      continue;
    }
    pollfd p = {fd(), POLLIN | POLLRDHUP, 0};
    const timespec ts = limit_.Slice(deadline);
    (void)sys::Call(SYS_ppoll, &p, 1L, &ts, nullptr, 0L);
    woken = p.revents != 0;
  }
}

ClcEvent Dialogue::Next(ClcDo asked) {
  switch (asked) {
    case ClcDo::kRegister:
      return Register();
    case ClcDo::kAttach:
      return ClcEvent::DeviceOk();  // done by Register()
    case ClcDo::kWithdraw:
      if (!WithdrawOffer(fam_, ep_)) return ClcEvent::DeviceFailed();
      offered_ = false;
      return ClcEvent::DeviceOk();
    default:
      return Wait();
  }
}

Became Dialogue::Run() {
  ClcActions actions;
  ClcEvent event = ClcEvent::Start();
  now_ns_ = MonotonicNs();
  for (;;) {
    if (event.kind == ClcEventKind::kPeerClosed || event.kind == ClcEventKind::kReset)
      ended_ = true;
    ClcStep(machine_, local_, event, now_ns_, actions);
    bool sent = true;
    for (uint32_t i = 0; i < actions.count; i++) {
      if (actions.list[i] == ClcDo::kSend) sent = Send(actions.message());
      if (actions.list[i] == ClcDo::kRelease) Release(actions.release);
    }
    ClcActed(machine_);
    switch (actions.last()) {
      case ClcDo::kSmcD:
        return Became::kOurs;
      case ClcDo::kTcp:
        // One that has ended would be reported as connected; another one may do better.
        return sent && !ended_ ? Became::kTcp : Became::kNothing;
      case ClcDo::kAbort:
        // Ours after all, if the server was faster.
        return offered_ && !WithdrawOffer(fam_, ep_) ? Became::kOurs : Became::kNothing;
      default:
        break;
    }
    event = sent ? Next(actions.last()) : ClcEvent::Reset();
  }
}

void SetNonblocking(int fd, bool on) {
  const int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl >= 0) (void)sys::Fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
}

// Not connected, and unmarked.
void Undo(int fd) {
  const sockaddr none = {AF_UNSPEC, {}};
  (void)sys::Call(SYS_connect, fd, &none, static_cast<long>(sizeof none));
  (void)MarkSmc(fd, false);
}

// The kernel's connect(), until `limit` at most. True: connected.
bool ConnectTcp(Family& fam, Call& call, pstn_ep& ep, const sockaddr* sa, socklen_t len,
                CutShort& limit) {
  const bool nonblock = (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  int fd = call.fd();
  long r = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (r != -EINPROGRESS) return r == 0;
  pollfd p = {};
  // The lock is SockConnect's, whose frame never returns.
  const auto cancelled = [&]() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    Undo(fd);
    if (!nonblock) SetNonblocking(fd, false);
    (void)KernelConnectBegun(fam, fd, ep, sa, len, kReasonNotLocal);
    Unlock(ep.setup_lock);
  };
  do {
    fd = call.fd();
    p = {fd, POLLOUT, 0};
    const timespec ts = limit.Slice(UINT64_MAX);
    r = Cancellable(
        fam, [&] { return sys::Call(SYS_ppoll, &p, 1L, &ts, nullptr, 0L); }, cancelled);
  } while ((r == -EINTR || r == 0) && MonotonicNs() < limit.end_ns());
  int error = 0;
  socklen_t size = sizeof error;
  return r == 1 && (p.revents & (POLLERR | POLLHUP)) == 0 &&
         sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_ERROR),
                   &error, &size) == 0 &&
         error == 0;
}

}  // namespace

bool MarkSmc(int fd, bool on) {
  const int value = on ? 1 : 0;
  return sys::Call(SYS_setsockopt, fd, static_cast<long>(IPPROTO_TCP),
                   static_cast<long>(PSTN_TCP_SMC), &value, sizeof value) == 0;
}

bool ExchangedSmc(int fd) {
  int bits = 0;
  socklen_t len = sizeof bits;
  return sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP),
                   static_cast<long>(PSTN_TCP_SMC), &bits, &len) == 0 &&
         (bits & PSTN_TCP_SMC_EXCHANGED) != 0;
}

bool MayNegotiate(Family& fam, const pstn_addr& to) {
  const pstn_dir* d = LoadAcquire(fam.dir);  // [T4]
  if (fam.opt.smcd == 0 || d == nullptr || (LoadRelaxed(d->host.flags) & PSTN_HOST_SMC) == 0 ||
      LoadRelaxed(Stack(fam).hdr.wide_bells) == 0)
    return false;
  // A moment's answer is enough: what is wrong with it costs an option in a SYN.
  const uint32_t count = LoadRelaxed(d->host.addr_count);
  for (uint32_t i = 0; i < count && i < PSTN_DIR_ADDRS; i++) {
    const pstn_addr& behind = d->host.addrs[i];
    if (SamePrefix(to.ip, behind.ip, LoadRelaxed(behind.port))) return !IsSlow(fam, to);
  }
  return false;
}

Negotiated Negotiate(Family& fam, Call& call, const pstn_addr& to) {
  pstn_ep& ep = *call.ep();
  if (!MarkSmc(call.fd(), true)) return {Became::kNothing, kReasonNotLocal};
  const bool nonblock = (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  const uint64_t wait_ns = static_cast<uint64_t>(fam.opt.smcd_msec) * kMsNs;
  const uint64_t start = MonotonicNs();
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  AddrToSockaddr(to, ep.family, sa, &len);
  ApplyOptions(call.fd(), ep);
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  SetNonblocking(call.fd(), true);
  Negotiated result = {Became::kNothing, kReasonHandshake};
  CutShort limit(start + wait_ns),
      syn_limit(nonblock && wait_ns > kSynNs ? start + kSynNs : start + wait_ns);
  if (!ConnectTcp(fam, call, ep, sa, len, syn_limit)) {
    result.why = kReasonNotLocal;
  } else if (!ExchangedSmc(call.fd())) {
    result = {Became::kTcp, kReasonPeerPlain};
  } else {
    result.became = Dialogue(fam, call, ep, limit).Run();
    if (result.became == Became::kTcp) result.why = kReasonDeclined;
  }
  const int fd = call.fd();
  const uint64_t took_ns = MonotonicNs() - start;
  const bool cut = limit.cut() || syn_limit.cut();  // nothing is known of the address then
  if (!cut && ((result.became == Became::kNothing && took_ns >= kSynNs) ||
               (result.became == Became::kTcp && took_ns >= wait_ns)))
    NoteSlow(fam, to);
  if (result.became == Became::kNothing) Undo(fd);
  if (result.became == Became::kTcp && !nonblock)  // for the kernel, too, it was a call that waited
    (void)sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (!nonblock) SetNonblocking(fd, false);
  if (result.became == Became::kOurs) {
    FetchOr(ep.flags, PSTN_EPF_SMC);
    AcceptOffer(fam, ep);
  }
  if (cut && !nonblock && result.became == Became::kNothing) result.became = Became::kCut;
  return result;
}

}  // namespace postern
