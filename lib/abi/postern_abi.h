/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* postern_abi.h - layout of the memory that Postern's processes share (C11 = C++20 = kernel C). */
/*
 * Four kinds of segment, each a sealed memfd; docs/shared-state.md draws them:
 *
 *   stack       one family of processes (fork, exec), which trust each other
 *   link group  one for each (client stack, server stack) pair that has met, and more when it is
 *               full; both write it, and neither believes what the other wrote
 *   directory   written by posternd, mapped read-only by all programs
 *   queues      one for each stack that listens; written by it and by the stacks that have met it
 *               as clients, and believed by none
 *
 * Everything is addressed by index; nothing here is a pointer. A key behind each field names its
 * writer: (c) constant after create, (a) atomic, any owner, (l:x) under lock x (PSTN_GUARDED_BY
 * says that, too, where the lock lies beside the field), (o) its owner.
 * A "pos" is a free-running count, an "off" a byte offset, an "idx" a table index (~0 = none).
 */
#ifndef POSTERN_ABI_H
#define POSTERN_ABI_H

#ifdef __KERNEL__
#include <linux/types.h>
typedef u64 pstn_u64;
typedef u32 pstn_u32;
typedef u16 pstn_u16;
typedef u8 pstn_u8;
#else
#include <stdint.h>
typedef uint64_t pstn_u64;
typedef uint32_t pstn_u32;
typedef uint16_t pstn_u16;
typedef uint8_t pstn_u8;
#endif

#include "thread_safety.h"

#ifdef __cplusplus
#define PSTN_STATIC_ASSERT(c, m) static_assert(c, m)
#define PSTN_LINE alignas(64)
#else
#define PSTN_STATIC_ASSERT(c, m) _Static_assert(c, m)
#define PSTN_LINE __attribute__((aligned(64)))
#endif

#define PSTN_ABI_VERSION 18u
#define PSTN_MAGIC_STACK 0x6b6e7473u /* "stnk" */
#define PSTN_MAGIC_LGR 0x72676c70u   /* "plgr" */
#define PSTN_MAGIC_DIR 0x72696470u   /* "pdir" */
#define PSTN_NONE 0xffffffffu

/* Limits of what two stacks share, and of single entries. The tables of a stack have the sizes that
 * its header says (pstn_stack_counts). All are sparse: an untouched page costs nothing. */
#define PSTN_CONNS 4096u       /* connections of one link group */
#define PSTN_PAIR_LGRS 32u     /* link groups of a client stack with one server stack */
#define PSTN_WAITERS 2048u     /* event sets and poll()ing threads of one stack */
#define PSTN_FDCHUNK_FDS 1024u /* fds in one chunk of a process's fd table */
#define PSTN_SLOT_CHUNKS 1024u /* chunks of one process: 1,048,576 fds, the kernel's nr_open */
#define PSTN_COUNTERS 128u
#define PSTN_OPTIONS_BYTES 4096u

struct pstn_uuid {
  pstn_u64 hi, lo;
};

/* Mutex that survives its owner: 0 = free; else bit 31: a thread sleeps, 30..22: slot + 1 of the
 * owner's process (PSTN_LOCK_REAPER: the family's reaper; 0: it has no slot yet), 21..0: its thread
 * id in its own PID namespace. See base/lock.h. */
#define PSTN_LOCK_SLOT_SHIFT 22
#define PSTN_LOCK_TID 0x3fffffu
#define PSTN_LOCK_REAPER 0x1ffu
struct PSTN_CAPABILITY("mutex") pstn_lock {
  pstn_u32 word; /* (a) */
};

/* References to an endpoint or a set, with what a process that may die is about to do to them. One
 * word, so that no death parts the two. Bits 29..0: how many. 62..54 name a process as in a lock's
 * word (0: nothing is under way), and 53..30 say:
 *   PSTN_REFS_ALONE  it is in that process's hands alone: taken from its pool and in no table or
 *                    list yet, or on its way back. Whoever reaps the process ends it.
 *   else             a place, chunk * PSTN_FDCHUNK_FDS + number: the process gives this entry of a
 *                    descriptor table and its reference to one another, or, with
 *                    PSTN_REFS_GIVES_UP, takes both away. The next holder of the lock completes it.
 * Of what has no references (`hands`), the name of the process alone. */
#define PSTN_REFS_COUNT 0x3fffffffull
#define PSTN_REFS_PLACE_SHIFT 30
#define PSTN_REFS_ALONE 0xffffffull
#define PSTN_REFS_MARK_SHIFT 54
#define PSTN_REFS_GIVES_UP (1ull << 63)

/* An address as sockets see it. IPv4 is kept v4-mapped (::ffff:a.b.c.d); port in host order. */
struct pstn_addr {
  pstn_u8 ip[16];
  pstn_u16 port;
  pstn_u16 zero;
  pstn_u32 scope;
};

/* ---------------------------------------------------------------- link group ---------------- */
/* Side 0 is the client (its processes call connect), side 1 the server. Two stacks that connect to
 * each other both ways have two link groups; a stack that talks to itself has one and both sides.
 */

/* Where one side hears which of its connections changed: a two-level bitmap. The peer sets the bit
 * of the connection, then the bit of its word in `summary`, then rings if `sleeping`. A bit is a
 * hint only: a wrong one costs a look, so a hostile peer gains nothing by setting them all. */
