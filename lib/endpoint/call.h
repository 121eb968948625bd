// SPDX-License-Identifier: Apache-2.0
// call.h - what a descriptor means for the length of one call.
//
// The kernel's fget()/fput(): a call on a descriptor looks its number up once, and what it has
// found lives until the call returns. Another thread may close the number meanwhile, or dup2() over
// it: the number is free at once, and the last call that is under way ends what it meant.
//
// A thread writes down what it uses, in a record of its own, and looks at the table once more: a
// store and a load. A thread that takes a number out of the table looks at all records
// (HandToUsers). If the object is in use, its reference moves to a number of ours (it is parked),
// and each user is told which; the last of them gives it back. The parked number is in the slot's
// table like any other: our death releases it.
//
// [H1] user: store `entry`, light fence, load the table. Closer: change the table, heavy fence,
// load
//      `entry`. One of the two sees the other.
// [H2] user: clear `entry`, light fence, load `owed`. Closer: store `owed`, heavy fence, load
//      `entry`. Either the user settles, or the closer takes it back. Until it does, the thread's
//      next use may find it: what is parked says whose it is.
//
// A use that its thread will not come back to (a handler jumped out of it, the thread was
// cancelled) ends at the thread's next call, or with the thread.
#pragma once
#include "family/family.h"
#include "family/fdtab.h"
#include "family/uses.h"

