// image.h - whether the image that a process runs is about to take a family's slot over.
// SPDX-License-Identifier: Apache-2.0
//
// From exec() until the library's constructor a process has no memory of its family mapped. That
// may take any time: a stopped process, a busy machine, a sanitizer, a slow file system. So no
// clock can say that an image will not come, but the kernel knows what it was started with, and
// how far the loader is:
//
//   exec() under way                                     it may come
//   its environment does not name the slot, or the
//     descriptor there is not the family's memory        it does not
//   static, or the loader ignores LD_PRELOAD             it does not
//   the library is mapped                                it comes: else it blanks the variable
//   nothing is mapped but the program and its loader     it may come
//   other libraries are                                  it does not: LD_PRELOAD's are first
//
// The last answer is too early while the loader is between two files of LD_PRELOAD, and each of
// them may be out of date when it is used: "no" counts only if it stays.
#pragma once
#include <sys/types.h>

#include <cstdint>

namespace postern::daemon {

bool MayTakeSlotOver(pid_t pid, uint64_t stack_inode, uint32_t slot);

}  // namespace postern::daemon
