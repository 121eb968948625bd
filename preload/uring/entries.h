// SPDX-License-Identifier: Apache-2.0
// entries.h - an io_uring does what the kernel does, and that knows only the kernel's half of an
// accelerated socket. So each entry that names a descriptor is looked at before the kernel has it.
//
// An entry that adds a descriptor to an event set (IORING_OP_EPOLL_CTL, libuv's way) is carried out
// here, and the kernel gets one with the same result in its place. With any other entry that names
// a descriptor of ours, the process steps aside: all its sockets become the kernel's, and new ones
// stay there (StepAside, leaving.h). A process steps aside at once for a ring whose entries can't
// be seen before the kernel has them.
//
// Which rings can be followed: those made by libc's syscall(), without a thread of the kernel's
// (IORING_SETUP_SQPOLL); and those of a shared liburing, whose io_uring_submit() comes by here.
// A program that has the system call io_uring_setup in its own code is found by looking for it
// (code_scan.h).
#pragma once
#include <linux/io_uring.h>

#include <cstdint>

namespace postern {

// io_uring_setup by libc's syscall(). The kernel's result, or -EPERM if the option io_uring says
// so.
long RingSetup(unsigned entries, io_uring_params* params);
// Before io_uring_enter by libc's syscall().
void RingEnter(int ring, unsigned to_submit, unsigned flags);
// Before io_uring_register, by whichever way.
void RingRegister(unsigned op, const void* arg, unsigned count);
// Before the kernel gets this entry, of any ring.
void RingEntry(io_uring_sqe* entry);
// Whether entries are of any concern here: the process has something that the kernel does not know.
bool RingsMatter();

}  // namespace postern
