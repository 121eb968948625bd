/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* kmod_abi.h - what a process asks of postern.ko (C11 = C++20 = kernel C). */
/*
 * Three kinds of descriptor, each with its own requests (docs/kmod.md):
 *
 *   /dev/postern    PSTN_IOC_VERSION, PSTN_IOC_STACK
 *   a stack         PSTN_IOC_JOIN, PSTN_IOC_LINK, PSTN_IOC_ENDPOINT, PSTN_IOC_RELEASED,
 *                   PSTN_IOC_MEMBER, PSTN_IOC_BELLS, and of whoever has it PSTN_IOC_WAKE and
 *                   PSTN_IOC_WAIT; poll(): readable when PSTN_IOC_RELEASED has something to say
 *   an endpoint     is a socket: every call on sockets, and PSTN_IOC_GO, PSTN_IOC_RING,
 *                   PSTN_IOC_WHAT
 *
 * A request that returns a descriptor returns it as ioctl()'s value. Every argument has its size in
 * its request's number, so that a module knows what an older or newer library means. Fields named
 * `zero` are 0, and anything else is EINVAL.
 *
 * Errors of all: ENOTTY, an unknown request or the wrong kind of descriptor; EFAULT; EINVAL; EPERM,
 * the caller's effective user is not the stack's owner; ENOMEM; EDQUOT, a limit of the user.
 */
#ifndef POSTERN_KMOD_ABI_H
#define POSTERN_KMOD_ABI_H

#include "postern_abi.h"

#ifdef __KERNEL__
#include <linux/ioctl.h>
#else
#include <sys/ioctl.h>
#endif

#define PSTN_KMOD_DEVICE "/dev/postern"
/* Changes when a request changes its meaning; new requests are seen in `features`. */
#define PSTN_KMOD_VERSION 1u

struct pstn_ioc_version {
  pstn_u32 kmod_version; /* PSTN_KMOD_VERSION of the module */
  pstn_u32 abi_version;  /* PSTN_ABI_VERSION that it knows: of no other stack is it the module */
  pstn_u64 features;     /* PSTN_KMOD_HAS_* */
};
#define PSTN_KMOD_HAS_STREAM 1ull /* AF_INET and AF_INET6, SOCK_STREAM */
/* PSTN_IOC_MEMBER, PSTN_IOC_BELLS, PSTN_IOC_WAKE and PSTN_IOC_WAIT; it posts to event maps, and
 * rings the doorbells of the library's event sets */
#define PSTN_KMOD_HAS_LIBRARY 2ull

/* Returns a descriptor of the stack whose memory `memfd` is: of the one that there is, if another
 * process has asked before. EINVAL: no sealed memory, no stack of this version. */
struct pstn_ioc_stack {
  pstn_u32 memfd;
  pstn_u32 flags; /* PSTN_STACK_* */
};
#define PSTN_STACK_CLOEXEC 1u

/* This process is the one of slot `slot`: the module judges by it whether a lock's owner lives. The
 * descriptor has to be this process's own, and is kept for as long as it uses the stack: without it
 * the process counts as dead. EBUSY: another process has asked for the descriptor. EINVAL: there is
 * no such slot. */
struct pstn_ioc_join {
  pstn_u32 slot;
  pstn_u32 zero;
};

/* Entry `lgr_idx` of the stack's table is the link group whose memory `memfd` is, of which the
 * stack is `side`. EINVAL: it isn't; EBUSY: another stack is that side, or another link group is
 * that entry. Once more of the same is no error. */
struct pstn_ioc_link {
  pstn_u32 memfd;
  pstn_u32 lgr_idx;
  pstn_u32 side;
  pstn_u32 zero;
};

/* Returns a socket, as socket(family, type, protocol) would: the kernel's, until PSTN_IOC_GO.
 * `type` may have SOCK_CLOEXEC and SOCK_NONBLOCK. EPFNOSUPPORT, EPROTONOSUPPORT: not such a one. */
struct pstn_ioc_endpoint {
  pstn_u32 family;
  pstn_u32 type;
  pstn_u32 protocol;
  pstn_u32 zero;
};

/* The socket is end `ep_idx` of connection `conn_idx` of the link group `lgr_idx`, from now on and
 * for good: calls read and write the rings. `gen`: pstn_conn_setup.gen. EISCONN: it is one already,
 * or the kernel's socket is connected or listens; EBUSY: another socket is that end; ESTALE: that
 * connection is another one by now. This end's ctl.flags then has PSTN_CF_MODULE. */
struct pstn_ioc_go {
  pstn_u32 ep_idx;
  pstn_u32 lgr_idx;
  pstn_u32 conn_idx;
  pstn_u32 gen;
  struct pstn_addr local, peer; /* what getsockname() and getpeername() say */
};

/* Wakes what sleeps in the kernel at the other end of this connection: the value is PSTN_RING_DATA,
 * PSTN_RING_SPACE or both. To be called if the other end's rx_wait had PSTN_RXW_MODULE, or its
 * tx_wait PSTN_TXW_MODULE, when the caller took the word to 0. Anybody who has the socket may; who
 * rings in vain wakes a sleeper that looks, and sleeps on. ENOTCONN: not accelerated. */
