/* SPDX-License-Identifier: GPL-2.0 */
/* kmod.h - the objects of postern.ko and what they know of each other. */
/*
 *   descriptor of a stack (struct pstn_member, one a file)  ---+
 *                                                              v
 *   socket (struct pstn_endpoint) -----------------------> struct pstn_stack --> its memory
 *        |                                                     | seats, by index
 *        +--> end `side` of connection `conn_idx` <------ struct pstn_link ---> its memory
 *
 * An arrow holds a reference. A stack lives as long as a descriptor of it or a socket does; a link
 * group as long as one of its two stacks does.
 *
 * Locks, outermost first: pstn_lists (all lists, who sits where), pstn_endpoint.rx_mutex or
 * tx_mutex (one reader and one writer of the kernel at a time), a lock word in shared memory
 * (shared_lock.c), the spin lock of pstn_link.ends. Under a lock word nothing is waited for but
 * memory. What is (c) never changes once the object can be found.
 */
#ifndef PSTN_KMOD_H
#define PSTN_KMOD_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/refcount.h>
#include <linux/timer.h>
#include <linux/uidgid.h>
#include <linux/xarray.h>

#include "ring/record_ring.h"

#ifdef CONFIG_HIGHMEM
#error "pages of shared memory are used by page_address()"
#endif

/* ---- user_limits.c: what one user may have. */

enum pstn_limit { PSTN_LIMIT_STACKS, PSTN_LIMIT_LINKS, PSTN_LIMIT_ENDPOINTS, PSTN_LIMITS };

struct pstn_user {
	struct list_head node; /* under the mutex of user_limits.c */
	refcount_t refs;
	kuid_t uid; /* (c) */
	atomic_t counts[PSTN_LIMITS];
};

struct pstn_user *pstn_user_get(kuid_t uid); /* NULL: no memory */
void pstn_user_put(struct pstn_user *user);
int pstn_user_charge(struct pstn_user *user, enum pstn_limit limit); /* 0 or -EDQUOT */
void pstn_user_uncharge(struct pstn_user *user, enum pstn_limit limit);

/* ---- segment.c: sealed memory that a process has named. */

struct pstn_segment {
	struct file *file; /* (c) */
	u64 bytes;         /* (c) its seals keep it */
};

int pstn_segment_open(struct pstn_segment *seg, unsigned int memfd);
void pstn_segment_close(struct pstn_segment *seg);
bool pstn_segment_same(const struct pstn_segment *a, const struct pstn_segment *b);
/* The page at `off`, held; ERR_PTR. */
struct page *pstn_segment_page(const struct pstn_segment *seg, u64 off);
void pstn_segment_put(struct page *page, bool written);
/* Copies `n` bytes at `off`, once. */
int pstn_segment_read(const struct pstn_segment *seg, u64 off, void *to, size_t n);

/* ---- stack_object.c */

struct pstn_layout {
	u64 eps, lgrs, bytes;
};

#define PSTN_STACK_SLOTS 510 /* of the largest stack (lib/state/limits.h) */

struct pstn_stack {
	struct list_head node;           /* pstn_stacks */
	refcount_t refs;                 /* its last put is under pstn_lists */
	struct pstn_segment seg;         /* (c) */
	struct pstn_user *user;          /* (c) the owner */
	struct pstn_uuid id;             /* (c) as it was when the stack was made known: a name */
	struct pstn_stack_counts counts; /* (c) */
	struct pstn_layout layout;       /* (c) */
	struct inode *inode;             /* (c) in posternfs */
	u64 serial;                      /* (c) */
	struct xarray seats;             /* of struct pstn_seat, by lgr_idx; written under pstn_lists */
	struct list_head members;        /* under pstn_lists */
	/* Slots that a process has ever joined, under pstn_lists. */
	DECLARE_BITMAP(joined, PSTN_STACK_SLOTS);
	spinlock_t released_lock;
	struct list_head released;       /* of endpoints, under released_lock */
	u32 released_count;              /* likewise */
	wait_queue_head_t released_wait;
	spinlock_t bells_lock;
	struct file *bells; /* a socket out of which doorbells are rung, or NULL; under bells_lock */
};

/* A process that has made the stack known by a descriptor of its own. */
struct pstn_member {
	struct list_head node, all; /* stack->members, pstn_members */
	struct pstn_stack *stack;   /* (c) */
	struct pid *tgid;           /* (c) */
	u32 slot;                   /* (a) PSTN_NONE: it has not said */
};

extern struct mutex pstn_lists;
extern struct list_head pstn_stacks, pstn_members, pstn_endpoints;

int pstn_stack_open(const struct pstn_ioc_stack *arg); /* a descriptor, or an error */
void pstn_stack_put(struct pstn_stack *stack);
/* 0, or -EPERM: the caller is not the owner. */
int pstn_stack_may(const struct pstn_stack *stack);
/* Whether the holder of a lock that bears `word` may still be there. */
bool pstn_stack_holder_lives(struct pstn_stack *stack, u32 word);

/* ---- link_object.c */

struct pstn_link {
	struct list_head node;      /* under pstn_lists */
	refcount_t refs;            /* likewise */
	struct pstn_segment seg;    /* (c) */
	struct pstn_stack *side[2]; /* who sits there, under pstn_lists; not held */
	struct xarray ends[2];      /* of struct pstn_endpoint, by conn_idx */
};

