// SPDX-License-Identifier: Apache-2.0
// control.h - asking posternd, for what other rooms have to ask it.
#pragma once
#include "base/cut_short.h"
#include "ctl/proto.h"
#include "family/family.h"

namespace postern {

// Connects if need be. `m` becomes the answer, `reply_fd` (may be null) what came with it, or -1. 0
// or -errno; -ETIMEDOUT: no answer before `limit` (null: none), and a later one is dropped.
int CtlAsk(Family& fam, ctl::Msg& m, int fd, int* reply_fd, CutShort* limit = nullptr);
// What has no answer.
int CtlTell(Family& fam, const ctl::Msg& m, int fd);
// Without any wait: the line, if no thread has it and it is connected; what is sent has an
// answer that no thread waits for. 0, -EAGAIN: posternd takes no more now; or -errno.
bool CtlTryLine(Family& fam) PSTN_TRY_ACQUIRE(true, fam.ctl_lock);
int CtlPost(Family& fam, ctl::Msg& m) PSTN_REQUIRES(fam.ctl_lock);
void CtlLeaveLine(Family& fam) PSTN_RELEASE(fam.ctl_lock);
// A link group that came with an answer. Takes `fd`.
void CtlTakeLgr(Family& fam, uint32_t idx, int fd);

}  // namespace postern
