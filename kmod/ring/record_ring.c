// SPDX-License-Identifier: GPL-2.0
/* record_ring.c - the reader of a ring, and where rings lie; see record_ring.h. */
#include "record_ring.h"
#include "record_place.h"

/* The rings of each class, in pages from the first one of a side's slab. */
const struct pstn_class pstn_classes[PSTN_SLAB_CLASSES] = {
	{ 0, 0, PSTN_RING0_COUNT, PSTN_RING0_BYTES },
	{ PSTN_RING0_COUNT, 4, PSTN_RING1_COUNT, PSTN_RING1_BYTES },
	{ PSTN_RING0_COUNT + 16 * PSTN_RING1_COUNT, 8, PSTN_RING2_COUNT, PSTN_RING2_BYTES },
};

PSTN_STATIC_ASSERT(PSTN_RING0_BYTES == 4096, "a page, shift 0");
PSTN_STATIC_ASSERT(PSTN_RING1_BYTES == 4096 << 4, "shift 4");
PSTN_STATIC_ASSERT(PSTN_RING2_BYTES == 4096 << 8, "shift 8");

bool pstn_ring_place(u32 side, u64 desc, struct pstn_ring *ring)
{
	u32 cls = pstn_ring_class(desc);
	const struct pstn_class *c;
	u64 beyond, nth;

	if (cls >= PSTN_SLAB_CLASSES)
		return false;
	c = &pstn_classes[array_index_nospec(cls, PSTN_SLAB_CLASSES)];
	/* Huge if it is before the first. */
	beyond = (desc & PSTN_RING_PLACE) - (pstn_slab_page(side) + c->first_page);
	nth = beyond >> c->pages_shift;
	if (nth >= c->count || (beyond & ((1u << c->pages_shift) - 1)) != 0)
		return false;
	nth = array_index_nospec(nth, c->count);
	ring->page = pstn_slab_page(side) + c->first_page + (nth << c->pages_shift);
	ring->bytes = c->bytes;
	return true;
}

u64 *pstn_ring_header(struct pstn_end *e, const struct pstn_ring *ring, u32 off, bool write)
{
	u8 *page;

	off &= ring->bytes - 1;
	page = pstn_env_ring_page(e->env, ring->page + off / 4096, write);
	return page ? (u64 *)(page + off % 4096) : NULL;
}

size_t pstn_ring_copy(struct pstn_end *e, const struct pstn_ring *ring, u32 off, size_t n,
		      struct pstn_copy *copy, bool write)
{
	size_t done = 0;

	while (done < n) {
		size_t part = min_t(size_t, 4096 - off % 4096, n - done);
		u8 *page = pstn_env_ring_page(e->env, ring->page + off / 4096, write);
		size_t copied;

		if (!page)
			break;
		copied = copy->bytes(copy, page + off % 4096, part);
		done += copied;
		off += copied;
		if (copied != part)
			break;
	}
	return done;
}

/* ---- the reader. */

/* Where it stands; a reader that died may have been on its way to another ring. */
struct reader_place {
	u64 ring;
	u32 off, rec_done;
};

static struct reader_place reader_at(const struct pstn_rx *rx)
{
	struct reader_place at = { smp_load_acquire(&rx->ring), 0, 0 }; /* [R6] */
	u64 word;

	if ((at.ring & PSTN_RING_F_FRESH) != 0) {
		at.ring &= ~PSTN_RING_F_FRESH;
		return at;
	}
	word = smp_load_acquire(&rx->at); /* [R6] */
	at.off = (u32)word;
	at.rec_done = (u32)(word >> 32);
	return at;
}

/* Whether the ring that is being read still is the connection's, when `desc` is the writer's. */
static bool is_valid(u64 reading, u64 desc)
{
	return desc == reading ||
	       ((desc & PSTN_RING_F_SWITCH) != 0 &&
		pstn_ring_gen(desc) == ((pstn_ring_gen(reading) + 1u) & 0xffffu));
}

#define OWN_FLAGS (PSTN_RING_F_PENDING | PSTN_RING_F_FRESH)

static u64 peer_ring(struct pstn_end *e)
{
	return smp_load_acquire(&e->peer_ctl->ring) & ~OWN_FLAGS; /* [R2] */
}

bool pstn_hold_is_over(u64 held)
{
	if (held == 0 || held == PSTN_HELD_NEVER)
		return false;
	return (held & ~PSTN_HELD_CORK) <= pstn_now_ns();
}

struct place {
	u64 ring;
	u32 off;
};

/* What is at `p`, following marks and changes of ring. On RECORD `len` is the checked length of
 * what lies in `ring`.
 */
static enum pstn_look look_at(struct pstn_end *e, struct place *p, u64 *len,
			      struct pstn_ring *ring)
{
	int steps;