struct PSTN_LINE pstn_evmap {
  pstn_u64 summary;  /* (a) */
  pstn_u32 sleeping; /* (a) 1: owner is going to sleep or sleeps; the ringer takes it to 0 */
  pstn_u32 in_use;   /* (a) PSTN_EV_* */
  pstn_u64 nonce;    /* (a) as in pstn_waiter */
  pstn_u64 pad[5];
  pstn_u64 leaf[PSTN_CONNS / 64]; /* (a) */
};
#define PSTN_EV_USED 1u    /* owner listens here */
#define PSTN_EV_SYN 2u     /* ring it for new connections too: it waits for a listener */
#define PSTN_EVMAP_SYN 0u  /* server side: connections that wait to be admitted to a listener */
#define PSTN_EVMAP_WIRE 1u /* connections whose other end is the engine (offhost/wire.h) */
#define PSTN_EVMAP_ALL (PSTN_WAITERS - 1u) /* connections with more than one waiter, or none's */
/* connections whose peer holds bytes back (pstn_conn_ctl.held): of this map only the bits count */
#define PSTN_EVMAP_HELD (PSTN_WAITERS - 2u)

/* Rarely written by its side, so that it stays shared in the other side's cache. */
struct PSTN_LINE pstn_conn_ctl {
  pstn_u64 ring;      /* (o) where this side's transmit ring is; PSTN_RING_* below; 0 = none */
  pstn_u32 flags;     /* (a) PSTN_CF_* */
  pstn_u32 rx_notify; /* (a) 0: no post; w + 1: post to evmap w; PSTN_NOTIFY_ALL: see there */
  pstn_u32 rx_wait;   /* (a) futex: 1 = a thread of this side sleeps until data or flags come */
  pstn_u32 tx_wait;   /* (a) PSTN_TXW_*: this side wants to hear of returned space */
  pstn_u32 gen;       /* (o) the connection's generation as this side knows it */
  /* (o) bytes that this side's SO_RCVBUF has room for; 0: it is not set. Of the engine's:
   * kLastSegmentBytes in offhost/wire.h, and with TCP_NOTSENT_LOWAT what is under way */
  pstn_u32 rcv_room;
  pstn_u64 urgent;    /* (o) the urgent byte (endpoint/marks.h); 0 = none yet */
  pstn_u64 prev_ring; /* (o) the ring before `ring`, if that has PSTN_RING_F_SWITCH */
  pstn_u64 syn_ns;    /* (o: client) CLOCK_MONOTONIC of its connect(): the order of accept queues */
  union {
    /* (o) the peer is the engine: stream position behind the last write with MSG_MORE or MSG_EOR,
     * << 1; bit 0: it was MSG_EOR; 0 = none yet */
    pstn_u64 more;
    /* (a) else: CLOCK_MONOTONIC when the peer may read what this side holds back (smcd/hold.h), and
     * PSTN_HELD_CORK; 0: it holds nothing back. The peer writes PSTN_HELD_OVER. */
    pstn_u64 held;
  };
};
#define PSTN_HELD_CORK 1ull     /* by TCP_CORK: what the peer sends does not end it */
#define PSTN_HELD_OVER 2ull     /* a time that has passed */
#define PSTN_HELD_NEVER (~0ull) /* it was reset, and they are lost */

/* Written at each receive by the reading side: its read offset in the peer's ring. */
struct PSTN_LINE pstn_conn_pos {
  /* (o) generation of the ring << 32 | read offset in it, one word so that they agree */
  pstn_u64 read;
  pstn_u64 zero[7];
};

/* Written by the client before the SYN; read by the server at admission. */
struct PSTN_LINE pstn_conn_setup {
  pstn_u32 state; /* (a) PSTN_CS_* */
  pstn_u32 gen;   /* (a) the client's */
  pstn_u32 listener_idx;
  pstn_u32 listener_gen;
  struct pstn_addr client, server;
};

struct pstn_conn {
  struct pstn_conn_setup setup;
  struct pstn_conn_ctl ctl[2];
  struct pstn_conn_pos pos[2];
};

enum {
  PSTN_CS_FREE = 0,
  PSTN_CS_SYN = 1,         /* client has connected; server has not admitted it yet */
  PSTN_CS_ESTABLISHED = 2, /* server has an endpoint for it */
  PSTN_CS_REFUSED = 3,     /* server had no such listener, or died */
  PSTN_CS_CLIENT_GONE = 4, /* client closed for good; the server, closing, frees */
  PSTN_CS_SERVER_GONE = 5, /* server closed for good; the client, closing, frees */
  PSTN_CS_SYN_GONE = 6,    /* client closed for good before the server has admitted it */
  /* Filled in by a client whose handshake (smcd/clc_fsm.h) is not over: becomes SYN when the
   * server's posternd has attached it, or FREE when the client withdraws it; the second of
   * the two finds out. */
  PSTN_CS_OFFERED = 7,
  /* The listener's queue is full: connect() is not over. Becomes SYN when the server or, if there
   * is room already, the client has taken a place for it, or SERVER_GONE. */
  PSTN_CS_WAITS = 8
};

#define PSTN_CF_FIN 1u      /* done writing: data, then EOF */
#define PSTN_CF_RST 2u      /* abnormal close */
#define PSTN_CF_CLOSED 4u   /* this side has closed: it will read no more */
#define PSTN_CF_RD_SHUT 8u  /* shutdown() of both directions: data meets a RST */
#define PSTN_CF_REFUSED 16u /* the client was not admitted: no such listener, or no room */
/* server: the accepted socket has these options from its listener, which a bind() to its port
 * asks (peer/port.h) */
#define PSTN_CF_REUSEADDR 32u
#define PSTN_CF_REUSEPORT 64u
#define PSTN_CF_SECOND 128u /* this side has closed when the other had ended: no TIME_WAIT is its */
/* the kernel module has this end (abi/kmod_abi.h): what sleeps at the other end does so where the
 * module can wake it */
#define PSTN_CF_MODULE 256u

#define PSTN_TXW_FUTEX 1u /* a thread sleeps on tx_wait */
#define PSTN_TXW_POST 2u  /* post to rx_notify's evmap */

