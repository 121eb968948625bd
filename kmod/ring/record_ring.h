/* SPDX-License-Identifier: GPL-2.0 */
/* record_ring.h - one direction of a connection: a second reading of lib/abi's ring of records. */
/*
 * lib/smcd/ring.h says how a ring works. What is here is what the module needs of it, written for
 * memory that may say anything: positions are copied, checked and then used; a ring's place is
 * looked up in a table of constants; each loop has an end that the memory has no say in.
 *
 * It knows no kernel but by the functions below that begin with pstn_env_, so that tests/kmod
 * builds it in user space, too, beside lib/smcd, and gives both the same bytes.
 *
 * The reader's and the writer's own positions lie in the stack's memory (pstn_rx, pstn_tx), since a
 * process with the library moves them, too; whoever moves them has the lock beside them.
 */
#ifndef PSTN_RECORD_RING_H
#define PSTN_RECORD_RING_H

#include "shared.h"

struct pstn_env;

/* An end of a connection, for the duration of one call: where its lines are. */
struct pstn_end {
	u32 *flags;         /* pstn_ep.flags */
	u64 *hold;          /* pstn_ep.hold */
	struct pstn_tx *tx;
	struct pstn_rx *rx;
	struct pstn_conn_setup *setup;
	struct pstn_conn_ctl *ctl, *peer_ctl;
	struct pstn_conn_pos *pos, *peer_pos;
	u32 side;
	struct pstn_env *env;
};

/* ---- what the ring has of its surroundings. */

/* Page `page` of the link group, until the next call of this function; NULL: no memory. */
u8 *pstn_env_ring_page(struct pstn_env *env, u64 page, bool write);
/* Byte `off` of the pstn_lgr_ref, likewise. */
void *pstn_env_ref(struct pstn_env *env, size_t off);
/* The pstn_lgr_ref's lock; false: it can't be had. */
bool pstn_env_lock_ref(struct pstn_env *env);
void pstn_env_unlock_ref(struct pstn_env *env);
/* Chunks of each class that may be used (lib/state/address_limit.h). */
u32 pstn_env_chunks(struct pstn_env *env);

/* Moves bytes between a ring and a program. Returns how many, fewer where the program's memory is
 * not there.
 */
struct pstn_copy {
	size_t (*bytes)(struct pstn_copy *copy, void *at, size_t n);
};

/* ---- the reader: under rx.lock. */

enum pstn_look {
	PSTN_LOOK_RECORD,
	PSTN_LOOK_EMPTY,
	PSTN_LOOK_LIE, /* no honest peer has written that */
	PSTN_LOOK_NO_MEMORY,
};

struct pstn_read {
	size_t bytes;
	enum pstn_look status; /* EMPTY only with bytes = 0 */
	bool fault;            /* the copy ended early; what was copied counts */
};

enum pstn_read_mode { PSTN_READ_TAKE, PSTN_READ_PEEK };

/* Reads up to `want` bytes. `to` NULL: they are counted, and dropped. */
void pstn_ring_read(struct pstn_end *e, struct pstn_copy *to, size_t want,
		    enum pstn_read_mode mode, struct pstn_read *result);
/* Whether there is anything to read, be it a lie; a moment's answer that needs no lock. */
bool pstn_ring_readable(struct pstn_end *e);
/* Bytes that wait, counted up to `limit`. */
size_t pstn_ring_queued(struct pstn_end *e, size_t limit);
/* Whether so much of the ring has come back that a writer is to be told; then it counts as told. */
bool pstn_ring_returns(struct pstn_end *e);
/* When what the peer holds back can be read, CLOCK_MONOTONIC; 0: it holds nothing back. */
u64 pstn_ring_held_until(struct pstn_end *e);

/* ---- the writer: under tx.lock. */

enum pstn_growth { PSTN_GROW_WHEN_USEFUL, PSTN_GROW_NOW };

struct pstn_write {
	size_t bytes;
	bool fault;  /* the program's memory is not there */
	bool broken; /* the family's memory says what can't be: nothing was written */
};

void pstn_ring_write(struct pstn_end *e, struct pstn_copy *from, size_t want,
		     enum pstn_growth growth, struct pstn_write *result);
/* Whether a write would take something; a moment's answer. */
bool pstn_ring_writable(struct pstn_end *e);
/* Ring bytes that the reader has not given back (SIOCOUTQ); a moment's answer. */
u32 pstn_ring_unread(struct pstn_end *e);
/* Sends what was held back. True: there was some, and the peer is to be told. */
bool pstn_ring_release_held(struct pstn_end *e);

#endif