	for (steps = 0; steps < 6; steps++) {
		u64 desc = peer_ring(e), h = 0;
		u64 *header;

		if ((p->ring & PSTN_RING_PLACE) == 0) {
			if ((desc & PSTN_RING_PLACE) == 0)
				return PSTN_LOOK_EMPTY;
			/* It has grown before its reader came: the ring that it began in is first. */
			if ((desc & PSTN_RING_F_SWITCH) != 0)
				desc = READ_ONCE(e->peer_ctl->prev_ring) & ~OWN_FLAGS;
			if (!pstn_ring_place(e->side ^ 1u, desc, ring))
				return PSTN_LOOK_LIE;
			p->ring = desc;
			p->off = 0;
			continue;
		}
		if (!pstn_ring_place(e->side ^ 1u, p->ring, ring) ||
		    p->off % PSTN_REC_ALIGN != 0 || p->off >= ring->bytes)
			return PSTN_LOOK_LIE;
		/* A ring that is known to be gone is not looked at: that would give it pages. */
		if (is_valid(p->ring, desc)) {
			header = pstn_ring_header(e, ring, p->off, false);
			if (!header)
				return PSTN_LOOK_NO_MEMORY;
			h = smp_load_acquire(header); /* [R3] */
			/* After the header: only if the ring is still the connection's, the
			 * header is (lib/smcd/ring.h).
			 */
			desc = peer_ring(e);
		}
		if (!is_valid(p->ring, desc)) { /* it was drained, and taken away */
			p->ring = 0;
			p->off = 0;
			continue;
		}
		if (h == 0)
			return PSTN_LOOK_EMPTY;
		if (h == PSTN_REC_WRAP) {
			if (p->off == 0)
				return PSTN_LOOK_LIE;
			p->off = 0;
			continue;
		}
		if (h == PSTN_REC_SWITCH) {
			if (desc == p->ring || !pstn_ring_place(e->side ^ 1u, desc, ring))
				return PSTN_LOOK_LIE;
			p->ring = desc;
			p->off = 0;
			continue;
		}
		if ((h & PSTN_REC_HELD) != 0 && h < PSTN_REC_WRAP) {
			if (!pstn_hold_is_over(smp_load_acquire(&e->peer_ctl->held))) { /* [R7] */
				header = pstn_ring_header(e, ring, p->off, false);
				if (!header)
					return PSTN_LOOK_NO_MEMORY;
				if (smp_load_acquire(header) == h) /* [R3] */
					return PSTN_LOOK_EMPTY;
				continue; /* it has just been sent, and the time is others' */
			}
			h &= ~PSTN_REC_HELD;
		}
		if (h > ring->bytes || p->off + pstn_record_bytes(h) > ring->bytes - PSTN_REC_ALIGN)
			return PSTN_LOOK_LIE;
		*len = h;
		return PSTN_LOOK_RECORD;
	}
	return PSTN_LOOK_LIE;
}

static void publish(struct pstn_end *e, u64 ring, u32 off)
{
	u64 word = (u64)pstn_ring_gen(ring) << 32 | off;

	if (READ_ONCE(e->pos->read) != word)
		smp_store_release(&e->pos->read, word); /* [R1]: its copies are done */
}

static void store_place(struct pstn_rx *rx, u32 off, u32 rec_done)
{
	WRITE_ONCE(rx->at, (u64)rec_done << 32 | off);
}

/* To the first record of another ring, in steps that a look without the lock understands. */
static void go_to_ring(struct pstn_rx *rx, u64 ring)
{
	WRITE_ONCE(rx->ring, ring | PSTN_RING_F_FRESH);
	smp_store_release(&rx->at, (u64)0); /* [R6] */
	smp_store_release(&rx->ring, ring); /* [R6] */
}

/* The reader's place moves from `from` to `to`; what is skipped comes back as well. */
static void follow(struct pstn_end *e, const struct place *from, const struct place *to,
		   const struct pstn_ring *ring)
{
	struct pstn_rx *rx = e->rx;

	if (from->ring != to->ring) {
		go_to_ring(rx, to->ring);
	} else if (from->off != to->off) {
		if (from->off < ring->bytes)
			WRITE_ONCE(rx->unreturned,
				   READ_ONCE(rx->unreturned) + ring->bytes - from->off);
		store_place(rx, to->off, 0);
	}
}

#define PUBLISH_BYTES 8192 /* space is returned at least so often within one read */

static void took(struct pstn_end *e, const struct place *p, u32 rec_done, u64 len, size_t n,
		 bool whole)
{
	struct pstn_rx *rx = e->rx;

	if (whole)
		WRITE_ONCE(rx->unreturned, READ_ONCE(rx->unreturned) + pstn_record_bytes(len));
	WRITE_ONCE(rx->rec_len, (u32)len);
	if (READ_ONCE(rx->told) != 0)
		WRITE_ONCE(rx->told, 0u);
	store_place(rx, p->off, rec_done);
	WRITE_ONCE(rx->bytes, READ_ONCE(rx->bytes) + n);
}