/* post to evmap PSTN_EVMAP_ALL: the first thread of the side that comes by tells its waiters, which
 * only the side itself knows */
#define PSTN_NOTIFY_ALL 0xffffu
#define PSTN_NOTIFY_SYN 1u /* = PSTN_EVMAP_SYN + 1: as a new connection (TCP_DEFER_ACCEPT) */

/* Ring descriptor: generation 63..48, flags 47..44, class 43..40, page (4 KiB, from the segment's
 * start) 39..0. kSwitch: the ring of the generation before is valid up to its SWITCH mark. */
#define PSTN_RING_GEN_SHIFT 48
#define PSTN_RING_CLASS_SHIFT 40
#define PSTN_RING_F_SWITCH (1ull << 44)
/* Only in the memory of the family (pstn_tx.ring, pstn_rx.ring): steps of a move that has begun,
 * for the thread that takes over from a process that died in it (smcd/ring.cc). */
/* tx: this ring is used from now on, tell the reader so */
#define PSTN_RING_F_PENDING (1ull << 45)
#define PSTN_RING_F_FRESH (1ull << 46)     /* rx: the next record is this ring's first */
#define PSTN_RING_OLD_MARK_SHIFT 44        /* tx.old_ring: line of its SWITCH mark */
#define PSTN_RING_PLACE ((1ull << 40) - 1) /* the page; 0, the header page, is no ring's */

/* Record header, at 64-byte alignment: length of payload, or a marker. 0 = nothing here yet. */
#define PSTN_REC_HDR 8u
#define PSTN_REC_ALIGN 64u
#define PSTN_REC_WRAP 0x8000000000000001ull   /* go on at offset 0 */
#define PSTN_REC_SWITCH 0x8000000000000002ull /* go on at offset 0 of the ring in ctl.ring */
/* beside a length: it is held back, with all that follows, until the time in ctl.held */
#define PSTN_REC_HELD 0x4000000000000000ull

/* Slab of rings: each side owns one and gives its transmit rings out of it. */
#define PSTN_SLAB_CLASSES 3u
#define PSTN_RING0_BYTES 4096u
#define PSTN_RING1_BYTES 65536u
#define PSTN_RING2_BYTES 1048576u
#define PSTN_RING0_COUNT 4096u
#define PSTN_RING1_COUNT 1024u
#define PSTN_RING2_COUNT 128u

#define PSTN_PENDING 64u
/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a line for each writer */
struct pstn_lgr_hdr {
  pstn_u32 magic, abi_version;      /* (c) */
  pstn_u64 size_bytes;              /* (c) */
  struct pstn_uuid id;              /* (c) */
  struct pstn_uuid stack[2];        /* (c) */
  PSTN_LINE pstn_u32 side_dead[2];  /* (a) posternd: no process of that side is left */
  PSTN_LINE pstn_u32 waiters_hw[2]; /* (a) first evmap index that side never used */
  pstn_u32 conns_hw;                /* (a) first connection that was never used */
  pstn_u32 chunks[2];               /* (a) that side: as in its pstn_lgr_ref, for the other one */
  /* (a) not yet accepted, by listener modulo this, where pstn_lgr_ref.queued is 0 */
  PSTN_LINE pstn_u32 pending[PSTN_PENDING];
  /* (a) 1: the kernel module knows the link group from that side, all of whose processes can wake
   * what sleeps in it */
  PSTN_LINE pstn_u32 module[2];
};

#define PSTN_LGR_EVMAP_OFF 4096ull
#define PSTN_LGR_EVMAP_BYTES (2ull * PSTN_WAITERS * sizeof(struct pstn_evmap))
#define PSTN_LGR_CONN_OFF (PSTN_LGR_EVMAP_OFF + PSTN_LGR_EVMAP_BYTES)
#define PSTN_LGR_CONN_BYTES (1ull * PSTN_CONNS * sizeof(struct pstn_conn))
#define PSTN_ALIGN_UP(x, a) (((x) + (a)-1) / (a) * (a))
#define PSTN_LGR_SLAB_OFF PSTN_ALIGN_UP(PSTN_LGR_CONN_OFF + PSTN_LGR_CONN_BYTES, 1048576ull)
#define PSTN_SLAB_BYTES                                                                      \
  (1ull * PSTN_RING0_BYTES * PSTN_RING0_COUNT + 1ull * PSTN_RING1_BYTES * PSTN_RING1_COUNT + \
   1ull * PSTN_RING2_BYTES * PSTN_RING2_COUNT)
#define PSTN_LGR_BYTES (PSTN_LGR_SLAB_OFF + 2ull * PSTN_SLAB_BYTES)

/* ---------------------------------------------------------------- stack --------------------- */

/* One direction's private state: only the owning family sees it. Guarded by `lock`. */
struct PSTN_LINE pstn_tx {
  struct pstn_lock lock;
  pstn_u32 off PSTN_GUARDED_BY(lock);    /* next record goes here */
  pstn_u32 peer PSTN_GUARDED_BY(lock);   /* the reader's offset as last looked up */
  pstn_u32 window PSTN_GUARDED_BY(lock); /* from here on, see whether an early wrap is possible */
  pstn_u64 ring PSTN_GUARDED_BY(lock);   /* descriptor in use, as published in ctl.ring */
  pstn_u64 bytes PSTN_GUARDED_BY(lock);  /* payload sent */
  pstn_u32 records PSTN_GUARDED_BY(lock);
  pstn_u8 blocked PSTN_GUARDED_BY(lock); /* times in a row that the ring was too small */
  pstn_u8 holds PSTN_GUARDED_BY(lock);   /* 1: pstn_ep.hold may be in use */
  /* (a) lines that the program's SO_SNDBUF and TCP_NOTSENT_LOWAT let be unread, besides those that
   * the reader's SO_RCVBUF has room for; 0: neither is set */
  pstn_u16 budget;
  /* ring that the reader has still to leave, and the mark's line; 0 = none */
  pstn_u64 old_ring PSTN_GUARDED_BY(lock);
  /* ring bytes that are written at a time, before the reader has drained them */
  pstn_u32 burst PSTN_GUARDED_BY(lock);
  /* ring bytes written since the reader was last seen to have drained it */
  pstn_u32 since PSTN_GUARDED_BY(lock);
  pstn_u32 seen PSTN_GUARDED_BY(lock); /* `records` when the sweep of idle rings last came by */
  pstn_u32 step PSTN_GUARDED_BY(lock); /* from one look at the reader's offset to the next */
};

