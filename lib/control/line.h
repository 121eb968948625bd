// SPDX-License-Identifier: Apache-2.0
// line.h - the process's line to posternd, for a thread that has it: within this room alone.
#pragma once
#include "base/cut_short.h"
#include "base/lock.h"
#include "ctl/proto.h"
#include "family/family.h"
#include "family/verbs.h"

namespace postern {

// The line, to be waited for, and for posternd with it: its holder has no lock others wait for.
class PSTN_SCOPED_CAPABILITY LineGuard {
 public:
  explicit LineGuard(Family& fam) PSTN_ACQUIRE(fam.ctl_lock) : fam_(fam) {
    CheckMayWait();
    Lock(fam.ctl_lock);
  }
  ~LineGuard() PSTN_RELEASE() {
    Unlock(fam_.ctl_lock);
    FenceAfterLocked();  // [F1] a thread that has found it taken has left an errand before that
    kVerbs.wire_errands(fam_);
  }
  LineGuard(const LineGuard&) = delete;
  LineGuard& operator=(const LineGuard&) = delete;

 private:
  Family& fam_;
};

// Connected, or connected anew: hello, directory, and what posternd has to know of us. (reach.cc)
// False in a child of vfork(), in all of this room: the line, and what comes over it, has numbers
// of its parent.
bool ConnectLocked(Family& fam) PSTN_REQUIRES(fam.ctl_lock);
// Sends a request and waits for its reply; what is pushed meanwhile is taken. -ETIMEDOUT: no answer
// before `limit`, and the line is kept; a posternd that is silent for as long as the line waits is
// given up. The reply is in `m`, what came with it in *reply_fd (null: closed).
int Ask(Family& fam, ctl::Msg& m, int fd, int* reply_fd, CutShort* limit = nullptr)
    PSTN_REQUIRES(fam.ctl_lock);
int ListenLocked(Family& fam, pstn_ep& ep, int fd) PSTN_REQUIRES(fam.ctl_lock);  // (requests.cc)
// The link group that posternd made for us (`idx` in our stack). Takes `fd`.
void TakeLgr(Family& fam, uint32_t idx, int fd) PSTN_REQUIRES(fam.ctl_lock);
void Disconnect(Family& fam) PSTN_REQUIRES(fam.ctl_lock);

// How long a reply is waited for: less after each time that posternd has been silent.
void SetPatience(const Family& fam, int line) PSTN_REQUIRES(fam.ctl_lock);
void NoteSilence(Family& fam) PSTN_REQUIRES(fam.ctl_lock);
inline constexpr uint64_t kRetryNs = 200'000'000;  // between attempts to reach one that is gone
void RetryLater(Family& fam) PSTN_REQUIRES(fam.ctl_lock);

}  // namespace postern
