// SPDX-License-Identifier: Apache-2.0
// block.h - how a call on a connection blocks: it spins, then sleeps on a futex of its own ctl
// line.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <initializer_list>

#include "abi/kmod_abi.h"
#include "base/clock.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "event/line_watch.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "smcd/hold.h"
#include "smcd/notify.h"

namespace postern {

// kRestarts: see kRestart.
enum class Wait : uint8_t { kReady, kTimeout, kInterrupted, kRestarts };
// What such a wait comes to where nothing has been moved yet.
inline long WaitFailed(Wait w) {
  return w == Wait::kTimeout ? -EAGAIN : w == Wait::kRestarts ? kRestart : -EINTR;
}

inline bool PeerEnded(const ConnEnd& e) {
  // [C2]
  return (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0;
}
inline bool ReadableOrEnded(const ConnEnd& e) {
  return RingReadable(e) || PeerEnded(e) || (LoadRelaxed(e.ep->flags) & PSTN_EPF_SHUT_RD) != 0 ||
         LoadRelaxed(e.ep->state) != PSTN_EP_ESTABLISHED;
}
inline bool WritableOrEnded(const ConnEnd& e) {
  return RingWritable(e) ||
         // [C2]
         (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_RST | PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) !=
             0 ||
         (LoadRelaxed(e.ep->flags) & PSTN_EPF_SHUT_WR) != 0 ||
         LoadRelaxed(e.ep->state) != PSTN_EP_ESTABLISHED;
}

// A handler that runs between the last look at t_interrupts and the sleep finds the word here, and
// changes it, so that the kernel does not let us sleep.
class SleepWord {
 public:
  explicit SleepWord(uint32_t& word) { t_sleep_word = &word; }
  ~SleepWord() { t_sleep_word = nullptr; }
  SleepWord(const SleepWord&) = delete;
  SleepWord& operator=(const SleepWord&) = delete;
};

// A handler that asks for it (SA_RESTART) lets a call go on that has not moved a byte yet. kNever:
// it has. kPoll: nor does a poll(), and what it finds counts for more than a cancellation.
enum class Restart : uint8_t { kIfAsked, kNever, kPoll };

// Threads of ours that sleep on a connection are counted where the peer can't write: an end on this
// side need not ask the kernel in vain (AnnounceLocal).
class Sleeper {
 public:
  explicit Sleeper(pstn_ep& ep) : ep_(&ep) {
    FetchAdd(ep.sleepers, 1u);
    FenceAfterLocked();  // [F1] before the look, against AnnounceLocal and WireConnected
  }
  ~Sleeper() { Off(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  void Off() {
    if (ep_ != nullptr) FetchSub(ep_->sleepers, 1u);
    ep_ = nullptr;
  }

 private:
  pstn_ep* ep_;
};

// What a thread sleeps on: a futex of its ctl line, into which `bit` is put, or `module_bit` where
// the module has the other end: it can't wake a futex, and so has the thread sleep with it. A
// reader gets up when what its peer holds back can be read.
struct SleepsOn {
  const ConnEnd& end;
  uint32_t& word;
  uint32_t bit, module_bit;
  uint32_t what;  // PSTN_RING_*
};
inline SleepsOn ForData(const ConnEnd& e) {
  return {e, e.ctl().rx_wait, 1, PSTN_RXW_MODULE, PSTN_RING_DATA};
}
inline SleepsOn ForSpace(const ConnEnd& e) {
  return {e, e.ctl().tx_wait, PSTN_TXW_FUTEX, PSTN_TXW_MODULE, PSTN_RING_SPACE};
}
inline bool SleepsInModule(Family& fam, const ConnEnd& e) {
  return PeerIsModules(e) && LoadRelaxed(fam.bells.module) >= 0;
}

// Puts `bit` into the word. A wake of the peer's takes it out and is for kWakesPerPost threads
// (smcd/notify.cc): the peer does not pay for a crowd. The thread that is the first to put it in
// again wakes the rest of the crowd, if there is one. Returns the word.
inline uint32_t Arm(Family& fam, const SleepsOn& on, uint32_t bit) {
  const uint32_t old = FetchOr(on.word, bit);
  if ((old & bit) == 0 && LoadRelaxed(on.end.ep->sleepers) > 1) [[unlikely]] {
    if (bit == on.bit)
      (void)sys::FutexWake(&on.word, INT32_MAX);
    else
      WakeInModule(fam.bells, on.end, on.what | PSTN_RING_OWN);
  }
  return old | bit;
}
// For a thread that was woken and leaves.
inline void HandOn(Family& fam, const SleepsOn& on, uint32_t bit) {
  if (LoadRelaxed(on.end.ep->sleepers) > 1) [[unlikely]]
    (void)Arm(fam, on, bit);
}

// How long such a sleep may last; a peer may say that its time is always near.
inline uint64_t LongestNs(uint64_t held_ns) {
  constexpr uint64_t kNapNs = 1'000'000;
  const uint64_t left = Deadline{held_ns}.left_ns();
  return left < kNapNs ? kNapNs : left;
}

// Sleeps. `ready` is looked at once more after the word says so [F1].
template <typename Ready>
Wait SleepOn(const Call& call, const SleepsOn& on_what, Ready ready, const Deadline& until,
             uint32_t interrupts, Restart restart) {
  uint32_t& word = on_what.word;
  Family& fam = call.family();
  SleepWord on(word);
  Sleeper sleeper(*call.ep());
  const uint32_t handlers = t_handlers;
  LineWatch line(fam, LineWatch::Sleeps::kElsewhere);
  Count(Stack(fam).hdr, kCounterSleeps);
  NoteNews(fam.bells);  // if this process dies when it is woken, others have to be told
  PayRings(fam);
  for (bool by_module = false;;) {
    by_module = by_module || SleepsInModule(fam, on_what.end);
    const uint32_t bit = by_module ? on_what.module_bit : on_what.bit;
    const uint32_t value = Arm(fam, on_what, bit);
    FullFence();  // [F1]
    if (!by_module && SleepsInModule(fam, on_what.end)) [[unlikely]]
      continue;  // since a moment, and its keeper may have been at the word already
    const uint64_t held_ns =
        on_what.what == PSTN_RING_DATA ? PeersHoldEnds(on_what.end) : UINT64_MAX;
    if (ready()) return Wait::kReady;
    if (t_interrupts != interrupts) return Wait::kInterrupted;
    if (t_handlers != handlers && restart == Restart::kIfAsked && call.moved())
      return Wait::kRestarts;
    const bool restarts = until.never() && restart == Restart::kIfAsked;
    const WireSleep wire(fam);
    const auto sleep = [&](uint64_t most_ns) {
      const uint64_t longest_ns = held_ns == UINT64_MAX ? held_ns : LongestNs(held_ns);
      const timespec left = until.LeftTimespec(std::min({most_ns, longest_ns, line.left_ns()}));
      if (by_module) [[unlikely]]
        return SleepInModule(fam.bells, on_what.end, on_what.what, value, &left);
      return sys::FutexWait(&word, value, &left);
    };
    const auto undo = [&] {
      HandOn(fam, on_what, bit);
      sleeper.Off();
    };
    PSTN_TRACE2(call_sleeps, call.ep(), call.fd());
    const auto for_long = [&] { return sleep(UINT64_MAX); };
    const long r = restart == Restart::kNever  ? CancellableMoved(fam, sleep, undo)
                   : restart == Restart::kPoll ? CancellablePoll(fam, for_long, undo, ready)
                                               : Cancellable(fam, for_long, undo);
    PSTN_TRACE2(call_wakes, call.ep(), r);
    // A kernel's wait that has no end is restarted.
    if (r == -EINTR && restarts && t_interrupts == interrupts) continue;
    if (r == -ETIMEDOUT) line.Look();
    // One look: what it sees may be another thread's a moment later. That ends no time.
    const bool came = ready();
    if (!came && r != -EINTR && until.left_ns() != 0) continue;
    HandOn(fam, on_what, bit);
    return came ? Wait::kReady : r == -EINTR ? Wait::kInterrupted : Wait::kTimeout;
  }
}

inline bool NothingElse() { return false; }

// `interrupts`: t_interrupts as the call began, which may have waited and moved bytes since: a
// handler that has run meanwhile ends this wait, as the kernel sees the signal. `otherwise`, before
// the first sleep, may do what makes it needless.
template <typename Ready, typename Otherwise = bool (*)()>
Wait WaitFor(const Call& call, const SleepsOn& on_what, Ready ready, const Deadline& until,
             uint32_t interrupts, Restart restart, Otherwise otherwise = NothingElse) {
  if (Spin(call.family(), ready, until)) return Wait::kReady;
  if (t_interrupts != interrupts) return Wait::kInterrupted;
  if (until.left_ns() == 0) return Wait::kTimeout;
  if (otherwise()) return Wait::kReady;
  return SleepOn(call, on_what, ready, until, interrupts, restart);
}

}  // namespace postern