namespace postern {

// Of the family with whose descriptors this thread had to do last.
extern constinit thread_local ThreadUses* t_uses __attribute__((tls_model("initial-exec")));

// 1 in Family::light_fences: membarrier() serves as the other half, so that a user's fence costs
// nothing.
inline void LightFence(Family& fam) {
  if (LoadRelaxed(fam.light_fences) != 0) [[likely]] {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    FullFence();  // [H1]
  }
}

inline constexpr int kOwesNothing = -2;

class Call {
 public:
  Call(Family& fam, int fd) : fam_(fam), fd_(fd), entry_(FdMeans(fam, fd)) {
    if (IsObject(entry_)) Begin(__builtin_frame_address(0), nullptr);
    FindEp();
  }
  // The second descriptor of one call.
  Call(Family& fam, int fd, const Call& first) : fam_(fam), fd_(fd), entry_(FdMeans(fam, fd)) {
    if (IsObject(entry_)) Begin(__builtin_frame_address(0), &first);
    FindEp();
  }
  // Without a number, on an endpoint to which the caller has a reference of its own.
  Call(Family& fam, const pstn_ep& held)
      : fam_(fam), fd_(-1), entry_(PSTN_FD_EP | EpIdx(Stack(fam), held)) {
    FindEp();
  }
  ~Call() { End(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What the number meant when the call began; 0: nothing of ours.
  uint32_t entry() const { return entry_; }
  Family& family() const { return fam_; }
  // The endpoint, if it is one.
  bool is_ep() const { return (entry_ & PSTN_FD_KIND) == PSTN_FD_EP; }
  pstn_ep* ep() const { return ep_; }
  // The number to use for the kernel's half: the program's, or ours since another thread has closed
  // that; -1: there was none left for us.
  int fd() const {
    const int parked = Parked();
    return parked != kOwesNothing ? parked : pin_ != 0 ? PinnedNumber() : fd_;
  }
  bool moved() const { return Parked() != kOwesNothing || pin_ != 0; }
  // Parks it at once: fd() is then the same until the end. 0, or -errno; -EBADF: the number has
  // been closed meanwhile.
  long Pin();
  void End() {
    if (use_ != nullptr) {
      StoreRelease(use_->entry, 0u);  // [H2]; after all that was done with the object
      LightFence(fam_);
      t_uses->depth = static_cast<uint32_t>(use_ - t_uses->at);
      if (LoadRelaxed(use_->owed) != 0) [[unlikely]]
        Settle(fam_, *use_);
      use_ = nullptr;
    }
    if (pin_ != 0) [[unlikely]]
      Unpin();
  }

 private:
  static bool IsObject(uint32_t entry) {
    const uint32_t kind = entry & PSTN_FD_KIND;
    return kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL;
  }
  void Begin(void* caller, const Call* beside) {
    const auto frame = reinterpret_cast<uintptr_t>(caller);
    ThreadUses* t = t_uses;
    if (t == nullptr || t->depth != 0 || t->fam != &fam_) [[unlikely]] {
      t = Room(frame, beside);
      if (t == nullptr) return;
    }
    Use& u = t->at[t->depth];
    if (LoadRelaxed(u.owed) != 0) [[unlikely]]  // a handler, before what it interrupted has settled
      Settle(fam_, u);
    u.frame = frame;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t->depth = t->depth + 1;
    use_ = &u;
    for (;;) {
      StoreRelaxed(u.entry, entry_);  // [H1]
      LightFence(fam_);
      uint32_t now = FdEntry(fam_, fd_);
      if (now == entry_) [[likely]]
        return;
      StoreRelease(u.entry, 0u);  // [H2]: it may have been given what the number meant
      LightFence(fam_);
      if (LoadRelaxed(u.owed) != 0) Settle(fam_, u);
      if (IsReplaced(now)) now = AwaitReplaced(fam_, fd_);
      entry_ = now;
      if (!IsObject(now)) return End();
    }
  }
  void FindEp() {
    if (is_ep()) ep_ = EpAt(Stack(fam_), entry_ & PSTN_FD_IDX);
  }
  // A record with a free place, for a call that is not the thread's first, or only. Null: the call
  // has what it needs (Pin), or nothing.
  friend class ByNumber;
  ThreadUses* Room(uintptr_t frame, const Call* beside);
  static void Settle(Family& fam, Use& use);
  int Parked() const {
    return use_ != nullptr && LoadRelaxed(use_->owed) != 0 ? ParkedNumber(fam_, *use_, entry_)
                                                           : kOwesNothing;
  }
  static int ParkedNumber(Family& fam, const Use& use, uint32_t entry);
  int PinnedNumber() const;
  void Unpin();

  Family& fam_;
  int fd_;
  uint32_t entry_;
  pstn_ep* ep_ = nullptr;
  Use* use_ = nullptr;
  uint32_t pin_ = 0;  // 1 + its place among the parked
};

// Around a system call by the number of a call: fd() is asked for within. A thread that takes the
// number away waits until the kernel has looked it up, or it would find what the number means next.
//
// [H3] user: store `kernel`, light fence, load `owed`. Closer: store `owed`, heavy fence, load
//      `kernel`.
class ByNumber {
 public:
  explicit ByNumber(const Call& call) : ByNumber(&call) {}
  explicit ByNumber(const Call* call) : use_(call != nullptr ? call->use_ : nullptr) {  // or none
    if (use_ == nullptr) return;
    StoreRelaxed(use_->kernel, 1u);
    LightFence(call->fam_);
  }
  ~ByNumber() {
    if (use_ != nullptr) StoreRelease(use_->kernel, 0u);  // [H3]
  }
  ByNumber(const ByNumber&) = delete;
  ByNumber& operator=(const ByNumber&) = delete;

 private:
  Use* const use_;
};

// What a poll() that sleeps waits for, as Call. Not for a handler's poll() during another's.
class ManyCalls {
 public:
  explicit ManyCalls(Family& fam) : fam_(fam) {}
  ~ManyCalls() { End(); }
  ManyCalls(const ManyCalls&) = delete;
  ManyCalls& operator=(const ManyCalls&) = delete;
  // `fd_at(i)`: the numbers. False: not kept; what they mean may go while poll() sleeps.
  template <typename FdAt>
  bool Begin(size_t n, FdAt fd_at) {
    ManyUse* many = Open(n, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
    if (many == nullptr) return false;
    for (size_t i = 0; i < n; i++) {
      const uint32_t e = FdMeans(fam_, fd_at(i));
      StoreRelaxed(many[i].entry, (e & PSTN_FD_KIND) == PSTN_FD_EP ? e : 0u);  // [H1]
    }
    LightFence(fam_);
    for (size_t i = 0; i < n; i++) {
      if (many[i].entry != 0 && FdEntry(fam_, fd_at(i)) != many[i].entry) EndOne(fam_, many[i]);
    }
    return true;
  }
  bool is_open() const { return open_; }
  uint32_t entry(size_t i) const { return open_ ? LoadRelaxed(t_uses->many[i].entry) : 0; }
  // The number of ours that stands for entry `i` since another thread took its own away, or none:
  // negative.
  int parked(size_t i) const;
  void End() {
    if (open_) Close();
  }

 private:
  ManyUse* Open(size_t n, uintptr_t frame);
  void Close();
  static void EndOne(Family& fam, ManyUse& one);
  Family& fam_;
  bool open_ = false;
};

// The number `fd` means `entry` no longer, in this process's table. In a TableChange, before the
// kernel hears of it. True: calls are under way, and the last of them ends it.
bool HandToUsers(Family& fam, int fd, uint32_t entry);
// The same where the kernel's file is gone already.
void HandLostToUsers(Family& fam, uint32_t entry);
// All uses of this thread end: it will not come back to them (it is cancelled).
void AbandonUses(Family& fam);
// The thread is about to jump (longjmp) to where its stack ends at `target`.
void AbandonBelow(Family& fam, uintptr_t target);
void UsesInit(Family& fam);
// In the child of a fork: other threads' are the parent's. True for numbers that this thread's
// calls still use.
void UsesAfterFork(Family& fam);
bool IsParkedHere(Family& fam, int number);
// In a child that has no part in the stack.
void UsesForget(Family& fam);
// No more system calls than the program's own: users fence for themselves from now on.
void FenceWithoutKernel(Family& fam);

// A handler with SA_RESTART has run, and the call's number is not its own any more: as the
// kernel's, the call begins anew, with whatever the number means by now.
inline constexpr long kRestart = kPass - 2;

}  // namespace postern
