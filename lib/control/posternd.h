// SPDX-License-Identifier: Apache-2.0
// posternd.h - what is asked of posternd. All return 0 or -errno.
#pragma once

#include "family/family.h"

namespace postern {

Reason WhyNoDaemon(const Family& fam);  // of a socket, where none is to be had
bool DaemonAlive(Family& fam);          // no system call
// Connects to posternd by its path or, where that can't be reached (any more), by its abstract
// name, if it is of that user or root.
long CtlReach(Family& fam, int fd, uint32_t uid);
// From now on it is the one of that network namespace. False: it is already, or there can be none.
bool GoToNamespace(Family& fam, uint64_t netns_ino);
int CtlListen(Family& fam, pstn_ep& ep, int fd);
// The memory in which clients of the server behind that link group count, or (kOwnQueues) those of
// our own stack, is here as our posternd has it; if not, that is asked.
int CtlQueues(Family& fam, uint32_t which);
int CtlUnlisten(Family& fam, pstn_ep& ep);
// `known`: the link groups with that stack that are full.
int CtlIntroduce(Family& fam, const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx);
// Others' listeners on that port are in the directory from now on, if there are any.
int CtlSeek(Family& fam, uint16_t port);
void CtlReap(Family& fam, uint32_t slot, uint32_t pid);  // a child that has been waited for
int CtlExport(Family& fam, const pstn_ep& ep,
              int fd);  // has the stack's keeper take over the connection
// ... to go on with it in the stack `to` (life/meet.h).
int CtlHandOn(Family& fam, const pstn_ep& ep, int fd, const pstn_uuid& to, uint32_t* place,
              uint32_t* place_gen, uint32_t* tag);
int CtlExportOf(Family& fam, uint32_t pid, int target,
                int fd);     // the same for number `target` of another family's process
void CtlLeave(Family& fam);  // the line is over: the process leaves the family
void CtlDrain(Family& fam);  // takes what posternd pushed
uint8_t* MapLgrOf(Family& fam, uint32_t idx);    // EnsureLgr, where it is not mapped
uint8_t* AwaitLgrOf(Family& fam, uint32_t idx);  // AwaitLgr, where it is not mapped
// In a child of fork: lets its parent's line go, and later has one of its own.
void CtlForked(Family& fam);
void CtlAfterFork(Family& fam);
void CtlReconnect(Family& fam);  // if posternd is gone and enough time has passed
// From now on waits under a lock that forbids them are noticed (CheckMayWait).
void WatchLocks(Family& fam);

}  // namespace postern