struct PSTN_LINE pstn_rx {
  struct pstn_lock lock;
  /* length of the record that is being read, as checked when first seen */
  pstn_u32 rec_len PSTN_GUARDED_BY(lock);
  union { /* (l) its fields are not the analysis's to see */
    struct {
      pstn_u32 off;      /* its header */
      pstn_u32 rec_done; /* (l) bytes of it given to the program */
    };
    pstn_u64 at; /* both, changed by one store: a reader may die before and after it */
  };
  pstn_u64 ring PSTN_GUARDED_BY(lock);  /* descriptor as checked */
  pstn_u64 bytes PSTN_GUARDED_BY(lock); /* payload received */
  /* bytes consumed since the writer was last considered */
  pstn_u32 unreturned PSTN_GUARDED_BY(lock);
  pstn_u32 gate PSTN_GUARDED_BY(lock); /* PSTN_RXG_* */
  /* position behind the urgent byte that was last heard of */
  pstn_u64 urgent_end PSTN_GUARDED_BY(lock);
  pstn_u32 after_end PSTN_GUARDED_BY(lock); /* payload received after the peer had closed */
  /* (a) `bytes` + 1 where a look has found data, which the peer can't take back; 0: nowhere */
  pstn_u32 told;
  pstn_u32 run PSTN_GUARDED_BY(lock); /* reads since the ring was last found empty */
  /* how long a reader that finds it so lets it fill (stream/io.cc) */
  pstn_u32 pause_ns PSTN_GUARDED_BY(lock);
};
#define PSTN_RXG_RESET 1u        /* ECONNRESET was reported */
#define PSTN_RXG_URGENT_TAKEN 2u /* the urgent byte was received with MSG_OOB */
#define PSTN_RXG_BROKEN 4u       /* the peer has lied: nothing more is read */
#define PSTN_RXG_ENDED 8u        /* the peer's end has been seen, which it can't take back */

struct PSTN_LINE pstn_ep {
  pstn_u32 state; /* (a) PSTN_EP_* */
  pstn_u32 gen;   /* (a) changes at each reuse */
  /* (a; changed under item_lock) PSTN_REFS_*: fds, over all processes, that mean this endpoint; +1
   * in an accept queue */
  pstn_u64 refs;
  pstn_u16 family; /* (c) AF_INET or AF_INET6 */
  /* the sum of the pollers' waiters: of one, its waiter */
  pstn_u16 poller PSTN_GUARDED_BY(item_lock);
  pstn_u32 flags;   /* (a) PSTN_EPF_* */
  pstn_u16 reason;  /* (a) why it is not accelerated; base/schema/reasons.def */
  pstn_u16 side;    /* (c once established) */
  pstn_u32 lgr_idx; /* (c once established) */
  union {
    pstn_u32 conn_idx; /* (c once established) */
    /* (a; changed under accept_lock) listener: CLOCK_MONOTONIC in ms, since when its count of
     * places has said that it is full while its queue was not; 0: it fits */
    pstn_u32 misfit_ms;
  };
  union {
    pstn_u32 conn_gen;
    /* (a; changed under accept_lock) listener: 1: clients may wait for a place, and were seen */
    pstn_u32 waits;
  };
  pstn_u32 error;  /* (a) SO_ERROR */
  pstn_u32 next;   /* free list, or accept queue (l: listener's lock) */
  pstn_u64 cookie; /* (c) SO_COOKIE of the kernel's socket */
  pstn_u32 item_head PSTN_GUARDED_BY(item_lock); /* epoll registrations */
  struct pstn_lock item_lock;

  struct pstn_tx tx;
  struct pstn_rx rx;

  /* listener */
  PSTN_LINE struct pstn_lock accept_lock;
  pstn_u32 accept_head PSTN_GUARDED_BY(accept_lock);
  pstn_u32 accept_tail PSTN_GUARDED_BY(accept_lock);
  pstn_u32 accept_count;
  /* a client that waits for a place: 31..8 its listener's, 7..0 how often it has come again */
  pstn_u32 backlog;
  pstn_u32 listener; /* the endpoint through whose queue this one came */
  struct pstn_addr local, peer;