void pstn_ring_read(struct pstn_end *e, struct pstn_copy *to, size_t want,
		    enum pstn_read_mode mode, struct pstn_read *r)
{
	const bool takes = mode == PSTN_READ_TAKE;
	struct reader_place at = reader_at(e->rx);
	struct place p = { at.ring, at.off };
	size_t unpublished = 0;
	u32 rec_done = at.rec_done;

	r->bytes = 0;
	r->status = PSTN_LOOK_RECORD;
	r->fault = false;
	if ((READ_ONCE(e->rx->ring) & PSTN_RING_F_FRESH) != 0)
		go_to_ring(e->rx, at.ring);
	while (r->bytes < want) {
		u64 len = READ_ONCE(e->rx->rec_len);
		struct pstn_ring ring;
		size_t n, copied;
		bool whole;

		if (rec_done == 0 || !takes) {
			const struct place before = p;

			r->status = look_at(e, &p, &len, &ring);
			if (takes)
				follow(e, &before, &p, &ring);
			if (r->status != PSTN_LOOK_RECORD)
				break;
		} else if (!pstn_ring_place(e->side ^ 1u, p.ring, &ring)) {
			r->status = PSTN_LOOK_LIE;
			break;
		}
		/* Not only of the peer's word: rec_len and rx.at are the family's to write. */
		if (rec_done >= len || p.off % PSTN_REC_ALIGN != 0 || len > ring.bytes ||
		    p.off + pstn_record_bytes(len) > ring.bytes) {
			r->status = PSTN_LOOK_LIE;
			break;
		}
		n = min_t(size_t, len - rec_done, want - r->bytes);
		copied = to ? pstn_ring_copy(e, &ring, p.off + pstn_payload_off(len) + rec_done, n,
					     to, false)
			    : n;
		r->fault = copied != n;
		r->bytes += copied;
		rec_done += (u32)copied;
		whole = rec_done == len;
		if (whole) {
			p.off += pstn_record_bytes(len);
			rec_done = 0;
		}
		if (takes && copied != 0)
			took(e, &p, rec_done, len, copied, whole);
		if (r->fault || (takes && !whole))
			break;
		if (takes)
			unpublished += pstn_record_bytes(len);
		if (unpublished >= PUBLISH_BYTES) {
			publish(e, p.ring, p.off);
			unpublished = 0;
		}
	}
	if (takes && p.ring != 0)
		publish(e, p.ring, p.off);
	if (r->bytes != 0 && r->status == PSTN_LOOK_EMPTY)
		r->status = PSTN_LOOK_RECORD;
}

/* Looks without the lock: each after the first means that another reader has moved. */
#define LOOKS 100

static bool is_steady(const struct pstn_rx *rx, const struct reader_place *began)
{
	struct reader_place now;

	smp_mb(); /* [R6] after all that the look has loaded */
	now = reader_at(rx);
	return now.ring == began->ring && now.off == began->off && now.rec_done == began->rec_done;
}

bool pstn_ring_readable(struct pstn_end *e)
{
	int i;

	for (i = 0; i < LOOKS; i++) {
		const struct reader_place at = reader_at(e->rx);
		struct place p = { at.ring, at.off };
		struct pstn_ring ring;
		u64 len;

		if (at.rec_done != 0 || look_at(e, &p, &len, &ring) != PSTN_LOOK_EMPTY)
			return true;
		if (is_steady(e->rx, &at))
			return false;
	}
	return true; /* the next reader finds out */
}

size_t pstn_ring_queued(struct pstn_end *e, size_t limit)
{
	/* A liar can make a circle of records; no ring and the one before it hold more. */
	const size_t most = 2 * (size_t)PSTN_RING2_BYTES;
	const struct reader_place at = reader_at(e->rx);
	struct place p = { at.ring, at.off };
	u32 rec_done = at.rec_done, guard;
	size_t total = 0;

	if (limit > most)
		limit = most;
	for (guard = most / PSTN_REC_ALIGN; guard != 0 && total < limit; guard--) {
		struct pstn_ring ring;
		u64 len;

		if (look_at(e, &p, &len, &ring) != PSTN_LOOK_RECORD || rec_done >= len)
			break;
		total += len - rec_done;
		rec_done = 0;
		p.off += pstn_record_bytes(len);
	}
	return total < most ? total : most;
}

bool pstn_ring_returns(struct pstn_end *e)
{
	const u64 desc = READ_ONCE(e->rx->ring);
	u32 enough = 1; /* the ring was taken away: nothing more will come back */
	struct pstn_ring ring;

	if (pstn_ring_place(e->side ^ 1u, desc, &ring))
		enough = ring.bytes / 16;
	if (READ_ONCE(e->rx->unreturned) < enough)
		return false;
	WRITE_ONCE(e->rx->unreturned, 0u);
	return true;
}

u64 pstn_ring_held_until(struct pstn_end *e)
{
	const u64 held = READ_ONCE(e->peer_ctl->held);

	if (held == 0 || held == PSTN_HELD_NEVER || pstn_hold_is_over(held))
		return 0;
	return held & ~PSTN_HELD_CORK;
}