#define PSTN_RING_DATA 1u
#define PSTN_RING_SPACE 2u

/* What a descriptor is; ENOTTY of any other socket (as of a file of any other kind). */
struct pstn_ioc_what {
  struct pstn_uuid stack;
  pstn_u32 owner;       /* uid, in the caller's user namespace */
  pstn_u32 accelerated; /* 1: the indices below mean something */
  pstn_u32 ep_idx, lgr_idx, conn_idx, side;
};

/* Endpoints of the stack whose socket's last descriptor is gone, each told once. The connection has
 * its FIN or RST already; what it has in the stack's tables is the family's to give back. */
struct pstn_ioc_released {
  pstn_u32 count; /* how many there are; the rest is told by the next request */
  pstn_u32 more;  /* how many are left */
  pstn_u32 ep_idx[62];
};

/* PSTN_IOC_MEMBER returns one more descriptor of the stack, the calling process's own: a child's,
 * or the next image's, from the one that it has inherited. */

/* The doorbells of the stack's peers are rung out of `fd`, an AF_UNIX datagram socket, also when
 * its process has gone. Without, they are rung in the network namespace of the socket whose call
 * brings the news. EINVAL: not such a socket. */
struct pstn_ioc_bells {
  pstn_u32 fd;
  pstn_u32 zero;
};

/* Wakes what sleeps in the module at connection `conn_idx` of link group `lgr_idx` of the stack: at
 * the other end, or with PSTN_RING_OWN at this one. As PSTN_IOC_RING, from a process that has no
 * socket of that connection. EINVAL: no such link group. */
#define PSTN_RING_OWN 4u
struct pstn_ioc_wake {
  pstn_u32 lgr_idx;
  pstn_u32 conn_idx;
  pstn_u32 what; /* PSTN_RING_* */
  pstn_u32 zero;
};

/* Sleeps as FUTEX_WAIT does: while this end's ctl.rx_wait (`what` PSTN_RING_DATA) or ctl.tx_wait
 * (PSTN_RING_SPACE) is `value`, until woken. 0: it was; EAGAIN: the word is another; ETIMEDOUT;
 * EINTR: a signal's handler has run. Without an end it goes on behind a handler with SA_RESTART. */
struct pstn_ioc_wait {
  pstn_u32 lgr_idx;
  pstn_u32 conn_idx;
  pstn_u32 what;
  pstn_u32 value;
  pstn_u64 timeout_ns; /* PSTN_WAIT_FOREVER: no end */
};
#define PSTN_WAIT_FOREVER (~0ull)

#define PSTN_IOC_NR 0xb8
#define PSTN_IOC_VERSION _IOR(PSTN_IOC_NR, 0, struct pstn_ioc_version)
#define PSTN_IOC_STACK _IOW(PSTN_IOC_NR, 1, struct pstn_ioc_stack)
#define PSTN_IOC_JOIN _IOW(PSTN_IOC_NR, 2, struct pstn_ioc_join)
#define PSTN_IOC_LINK _IOW(PSTN_IOC_NR, 3, struct pstn_ioc_link)
#define PSTN_IOC_ENDPOINT _IOW(PSTN_IOC_NR, 4, struct pstn_ioc_endpoint)
#define PSTN_IOC_RELEASED _IOR(PSTN_IOC_NR, 5, struct pstn_ioc_released)
#define PSTN_IOC_MEMBER _IO(PSTN_IOC_NR, 6)
#define PSTN_IOC_BELLS _IOW(PSTN_IOC_NR, 7, struct pstn_ioc_bells)
#define PSTN_IOC_WAKE _IOW(PSTN_IOC_NR, 8, struct pstn_ioc_wake)
#define PSTN_IOC_WAIT _IOW(PSTN_IOC_NR, 9, struct pstn_ioc_wait)
#define PSTN_IOC_GO _IOW(PSTN_IOC_NR, 16, struct pstn_ioc_go)
#define PSTN_IOC_RING _IO(PSTN_IOC_NR, 17)
#define PSTN_IOC_WHAT _IOR(PSTN_IOC_NR, 18, struct pstn_ioc_what)

/* What the module writes into shared memory beside what postern_abi.h names. */
/* pstn_lock.word while a call in the module has the lock: the reaper's mark, and no thread. Its
 * owner is never dead, and gives it back without waiting for anything but memory. */
#define PSTN_LOCK_MODULE (PSTN_LOCK_REAPER << PSTN_LOCK_SLOT_SHIFT)
#define PSTN_RXW_MODULE 2u /* ctl.rx_wait: somebody of this side sleeps in the module for data */
#define PSTN_TXW_MODULE 4u /* ctl.tx_wait: ... for space */

PSTN_STATIC_ASSERT(sizeof(struct pstn_ioc_go) == 64, "two names and four words");
PSTN_STATIC_ASSERT(sizeof(struct pstn_ioc_released) == 256, "four lines");

#endif /* POSTERN_KMOD_ABI_H */
