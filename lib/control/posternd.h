// SPDX-License-Identifier: Apache-2.0
// posternd.h - what is asked of posternd. All return 0 or -errno.
#pragma once

#include "family/family.h"

namespace postern {

bool DaemonAlive();  // no system call
// Connects to posternd by its path or, where that can't be reached (any more), by its abstract
// name, if it is of that user or root.
long CtlReach(int fd, uint32_t uid);
int CtlListen(pstn_ep& ep, int fd);
int CtlUnlisten(pstn_ep& ep);
// `known`: the link groups with that stack that are full.
int CtlIntroduce(const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx);
void CtlReap(uint32_t slot, uint32_t pid);  // a child that has been waited for
int CtlExport(const pstn_ep& ep, int fd);   // has the stack's keeper take over the connection
int CtlExportOf(uint32_t pid, int target,
                int fd);          // the same for number `target` of another family's process
void CtlDrain();                  // takes what posternd pushed
uint8_t* MapLgrOf(uint32_t idx);  // EnsureLgr, where it is not mapped
// In a child of fork: lets its parent's line go, and later has one of its own.
void CtlForked();
void CtlAfterFork();
void CtlReconnect();  // if posternd is gone and enough time has passed
// From now on waits under a lock that forbids them are noticed (CheckMayWait).
void WatchLocks();

}  // namespace postern