  /* options as the program set them; units as in setsockopt */
  pstn_u32 opt_set; /* bit per option below: the program has set it */
  pstn_u32 sndbuf, rcvbuf;
  pstn_u16 linger_on;
  pstn_u16 wire; /* (a) listener, UDP: its place in the engine's table + 1; 0: none */
  pstn_u32 linger_sec, rcvlowat;
  pstn_u64 rcvtimeo_ns, sndtimeo_ns; /* 0 = for ever */
  pstn_u32 keepidle, keepintvl, keepcnt, user_timeout, notsent_lowat, defer_accept;
  pstn_u32 busy_poll, priority, owner_slot;
  pstn_u16 kernel_port; /* (c) ephemeral port that the kernel's socket holds; 0 = none */
  pstn_u16 rcv_lines;   /* (a) what ctl.rcv_room says of it, in lines */
  pstn_u32 pollers PSTN_GUARDED_BY(item_lock); /* threads asleep in poll() on it */
  /* (o) endpoint + 1 whose connection this one is taking over (peer/export.cc) */
  pstn_u32 took_over;
  struct pstn_lock setup_lock; /* bind, connect, listen; not yet connected: export */
  pstn_u32 sleepers;           /* (a) threads asleep on our ctl line; one that died there costs a
                                  futex call at each shutdown */
  union {
    pstn_u64 syn_ns;         /* (c) in an accept queue: when its client connected */
    pstn_u64 kernel_options; /* (a) else: options that we do not keep and the program has set, a bit
                                for each of endpoint/inherit.cc's table */
  };
  union {
    struct {
      pstn_u32 held; /* (a) listener: connections that posternd keeps for accept(): TCP after all */
      /* (a) listener: connections of which posternd does not know yet what they become */
      pstn_u32 in_talks;
    };
    pstn_u64 hold; /* (l: tx.lock) connection: what it holds back, PSTN_HOLD_*; 0: nothing */
  };
  union {
    pstn_u32 zerocopy_sent; /* (a) sends with MSG_ZEROCOPY */
    /* (a) listener: slot + 1 of a process that waits for its clients (control/acceptor.h); 0: none
     * is known */
    pstn_u32 acceptor;
  };
  union {
    pstn_u32 zerocopy_told; /* (a) completions given out */
    /* (a) listener: posternd has taken it out of the directory, since no process waited at it and
     * another family's did */
    pstn_u32 unlisted;
  };
};

/* pstn_ep.hold: the first record that is held back, and the bytes of it and those behind it. */
#define PSTN_HOLD_LEN 0x7fffull /* its length */
#define PSTN_HOLD_LINE_SHIFT 15 /* 14 bits: its line in the ring */
#define PSTN_HOLD_LINE 0x3fffull
#define PSTN_HOLD_BYTES_SHIFT 29 /* 18 bits */
#define PSTN_HOLD_BYTES 0x3ffffull
#define PSTN_HOLD_EOR (1ull << 47) /* they end a record (MSG_EOR): what follows sends them */
#define PSTN_HOLD_GEN_SHIFT 48     /* generation of the ring */

enum {
  PSTN_EP_FREE = 0,
  PSTN_EP_NEW = 1, /* socket() */
  PSTN_EP_LISTEN = 2,
  PSTN_EP_EMBRYO = 3,      /* admitted; in an accept queue */
  PSTN_EP_ESTABLISHED = 4, /* includes half-closed */
  PSTN_EP_KERNEL = 5,      /* the kernel's TCP serves this one; `reason` says why */
  PSTN_EP_CLOSED = 6,      /* last reference dropped, being taken apart */
  PSTN_EP_CONNECTING = 7   /* the engine has its handshake (offhost/wire_connect.cc) */
};

#define PSTN_EPF_NONBLOCK 0x001u
#define PSTN_EPF_BOUND_AUTO 0x002u /* kernel socket holds an ephemeral port that we bound */
#define PSTN_EPF_BOUND 0x004u      /* the program called bind() */
#define PSTN_EPF_NODELAY 0x008u
#define PSTN_EPF_CORK 0x010u
#define PSTN_EPF_KEEPALIVE 0x020u
#define PSTN_EPF_OOBINLINE 0x040u
#define PSTN_EPF_CONNECTING 0x080u /* EINPROGRESS was returned, success not yet reported */
#define PSTN_EPF_DIRTY 0x100u      /* kernel socket has state of its own: not for the fd cache */
#define PSTN_EPF_SHUT_RD 0x200u
#define PSTN_EPF_SHUT_WR 0x400u
#define PSTN_EPF_DUPPED 0x800u /* more than one fd ever meant it: not for the fd cache */
#define PSTN_EPF_REUSEADDR 0x1000u
#define PSTN_EPF_V6ONLY 0x2000u
#define PSTN_EPF_PUBLISHED 0x4000u /* listener is in the directory */
#define PSTN_EPF_QUICKACK 0x8000u
#define PSTN_EPF_REUSEPORT 0x10000u
#define PSTN_EPF_CLOEXEC 0x40000u         /* the fd it was made with is close-on-exec */
#define PSTN_EPF_HUNG 0x20000u            /* error was reported by connect */
#define PSTN_EPF_KERNEL_OPTIONS 0x800000u /* has options that we do not keep */
#define PSTN_EPF_INQ 0x400000u            /* TCP_INQ: recvmsg() tells what is left */
#define PSTN_EPF_ZEROCOPY 0x200000u       /* SO_ZEROCOPY: sends with MSG_ZEROCOPY are numbered */
#define PSTN_EPF_SMC 0x2000000u /* its SYN, or its clients' SYN-ACKs, carry SMC's option */
/* the engine's end of a connection through a VI: no fd means it */
#define PSTN_EPF_ENGINE 0x8000000u
/* local.port is the stack's; it goes with the connection */
#define PSTN_EPF_PORT_LENT 0x20000000u
#define PSTN_EPF_STEERED 0x10000000u /* listener: its clients on a VI's interface come to us */
#define PSTN_EPF_POLLED 0x4000000u   /* listener: some program waits for it by poll() or select() */
/* kernel_port is not the socket's any more, but shows */
#define PSTN_EPF_PORT_GIVEN_UP 0x1000000u
#define PSTN_EPF_DISCONNECTING 0x100000u /* shutdown() met a connect() that had failed */
#define PSTN_EPF_DATAGRAM 0x40000000u    /* UDP: the kernel's, and on the wire if `wire` is not 0 */
/* others than the family have the fd: the kernel serves it, see peer/export.cc */
#define PSTN_EPF_EXPORTED 0x80000u
/* listener: the family has it from another one, whose user its process was (life/depart.h) */
#define PSTN_EPF_BROUGHT 0x80000000u