struct pstn_seat {
	struct pstn_link *link; /* (c) */
	u32 side;               /* (c) */
};

int pstn_link_sit(struct pstn_stack *stack, const struct pstn_ioc_link *arg);
void pstn_link_leave(struct pstn_stack *stack); /* all of its seats, under pstn_lists */
/* The seat of an index that may say anything; NULL: there is none. */
struct pstn_seat *pstn_link_seat(struct pstn_stack *stack, u32 lgr_idx);
/* Wakes what sleeps at that end: PSTN_RING_*. */
void pstn_link_wake(struct pstn_link *link, u32 side, u32 conn_idx, unsigned int what);

/* ---- shared_lock.c: a lock word in the stack's memory. */

/* Takes it. 0; 1: from an owner that died with it; -EAGAIN: its owner has had it for 20 ms, and
 * lives. Does not look at signals.
 */
int pstn_shared_lock(struct pstn_stack *stack, u32 *word);
void pstn_shared_unlock(u32 *word);

/* ---- endpoint_socket.c, socket_env.c, socket_wait.c, socket_stream.c */

#define PSTN_END_PAGES 4 /* two that the endpoint's entry may lie in, two of the connection's */

struct pstn_endpoint {
	struct list_head node;          /* pstn_endpoints, or stack->released */
	struct pstn_stack *stack;       /* (c) held until the socket's release */
	struct socket *sock;            /* (c) until the socket's release */
	const struct proto_ops *native; /* (c) */
	int accelerated;                /* 1: what follows is there, and never changes; [M1] */
	u32 ep_idx, lgr_idx, conn_idx, gen, side;
	struct pstn_addr local, peer;
	struct pstn_seat *seat; /* the stack's: it keeps it as long as it lives */
	struct page *pages[PSTN_END_PAGES];
	unsigned int page_count;
	struct pstn_end lines; /* with no env: each call has its own */
	const u32 *place;      /* lgr_idx, conn_idx and conn_gen of the endpoint's entry */
	int polled;            /* (a) 1: an event set or a poll() may wait here for the next bell */
	struct timer_list held_timer; /* what the peer holds back can be read then */
	struct mutex rx_mutex, tx_mutex;
};

int pstn_socket_init(void);
void pstn_socket_exit(void);
int pstn_endpoint_open(struct pstn_stack *stack, const struct pstn_ioc_endpoint *arg);
/* Under the spin lock of link->ends. */
void pstn_endpoint_wake(struct pstn_endpoint *ep, unsigned int what);
void pstn_endpoint_free(struct pstn_endpoint *ep);

/* A call on an accelerated endpoint. */
struct pstn_env {
	struct pstn_endpoint *ep;
	struct pstn_end end;
	struct page *ring, *ref;
	u64 ring_at, ref_at;
	bool ring_written;
	bool starved; /* there was no memory for a page */
};

bool pstn_endpoint_is_here(const struct pstn_endpoint *ep);
/* False: the connection is another one by now. */
bool pstn_env_begin(struct pstn_env *env, struct pstn_endpoint *ep);
void pstn_env_end(struct pstn_env *env);

/* Tells the other end of news, and wakes it if it sleeps in the kernel: PSTN_RING_*. */
void pstn_endpoint_tell(struct pstn_endpoint *ep, unsigned int what);
/* Sleeps until there is what is waited for, PSTN_RING_DATA behind `have` bytes or PSTN_RING_SPACE,
 * or the connection ends. -EAGAIN: `timeo` is over.
 */
int pstn_endpoint_wait(struct pstn_endpoint *ep, unsigned int what, size_t have, long *timeo);
__poll_t pstn_endpoint_poll(struct pstn_endpoint *ep, struct file *file, poll_table *wait);
/* The peer has reset the connection: sk_err says so, once. */
void pstn_endpoint_note_reset(struct pstn_endpoint *ep, struct pstn_end *e);
void pstn_endpoint_held_timer(struct timer_list *timer);

int pstn_stream_recvmsg(struct pstn_endpoint *ep, struct msghdr *msg, size_t size, int flags);
int pstn_stream_sendmsg(struct pstn_endpoint *ep, struct msghdr *msg, size_t size);
int pstn_stream_shutdown(struct pstn_endpoint *ep, int how);
int pstn_stream_ioctl(struct pstn_endpoint *ep, unsigned int cmd, unsigned long arg);
void pstn_stream_close(struct pstn_endpoint *ep);

/* ---- library_sleep.c: threads of the library that sleep in the module. */

void pstn_sleepers_init(void);
int pstn_sleepers_wait(struct pstn_stack *stack, const struct pstn_ioc_wait *arg);
void pstn_sleepers_wake(struct pstn_link *link, u32 side, u32 conn_idx, unsigned int what);

/* ---- library_post.c: event sets of the library at the other end. */

/* Posts news to what the other end's library waits with: PSTN_RING_*. May sleep for memory. */
void pstn_library_post(struct pstn_endpoint *ep, unsigned int what);
int pstn_library_bells(struct pstn_stack *stack, const struct pstn_ioc_bells *arg);

/* ---- posternfs.c, proc_list.c, compat/ */

int pstn_fs_init(void);
void pstn_fs_exit(void);
struct inode *pstn_fs_inode(u64 serial); /* NULL: no memory */
struct file *pstn_fs_file(struct inode *inode, const struct file_operations *fops, void *private);

int pstn_proc_init(void);
void pstn_proc_exit(void);

#endif
