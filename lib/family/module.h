// SPDX-License-Identifier: Apache-2.0
// module.h - the kernel module, as a process of a stack at level 2 has it (docs/kmod.md).
//
// A stack is at level 2 from its making on or never (pstn_stack_hdr.module): then each of its
// processes has a descriptor of the stack's in the module, Bells::module, because what sleeps in
// the module is woken by each process that brings news.
#pragma once
#include "family/family.h"

namespace postern {

// Its descriptor's place among those of the link groups in POSTERN_ATTACH.
inline constexpr uint32_t kModuleInAttach = 0xffff;

inline bool AtLevel2(Family& fam) { return fam.bells.module >= 0; }
// Of the stack in `stack_fd`, which this process has just made: asks for the module, if the options
// say so, and writes into the header what has come of it.
void ModuleFind(Family& fam, int stack_fd);
// This process has come to its stack, and `inherited` is a descriptor of the module's for it, or
// -1. False: the stack is at level 2, and this process can't be.
bool ModuleJoin(Family& fam, int inherited);
void ModuleForked(Family& fam);  // in a child that has its slot
void ModuleLeave(Family& fam);
// The module is to know the link group, entry `ref` of the stack's table, before this process looks
// at it: the peer counts on that (pstn_lgr_hdr.module). False: the module refuses it.
bool ModuleLink(Family& fam, pstn_lgr_ref& ref, int fd);
// As socket(). Where the module gives none, for whatever reason, it is the kernel's.
int ModuleSocket(Family& fam, int family, int type);
// Whether both stacks of the link group have the module.
bool BothHaveModule(const pstn_lgr_ref& ref, uint8_t* lgr);
// The module's socket `fd` is the end of connection that `ep` has, from now on and for good. 0 or
// -errno.
long ModuleGo(Family& fam, int fd, const pstn_ep& ep);

}  // namespace postern