struct PSTN_LINE pstn_item {
  pstn_u32 next;               /* free list */
  pstn_u32 ep_idx;             /* (l: both locks) */
  pstn_u32 ep_next;            /* (l: ep.item_lock) other registrations of the same endpoint */
  pstn_u32 epoll_idx;          /* (l: both locks) */
  pstn_u32 ready_next;         /* (l: epoll.lock) */
  pstn_u32 all_prev, all_next; /* (l: epoll.lock) */
  pstn_u32 flags;              /* (l: epoll.lock) PSTN_IT_* */
  pstn_u32 events;             /* (l: epoll.lock) as given to epoll_ctl */
  pstn_u32 fd;                 /* (l: epoll.lock) */
  pstn_u64 data;               /* (l: epoll.lock) */
  pstn_u32 owner_slot;
  pstn_u32 epfd;  /* (l: epoll.lock) the set's fd in that process */
  pstn_u32 hands; /* (a) as in PSTN_REFS_* */
  pstn_u32 pad;
};
#define PSTN_IT_READY 1u    /* on the ready list */
#define PSTN_IT_DISABLED 2u /* ONESHOT fired */
#define PSTN_IT_KERNEL 4u   /* its fd is also in the kernel's set (listener) */
#define PSTN_IT_KREADY 8u   /* ... which has reported it */

struct PSTN_LINE pstn_epoll {
  pstn_u64 refs;  /* (a; changed under lock) PSTN_REFS_*: fds, over all processes */
  pstn_u32 state; /* (a) 0 free */
  struct pstn_lock lock;
  pstn_u32 next;
  pstn_u32 waiter_idx; /* (a) PSTN_NONE until something accelerated is registered */
  /* count is also read unlocked, as a hint */
  pstn_u32 ready_head PSTN_GUARDED_BY(lock);
  pstn_u32 ready_tail PSTN_GUARDED_BY(lock);
  pstn_u32 ready_count PSTN_GUARDED_BY(lock);
  pstn_u32 all_head PSTN_GUARDED_BY(lock);
  pstn_u32 unclaimed; /* (a) 1: the next to wait says so to its listeners (control/acceptor.h) */
  pstn_u32 listeners PSTN_GUARDED_BY(lock);
  pstn_u32 gen;
  pstn_u32 sleepers; /* (a) threads asleep on it; one that died there costs doorbells, no more */
  pstn_u64 magic;    /* (c) upper 40 bits mark epoll data that is ours in the kernel's set */
};

/* What sleeps on more than one thing. Its doorbell is an abstract datagram socket whose
 * name is made of the stack's id, this index and a random number: any peer can ring it, no stranger
 * can take the name before its owner does, and it dies with its owner. */
struct PSTN_LINE pstn_waiter {
  pstn_u32 state; /* (a) 0 free, 1 used */
  pstn_u32 next;
  pstn_u32 sleeping;   /* (a) as in pstn_evmap, for posts from inside the stack */
  pstn_u32 owner_slot; /* process; PSTN_NONE when an epoll object owns it */
  pstn_u32 posted;     /* (a) something happened that has no bit */
  pstn_u32 wants_syn;  /* (a) waits for a listener: ring it for SYNs */
  pstn_u32 gen;
  pstn_u32 hand;  /* (a) where the next look at its bits begins */
  pstn_u64 nonce; /* (a) */
  pstn_u32 hands; /* (a) as in PSTN_REFS_* */
  pstn_u32 pad;
  pstn_u64 pad2[2];
};

struct pstn_slot {
  PSTN_LINE pstn_u32 state; /* (a) PSTN_SL_* */
  pstn_u32 pid;             /* (a) in the PID namespace `pidns` */
  pstn_u64 start_time;      /* (o) field 22 of /proc/PID/stat: tells a reused pid */
  pstn_u32 parent_pid;
  pstn_u32 exec_pending; /* (o) PSTN_EXEC_*: exec is under way */
  char comm[16];
  pstn_u64 lost_ns; /* (o) CLOCK_MONOTONIC when it last tried to reach posternd in vain */
  pstn_u32 told;    /* (a) 1: it has had news for others, and may die before it has told them */
  pstn_u32 pidns;   /* (o) inode of the PID namespace; PSTN_NONE: not known */
  pstn_u32 chunk[PSTN_SLOT_CHUNKS]; /* (a) fd chunk index, PSTN_NONE */
};
#define PSTN_EXEC_NONE 0u
#define PSTN_EXEC_WITH 1u    /* the next image takes this slot over */
#define PSTN_EXEC_WITHOUT 2u /* it comes up without the library: posternd reaps the slot */
enum { PSTN_SL_FREE = 0, PSTN_SL_EMBRYO = 1, PSTN_SL_LIVE = 2, PSTN_SL_DEAD = 3 };

/* Entry of an fd table: kind in the top 4 bits, index below; 0 = not ours. */
#define PSTN_FD_NONE 0u
#define PSTN_FD_EP 0x10000000u
#define PSTN_FD_EPOLL 0x20000000u
#define PSTN_FD_CACHED 0x40000000u   /* private tables only: closed by the program, kept by us */
#define PSTN_FD_INTERNAL 0x50000000u /* private tables only: the library's own */
#define PSTN_FD_KIND 0xf0000000u
#define PSTN_FD_IDX 0x0fffffffu
struct pstn_fdchunk {
  pstn_u32 next;
  pstn_u32 hands; /* (a) as in PSTN_REFS_* */
  pstn_u32 pad[14];
  pstn_u32 fd[PSTN_FDCHUNK_FDS]; /* (a) */
};

