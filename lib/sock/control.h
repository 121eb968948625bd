// SPDX-License-Identifier: Apache-2.0
// control.h - asking posternd, for the parts of control.cc that are in files of their own.
#pragma once
#include "ctl/proto.h"

namespace postern {

// Connects if need be. `m` becomes the answer, `reply_fd` (may be null) what came with it, or -1. 0
// or -errno; -ETIMEDOUT: no answer before `until_ns`, and a later one is dropped.
int CtlAsk(ctl::Msg& m, int fd, int* reply_fd, uint64_t until_ns = UINT64_MAX);
// What has no answer.
int CtlTell(const ctl::Msg& m, int fd);
// A link group that came with an answer. Takes `fd`.
void CtlTakeLgr(uint32_t idx, int fd);

}  // namespace postern
