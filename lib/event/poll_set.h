// SPDX-License-Identifier: Apache-2.0
// poll_set.h - what one poll() has to ask of the kernel, and of whom it waits for news.
#pragma once
#include <poll.h>
#include <sys/mman.h>

#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "family/fdtab.h"

namespace postern {

inline constexpr size_t kInline = 128;  // descriptors for which no memory is asked of the kernel

// Kernel poll set of a call: the entries that the kernel has to watch, and the doorbell behind
// them.
struct KernelSet {
  Family& fam;
  pollfd inline_fds[kInline + 2];  // two more: the doorbell, and posternd's line
  uint64_t inline_ours[kInline];
  uint32_t inline_at[kInline + 2];
  pollfd* fds = inline_fds;
  uint64_t* ours = inline_ours;  // by position in the caller's array: endpoint that posts to us, or
                                 // 0; see Register
  uint32_t* at = inline_at;      // position in the caller's array
  size_t count = 0;
  size_t mapped_bytes = 0;
  bool sets = false;       // event sets of ours are among them
  const Call* const held;  // accept()'s and recv()'s own poll(), of the one that they wait for
  ManyCalls calls;         // what is slept on
  bool by_number = false;  // see Left()

  KernelSet(Family& f, const Call* of) : fam(f), held(of), calls(f) {}

  // The endpoint that entry `i` still waits for though another thread has taken its number away.
  // Null: there is none, or the number alone counts (LookByNumber).
  pstn_ep* Left(size_t i, int fd) const {
    const uint32_t e = calls.entry(i);
    return e == 0 || by_number || AwaitUnclaimed(fam, fd) == e ? nullptr
                                                               : EpAt(Stack(fam), e & PSTN_FD_IDX);
  }
  bool AnyLeft(const pollfd* all, size_t n) const {
    for (size_t i = 0; i < n; i++) {
      if (Left(i, all[i].fd) != nullptr) return true;
    }
    return false;
  }

  // Listeners and UDP sockets are with both. True if a listener of ours is among `all`.
  bool Fill(pollfd* all, size_t n);
  bool Reserve(size_t n) {
    if (n <= kInline) return true;
    mapped_bytes = (n + 2) * (sizeof(pollfd) + sizeof(uint64_t) + sizeof(uint32_t));
    long r = sys::Call(SYS_mmap, 0L, mapped_bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                       static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    if (r < 0 && r > -4096) return false;
    fds = reinterpret_cast<pollfd*>(r);
    ours = reinterpret_cast<uint64_t*>(fds + n + 2);
    at = reinterpret_cast<uint32_t*>(ours + n + 2);
    return true;
  }
  // Before each system call with `fds`: the number of what is held may be another by now.
  void Renumber() {
    if (held != nullptr && count != 0) fds[0].fd = held->fd();
  }
  void Release() {
    if (mapped_bytes != 0) sys::Unmap(fds, mapped_bytes);
    mapped_bytes = 0;
  }
  ~KernelSet() { Release(); }
};

inline bool IsSetFd(Family& fam, int fd) {
  return (FdMeans(fam, fd) & PSTN_FD_KIND) == PSTN_FD_EPOLL;
}

// Closed, for the program.
inline bool IsHidden(const Call& call) { return (call.entry() & PSTN_FD_KIND) == PSTN_FD_CACHED; }

inline bool AnswersFor(const pstn_ep& ep) {
  const uint32_t st = LoadAcquire(ep.state);  // [E1]
  return st == PSTN_EP_ESTABLISHED || st == PSTN_EP_LISTEN || st == PSTN_EP_NEW ||
         st == PSTN_EP_CONNECTING || (st == PSTN_EP_KERNEL && IsDatagram(ep));
}

// The endpoint of entry `i` if it is one that we answer for.
inline pstn_ep* OursForPoll(const KernelSet& k, const Call& call, pstn_ep* left) {
  pstn_ep* ep = left != nullptr ? left : k.held != nullptr ? k.held->ep() : call.ep();
  return ep != nullptr && AnswersFor(*ep) ? ep : nullptr;
}

}  // namespace postern