/* A link group as one of its stacks keeps it: what the peer must not be able to change. */
/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a line for each writer */
struct PSTN_LINE pstn_lgr_ref {
  pstn_u32 state;        /* (a) 0 free, 1 used, 2 peer dead */
  pstn_u32 side;         /* (c) */
  struct pstn_uuid id;   /* (c) */
  struct pstn_uuid peer; /* (c) */
  struct pstn_lock lock;
  pstn_u32 conns PSTN_GUARDED_BY(lock);     /* in use (client side: given out) */
  pstn_u32 conn_hint PSTN_GUARDED_BY(lock); /* the zombie to be looked at next */
  pstn_u32 syn_hand, all_hand;              /* (a) where the next look at these bits begins */
  pstn_u32 slab_hint[PSTN_SLAB_CLASSES] PSTN_GUARDED_BY(lock);
  pstn_u32 rings PSTN_GUARDED_BY(lock); /* rings given out */
  pstn_u32 sweep_hand;
  PSTN_LINE pstn_u64 conn_map[PSTN_CONNS / 64] PSTN_GUARDED_BY(lock); /* client side: given out */
  pstn_u64 zombie_map[PSTN_CONNS / 64] PSTN_GUARDED_BY(lock); /* closed here, not yet by the peer */
  pstn_u64 ring0_map[PSTN_RING0_COUNT / 64] PSTN_GUARDED_BY(lock);
  pstn_u64 ring1_map[PSTN_RING1_COUNT / 64] PSTN_GUARDED_BY(lock);
  pstn_u64 ring2_map[PSTN_RING2_COUNT / 64] PSTN_GUARDED_BY(lock);
  /* free, and still has its pages */
  pstn_u64 ring0_warm[PSTN_RING0_COUNT / 64] PSTN_GUARDED_BY(lock);
  pstn_u64 ring1_warm[PSTN_RING1_COUNT / 64] PSTN_GUARDED_BY(lock);
  pstn_u64 ring2_warm[PSTN_RING2_COUNT / 64] PSTN_GUARDED_BY(lock);
  pstn_u32 warm[PSTN_SLAB_CLASSES] PSTN_GUARDED_BY(lock); /* how many of each class */
  pstn_u32 wire_hand; /* (a) where the engine's next look at its bits begins */
  /* (a) a process of ours whose limits are low maps so many chunks of each class (state/chunks.h);
   * 0: all */
  pstn_u32 chunks;
  pstn_u32 module; /* (a) 1: the kernel module knows it (pstn_lgr_hdr.module) */
  pstn_u32 queued; /* (c) 1: its connections count in the pstn_queues of the server's stack */
  pstn_u32 pad;
  /* transmit ring that a zombie still holds */
  pstn_u64 zombie_ring[PSTN_CONNS] PSTN_GUARDED_BY(lock);
  /* the ring before that one, if the peer had not left it */
  pstn_u64 zombie_old[PSTN_CONNS] PSTN_GUARDED_BY(lock);
  pstn_u32 zombies PSTN_GUARDED_BY(lock);
  pstn_u32 remote;              /* (c) whose the peer is: PSTN_LGR_* */
  pstn_u32 conn_ep[PSTN_CONNS]; /* (a) endpoint + 1; 0 = none */
};

#define PSTN_LGR_SAME_USER 0u   /* has the same posternd */
#define PSTN_LGR_OTHER_USER 1u  /* another posternd of this network namespace */
#define PSTN_LGR_OTHER_NETNS 2u /* ... of another one */
#define PSTN_LGR_GUEST 3u       /* the same posternd, and another user (ADR 23) */

/* Free list of a table's indices. */
struct PSTN_LINE pstn_pool {
  pstn_u64 head; /* (l) low 32 bits: the first; high 32: how many are taken. One store has both. */
  pstn_u32 hw;   /* (l) indices from here on were never used */
  struct pstn_lock lock;
};

/* Entries of each table. The tables follow the header in this order, each at a page of its own
 * (state/stack_map.h). Read once, when the stack is mapped, and checked against its size. */
struct pstn_stack_counts {
  pstn_u32 waiters;  /* PSTN_WAITERS of struct pstn_waiter */
  pstn_u32 epolls;   /* struct pstn_epoll */
  pstn_u32 slots;    /* struct pstn_slot: processes */
  pstn_u32 lgrs;     /* struct pstn_lgr_ref: link groups that it takes part in (each role counts) */
  pstn_u32 eps;      /* struct pstn_ep */
  pstn_u32 items;    /* struct pstn_item */
  pstn_u32 fdchunks; /* struct pstn_fdchunk */
  pstn_u32 zero;
};

/* A check of the family's memory that was false (base/check.h): where in the sources, how often. */
struct PSTN_LINE pstn_check {
  pstn_u32 state; /* (a) 0 free, 1 being entered, 2 `place` is there */
  pstn_u32 zero;
  pstn_u64 count; /* (a) */
  char place[48]; /* "lib/peer/accept.cc:253" and zeros; (c) from state 2 on */
};
#define PSTN_CHECK_PLACES 16u

/* pstn_stack_hdr.module: whether the stack is at level 2. */
#define PSTN_MODULE_OFF 0u /* not asked for */
#define PSTN_MODULE_ON 1u  /* each of its processes has a descriptor of the kernel module's */
#define PSTN_MODULE_NONE 2u

struct pstn_stack_hdr {
  pstn_u32 magic, abi_version; /* (c) */
  pstn_u64 size_bytes;         /* (c) */
  struct pstn_uuid id;         /* (c) */
  pstn_u32 uid, closing;       /* (c), (a) */
  pstn_u64 netns_ino;          /* (c) */
  pstn_u64 created_ns;         /* (c) CLOCK_REALTIME */
  pstn_u64 ticket;     /* (a) a guest's (life/depart.h): by which a new posternd knows it; else 0 */
  pstn_u32 guests;     /* (a) 1: a process has left it for another user (life/depart.h) */
  pstn_u32 short_slot; /* (a) slot + 1 of a process that has no room for one more link group; 0 */
  pstn_u32 wide_bells; /* (c) 1: its doorbells can be rung from every network namespace */
  pstn_u32 wire_error; /* (a) errno with which its VIs could not be had; 0 */
  pstn_u32 module;     /* (c) PSTN_MODULE_* */
  pstn_u32 module_error;           /* (c) errno with which the kernel module was not to be had; 0 */
  struct pstn_stack_counts counts; /* (c) */
  struct pstn_pool eps, items, fdchunks, epolls, waiters;
  PSTN_LINE struct pstn_lock slot_lock;
  struct pstn_lock lgr_lock;
  struct pstn_lock reap_lock; /* of the one who ends a dead process's affairs */
  pstn_u32 slots_hw, lgrs_hw; /* (a) */
  pstn_u32 reaper_pidns;      /* (a) PID namespace of the reaper that works here; 0: none does */
  pstn_u32 joiner;            /* (a) a thread that has slot_lock without a slot; 0: none does */
  pstn_u64 joiner_start;      /* (a) of it, as pstn_slot.start_time */
  pstn_u64 reaper_start;      /* (a) the same of the reaper; 0: not known */
  PSTN_LINE pstn_u64 counters[PSTN_COUNTERS];    /* (a) base/schema/counters.def */
  PSTN_LINE pstn_u64 reasons[PSTN_COUNTERS];     /* (a) fallbacks by reason */
  PSTN_LINE pstn_u8 options[PSTN_OPTIONS_BYTES]; /* (c) struct Options of base/schema/options.h */
  struct pstn_check checks[PSTN_CHECK_PLACES];
};

/* ---------------------------------------------------------------- directory ----------------- */
#define PSTN_DIR_LISTENERS 8192u
#define PSTN_DIR_SOUGHT 0x80000000u /* the end of a chain: see pstn_dir.seeks */
#define PSTN_DIR_ADDRS 512u
#define PSTN_HOST_UEIDS 4u

struct pstn_dir_listener {
  pstn_u32 next; /* entry + 1 of the same port, or the chain's end */
  pstn_u32 used;
  struct pstn_uuid stack;
  pstn_u32 ep_idx, ep_gen;
  struct pstn_addr local; /* all zero ip: wildcard of `family` */
  pstn_u32 family, v6only, backlog;
  /* 1: of another network namespace, known from a handshake; its address is not ours */
  pstn_u32 learnt;
  pstn_u64 netns_ino, cookie;
  struct pstn_addr source; /* learnt: the address of ours from which it is reached */
};

/* What the broker says of the host: its name towards SMC-D's peers, and where they may be. */
struct pstn_host {
  struct pstn_uuid gid;
  pstn_u32 flags; /* PSTN_HOST_* */
  pstn_u32 ueid_count;
  pstn_u8 ueids[PSTN_HOST_UEIDS][32]; /* blank padded */
  pstn_u32 addr_count, pad;
  /* Behind which there may be another network namespace; `port`: length of the prefix, of 128 bits
   */
  struct pstn_addr addrs[PSTN_DIR_ADDRS];
};
#define PSTN_HOST_BELLS 1u /* gives out doorbells that work across network namespaces */
#define PSTN_HOST_SMC 2u   /* ... and SYNs can be marked: peers there can be reached */

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a line for each writer */
struct pstn_dir {
  pstn_u32 magic, abi_version;
  pstn_u64 size_bytes;
  struct pstn_uuid id; /* of this posternd */
  pstn_u32 pid;
  pstn_u32 port_low; /* (c) first of the ephemeral ports; 0 = not known */
  /* (a) 1: others' listeners are here for those ports only whose chain ends in PSTN_DIR_SOUGHT; of
   * another port posternd is asked (kSeek) before a miss is believed. */
  pstn_u32 seeks;
  /* A robust mutex that posternd holds for life: the kernel sets FUTEX_OWNER_DIED (0x40000000) in
   * its first word when posternd dies, however it dies, so readers learn of it without a syscall.
   */
  PSTN_LINE pstn_u8 alive_mutex[64];
  PSTN_LINE pstn_u64 seq; /* odd while posternd writes; readers retry */
  pstn_u32 addr_count;
  pstn_u32 closed; /* (a) 1: the administrator lets new connections take no path through memory */
  struct pstn_addr addrs[PSTN_DIR_ADDRS]; /* local addresses of posternd's namespace */
  struct pstn_host host;                  /* as the broker has it; zero while there is none */
  pstn_u32 port_head[65536];              /* entry + 1; 0 or PSTN_DIR_SOUGHT: the chain's end */
  struct pstn_dir_listener listeners[PSTN_DIR_LISTENERS];
};

/* ---------------------------------------------------------------- queues -------------------- */
/* How many clients wait to be accepted by each listener of a stack, whichever link group they came
 * by (endpoint/places/places.h). A wrong count has clients wait that need not, or more of them wait
 * than the backlog says; the server mends it. */
struct PSTN_LINE pstn_places {
  pstn_u32 taken; /* (a) by clients that are connected and not yet accepted */
  pstn_u32 pad[15];
};
#define PSTN_PLACES 8192u
struct pstn_queues {
  struct pstn_places at[PSTN_PLACES]; /* by listener modulo this */
};

PSTN_STATIC_ASSERT(sizeof(struct pstn_evmap) == 576, "evmap is a line and a leaf array");
PSTN_STATIC_ASSERT(sizeof(struct pstn_conn_ctl) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_conn_pos) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_conn_setup) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_conn) == 320, "five lines");
PSTN_STATIC_ASSERT(sizeof(struct pstn_tx) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rx) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_check) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_places) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_item) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_waiter) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_epoll) == 64, "one line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_ep) == 384, "each connection has two of them");

#endif /* POSTERN_ABI_H */
