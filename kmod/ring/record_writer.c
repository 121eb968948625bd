// SPDX-License-Identifier: GPL-2.0
/* record_writer.c - the writer of a ring; see record_ring.h. */
/*
 * What the family's memory says of the writer (pstn_tx) is copied and checked at the beginning of a
 * call, and written back at its end. A call in the kernel always comes to its end, so no other
 * writer sees what is between; of a writer of the library that died in the middle, what it left is
 * mended first.
 */
#include "record_place.h"

#define LINE PSTN_REC_ALIGN
#define WINDOW 512u       /* look for an early wrap each so many bytes, at first */
#define CHUNK 16384u      /* longer writes become several records */
#define RCV_ROOM 131072u  /* of a reader that has not set SO_RCVBUF: tcp_rmem's default */
#define PLACE_MASK ((1ull << 44) - 1) /* class and page of a descriptor */

/* pstn_tx, as this call has it. Offsets are checked: a multiple of a line, below ring.bytes. */
struct writer {
	u32 off, peer, window, burst, since, step;
	u8 blocked;
	u16 budget;
	u64 desc, old, bytes;
	struct pstn_ring ring;
};

/* ---- slab: which rings this side has given out, in the family's memory. */

static const size_t ring_maps[PSTN_SLAB_CLASSES] = {
	offsetof(struct pstn_lgr_ref, ring0_map),
	offsetof(struct pstn_lgr_ref, ring1_map),
	offsetof(struct pstn_lgr_ref, ring2_map),
};

static const size_t warm_maps[PSTN_SLAB_CLASSES] = {
	offsetof(struct pstn_lgr_ref, ring0_warm),
	offsetof(struct pstn_lgr_ref, ring1_warm),
	offsetof(struct pstn_lgr_ref, ring2_warm),
};

static u32 ref_u32(struct pstn_env *env, size_t off)
{
	const u32 *at = pstn_env_ref(env, off);

	return at ? READ_ONCE(*at) : 0;
}

static void ref_add(struct pstn_env *env, size_t off, u32 n)
{
	u32 *at = pstn_env_ref(env, off);

	/* A process may have died between a bit and its count, which is short then. */
	if (at && READ_ONCE(*at) + n != (u32)-1)
		WRITE_ONCE(*at, READ_ONCE(*at) + n);
}

static u64 ref_word(struct pstn_env *env, size_t map, u32 bit)
{
	const u64 *at = pstn_env_ref(env, map + bit / 64 * 8);

	return at ? READ_ONCE(*at) : 0;
}

static void ref_set_bit(struct pstn_env *env, size_t map, u32 bit, bool value)
{
	u64 *at = pstn_env_ref(env, map + bit / 64 * 8);
	u64 mask = 1ull << (bit % 64);

	if (at)
		WRITE_ONCE(*at, value ? READ_ONCE(*at) | mask : READ_ONCE(*at) & ~mask);
}

/* A bit that differs from `skip`'s, in the word of `hint` or the first there is. */
static u32 ref_find(struct pstn_env *env, size_t map, u64 skip, u32 bits, u32 hint)
{
	const u32 words = (bits + 63) / 64;
	u32 w = hint / 64, next;

	for (next = 0; next <= words; w = next++) {
		u64 found;
		u32 bit;

		if (w >= words)
			continue;
		w = array_index_nospec(w, words);
		found = ref_word(env, map, w * 64) ^ skip;
		if (found == 0)
			continue;
		bit = w * 64 + __ffs64(found);
		if (bit < bits)
			return bit;
	}
	return PSTN_NONE;
}

/* Of the smallest class there is a ring for each connection. */
static u32 rings_in(u32 cls, u32 chunks)
{
	const u64 rings = (u64)chunks * ((1u << 20) / pstn_classes[cls].bytes);

	if (cls == 0 || rings > pstn_classes[cls].count)
		return pstn_classes[cls].count;
	return (u32)rings;
}

#define REF(field) offsetof(struct pstn_lgr_ref, field)

/* A ring of class `cls`, or of a smaller one: descriptor without generation; 0: none. */
static u64 take_ring(struct pstn_end *e, u32 cls)
{
	const u32 chunks = pstn_env_chunks(e->env);
	u64 desc = 0;
	u32 c;

	if (!pstn_env_lock_ref(e->env))
		return 0;
	for (c = cls + 1; c-- > 0;) {
		const u32 hint = ref_u32(e->env, REF(slab_hint) + 4 * c);
		const u32 count = rings_in(c, chunks);
		const bool warm = ref_u32(e->env, REF(warm) + 4 * c) != 0;
		u32 i = warm ? ref_find(e->env, warm_maps[c], 0, count, hint) : PSTN_NONE;
		u32 *at;

		if (i == PSTN_NONE)
			i = ref_find(e->env, ring_maps[c], ~0ull, count, hint);
		if (i == PSTN_NONE)
			continue;
		if ((ref_word(e->env, warm_maps[c], i) >> (i % 64) & 1) != 0) {
			ref_set_bit(e->env, warm_maps[c], i, false);
			ref_add(e->env, REF(warm) + 4 * c, (u32)-1);
		}
		ref_set_bit(e->env, ring_maps[c], i, true);
		at = pstn_env_ref(e->env, REF(slab_hint) + 4 * c);
		if (at)
			WRITE_ONCE(*at, i);
		ref_add(e->env, REF(rings), 1);
		desc = (u64)c << PSTN_RING_CLASS_SHIFT |
		       (pstn_slab_page(e->side) + pstn_classes[c].first_page +
			((u64)i << pstn_classes[c].pages_shift));
		break;
	}
	pstn_env_unlock_ref(e->env);
	return desc;
}

/* The ring keeps its pages: those beyond what a side keeps are dropped by the library's sweep. */
static void give_ring(struct pstn_end *e, u64 desc)
{
	const u32 cls = pstn_ring_class(desc);
	struct pstn_ring ring;
	u32 i, *at;

	if (!pstn_ring_place(e->side, desc, &ring) || !pstn_env_lock_ref(e->env))
		return;
	i = (u32)((ring.page - pstn_slab_page(e->side) - pstn_classes[cls].first_page) >>
		  pstn_classes[cls].pages_shift);
	if ((ref_word(e->env, ring_maps[cls], i) >> (i % 64) & 1) != 0) {
		ref_set_bit(e->env, ring_maps[cls], i, false);
		ref_set_bit(e->env, warm_maps[cls], i, true);
		ref_add(e->env, REF(warm) + 4 * cls, 1);
		at = pstn_env_ref(e->env, REF(slab_hint) + 4 * cls);
		if (at)
			WRITE_ONCE(*at, i); /* last used first */
		ref_add(e->env, REF(rings), (u32)-1);
	}
	pstn_env_unlock_ref(e->env);
}

/* ---- what is held back (lib/smcd/hold.h). */

static void hold_forget(struct pstn_end *e)
{
	smp_store_release(&e->ctl->held, (u64)0); /* [R7] behind the header that was stored */
	WRITE_ONCE(*e->hold, (u64)0);
	WRITE_ONCE(e->tx->holds, (u8)0);
}

static u32 hold_at(u64 hold)
{
	return (u32)(hold >> PSTN_HOLD_LINE_SHIFT & PSTN_HOLD_LINE) * LINE;
}

static u32 hold_gen(u64 hold)
{
	return (u32)(hold >> PSTN_HOLD_GEN_SHIFT);
}

/* The reader has moved: perhaps past what was held back. */
static void hold_passed(struct pstn_end *e, const struct writer *w)
{
	const u64 hold = READ_ONCE(*e->hold);
	const u32 at = hold_at(hold);
	bool unread;

	if (hold == 0)
		return;
	unread = w->peer <= w->off ? at >= w->peer && at < w->off : at >= w->peer || at < w->off;
	if (hold_gen(hold) != pstn_ring_gen(w->desc) || !unread)
		hold_forget(e);
}

bool pstn_ring_release_held(struct pstn_end *e)
{
	const u64 hold = READ_ONCE(*e->hold), desc = READ_ONCE(e->tx->ring);
	const u32 gen = hold_gen(hold), now = pstn_ring_gen(desc);
	struct pstn_ring ring;
	u64 in = 0, *header;

	if (READ_ONCE(e->tx->holds) == 0)
		return false;
	if (hold != 0) {
		if (desc != 0 && gen == now)
			in = desc;
		else if (gen == ((now - 1u) & 0xffffu))
			in = READ_ONCE(e->tx->old_ring);
		if (pstn_ring_place(e->side, in & PLACE_MASK, &ring) && hold_at(hold) < ring.bytes) {
			header = pstn_ring_header(e, &ring, hold_at(hold), true);
			if (header)
				smp_store_release(header, hold & PSTN_HOLD_LEN); /* [R3] */
		}
	}
	hold_forget(e);
	return hold != 0;
}

/* ---- moves from ring to ring. */

/* Takes over the reader's offset, if an honest reader could have it: within what is unread. */
static bool learn_only(struct pstn_end *e, struct writer *w)
{
	const u64 read = smp_load_acquire(&e->peer_pos->read); /* [R1]: its copies are done */
	const u32 r = (u32)read;
	bool inside;

	if ((u32)(read >> 32) != pstn_ring_gen(w->desc))
		return false; /* still in the ring before */
	inside = w->peer <= w->off ? r >= w->peer && r <= w->off : r >= w->peer || r <= w->off;
	if (r % LINE != 0 || r >= w->ring.bytes || !inside)
		return false;
	w->peer = r;
	return true;
}

static void learn(struct pstn_end *e, struct writer *w)
{
	if (learn_only(e, w) && READ_ONCE(e->tx->holds) != 0)
		hold_passed(e, w);
}

/* A ring comes into use by one store, of tx.ring with F_PENDING. What follows from it is here, and
 * may be done again by the next writer (lib/smcd/ring.cc). False: there is no such ring.
 */
static bool finish_move(struct pstn_end *e, struct writer *w)
{
	const u64 desc = w->desc & ~PSTN_RING_F_PENDING;
	const u64 mark = (w->old >> PSTN_RING_OLD_MARK_SHIFT) * LINE;
	struct pstn_ring before;
	bool moves = w->old != 0 && pstn_ring_place(e->side, w->old & PLACE_MASK, &before) &&
		     mark < before.bytes;
	u64 *header;

	if (!pstn_ring_place(e->side, desc, &w->ring))
		return false;
	w->desc = desc;
	w->off = 0;
	w->peer = 0;
	w->window = w->step = WINDOW;
	w->blocked = 0;
	if (moves)
		WRITE_ONCE(e->ctl->prev_ring,
			   (u64)((pstn_ring_gen(desc) - 1u) & 0xffffu) << PSTN_RING_GEN_SHIFT |
				   (w->old & PLACE_MASK));
	smp_store_release(&e->ctl->ring, desc); /* [R2]: the first header is 0 */
	if (moves) {
		header = pstn_ring_header(e, &before, (u32)mark, true);
		if (header)
			smp_store_release(header, (u64)PSTN_REC_SWITCH); /* [R3] */
	}
	return true;
}

/* The next ring, of which nobody is told before its first header is cleared. */
static bool take_next(struct pstn_end *e, u32 cls, u64 before, u64 flags, u64 *desc)
{
	const u64 place = take_ring(e, cls);
	struct pstn_ring ring;
	u64 *header;

	if (place == 0 || !pstn_ring_place(e->side, place, &ring))
		return false;
	header = pstn_ring_header(e, &ring, 0, true);
	if (!header) {
		give_ring(e, place);
		return false;
	}
	WRITE_ONCE(*header, (u64)0);
	*desc = (u64)((pstn_ring_gen(before) + 1u) & 0xffffu) << PSTN_RING_GEN_SHIFT | flags | place;
	return true;
}

static bool begin_move(struct pstn_end *e, struct writer *w, u64 desc)
{
	w->desc = desc | PSTN_RING_F_PENDING;
	return finish_move(e, w);
}

static bool attach(struct pstn_end *e, struct writer *w, u32 cls)
{
	u64 desc;

	return take_next(e, cls, READ_ONCE(e->ctl->ring), 0, &desc) && begin_move(e, w, desc);
}

/* Gives the ring before back once the reader has left it. */
static void drop_old(struct pstn_end *e, struct writer *w)
{
	const u64 old = w->old;
	u64 read;

	if (old == 0)
		return;
	if (((old ^ w->desc) & PLACE_MASK) == 0) { /* a writer died before the move began */
		w->old = 0;
		return;
	}
	read = smp_load_acquire(&e->peer_pos->read); /* [R1] */
	if ((u32)(read >> 32) != pstn_ring_gen(w->desc))
		return;
	w->old = 0;
	give_ring(e, old & PLACE_MASK);
}

static bool grow(struct pstn_end *e, struct writer *w, u32 cls)
{
	u64 desc;

	drop_old(e, w);
	if (w->old != 0 || !take_next(e, cls, w->desc, PSTN_RING_F_SWITCH, &desc))
		return false;
	if (pstn_ring_class(desc) <= pstn_ring_class(w->desc)) { /* only a smaller one was left */
		give_ring(e, desc & PLACE_MASK);
		return false;
	}
	w->old = (u64)(w->off / LINE) << PSTN_RING_OLD_MARK_SHIFT | (w->desc & PLACE_MASK);
	return begin_move(e, w, desc);
}

static u32 class_for(size_t bytes)
{
	u32 cls = 0;

	while (cls < PSTN_SLAB_CLASSES - 1 && bytes * 2 > pstn_classes[cls].bytes)
		cls++;
	return cls;
}

static u32 next_class(u32 cls, u32 blocked, size_t left, enum pstn_growth growth)
{
	u32 fits;

	if (cls >= PSTN_SLAB_CLASSES - 1)
		return cls;
	if (growth == PSTN_GROW_NOW)
		return PSTN_SLAB_CLASSES - 1;
	fits = class_for(left);
	if (fits > cls)
		return fits;
	return blocked < 3 ? cls : cls + 1;
}

/* ---- room. */

/* For one record at the write offset, leaving a line for the next header. */
static u32 room_at(const struct writer *w)
{
	const u32 end = w->off >= w->peer ? w->ring.bytes : w->peer;

	return end - w->off - LINE;
}

static u32 room_at_start(const struct writer *w)
{
	return w->off >= w->peer && w->peer >= 2 * LINE ? w->peer - LINE : 0;
}

static u64 budget_of(struct pstn_end *e, u32 lines)
{
	const u32 said = READ_ONCE(e->peer_ctl->rcv_room);

	return (u64)lines * LINE + (said != 0 ? said : RCV_ROOM) / LINE * LINE;
}

/* At least an eighth of the ring: a reader announces space when a sixteenth has come back. */
static u64 allowed(struct pstn_end *e, const struct writer *w)
{
	const u64 all = budget_of(e, w->budget);

	return all < w->ring.bytes / 8 ? w->ring.bytes / 8 : all;
}

/* Ring bytes that have not come back; with those in the ring before, if the reader is there. */
static u32 unread(struct pstn_end *e, const struct writer *w)
{
	const u32 here =
		w->off >= w->peer ? w->off - w->peer : w->ring.bytes - w->peer + w->off;
	struct pstn_ring old;
	u32 mark, at, gen;
	u64 read;

	if (w->old == 0 || !pstn_ring_place(e->side, w->old & PLACE_MASK, &old))
		return here;
	read = smp_load_acquire(&e->peer_pos->read); /* [R1] */
	gen = (u32)(read >> 32);
	if (gen == pstn_ring_gen(w->desc))
		return here;
	mark = (u32)((w->old >> PSTN_RING_OLD_MARK_SHIFT) * LINE % old.bytes);
	at = gen == ((pstn_ring_gen(w->desc) - 1u) & 0xffffu) ? (u32)read % old.bytes : 0;
	return here + (mark >= at ? mark - at : old.bytes - at + mark);
}

/* How much of `want` the budget lets be written; 0: the reader has to read first. */
static size_t within(struct pstn_end *e, struct writer *w, size_t want)
{
	const u64 most = allowed(e, w);
	u64 left;
	u32 now;

	if (unread(e, w) + pstn_record_bytes(want) > most)
		learn(e, w);
	now = unread(e, w);
	left = now < most ? most - now : 0;
	if (pstn_record_bytes(want) <= left)
		return want;
	return left >= 2 * LINE ? left - LINE : 0;
}

/* ---- records. */

enum put { PUT_NOTHING, PUT_SOME, PUT_FAULT };

/* One record of `len` bytes at the write offset, or, a wrap, at 0. */
static enum put put(struct pstn_end *e, struct writer *w, struct pstn_copy *from, u32 len,
		    bool wrap, size_t *done)
{
	const u32 at = wrap ? 0 : w->off;
	const u32 next = at + pstn_record_bytes(len);
	u64 *header;

	if (pstn_ring_copy(e, &w->ring, at + pstn_payload_off(len), len, from, true) != len)
		return PUT_FAULT; /* nothing has happened: no header says that it is there */
	header = pstn_ring_header(e, &w->ring, next, true);
	if (!header)
		return PUT_FAULT;
	WRITE_ONCE(*header, (u64)0);
	header = pstn_ring_header(e, &w->ring, at, true);
	if (!header)
		return PUT_FAULT;
	smp_store_release(header, (u64)len); /* [R3] */
	if (wrap) {
		header = pstn_ring_header(e, &w->ring, w->off, true);
		if (header)
			smp_store_release(header, (u64)PSTN_REC_WRAP); /* [R3] */
		w->window = w->step;
	}
	w->off = next;
	w->since += pstn_record_bytes(len);
	w->bytes += len;
	*done = len;
	return PUT_SOME;
}

/* Behind the window: whether the reader has drained the ring, so that the writer can start again at
 * 0, to stay in few lines.
 */
static bool wraps_early(struct pstn_end *e, struct writer *w, u32 need)
{
	bool drained;

	learn(e, w);
	drained = w->peer == w->off;
	w->step = drained ? WINDOW : w->step < w->ring.bytes / 16 ? w->step * 2 : w->step;
	if (!drained)
		return false;
	w->burst = w->since > w->burst - w->burst / 8 ? w->since : w->burst - w->burst / 8;
	w->since = 0;
	return w->off >= w->ring.bytes / 4 &&
	       room_at_start(w) >= (u64)need + 2 * (u64)w->burst && w->budget == 0;
}

/* One record of at most `left` bytes. */
static enum put put_some(struct pstn_end *e, struct writer *w, struct pstn_copy *from, size_t left,
			 size_t *done)
{
	size_t want = min_t(size_t, left, CHUNK);
	bool looked = false;
	u32 need, end, start, room;

	if (w->budget != 0) {
		want = within(e, w, want);
		if (want == 0)
			return PUT_NOTHING;
	}
	need = pstn_record_bytes(want);
	if (w->off >= w->window) {
		if (wraps_early(e, w, need))
			return put(e, w, from, (u32)want, true, done);
		looked = true;
		w->window = w->off + w->step;
	}
	for (;; looked = true) {
		if (room_at(w) >= need)
			return put(e, w, from, (u32)want, false, done);
		if (room_at_start(w) >= need)
			return put(e, w, from, (u32)want, true, done);
		if (looked)
			break;
		learn(e, w);
	}
	/* Not all of it: what there is room for, if that is worth a record. */
	end = room_at(w);
	start = room_at_start(w);
	room = end >= start ? end : start;
	if (room < LINE || (room < 512 && room < w->ring.bytes / 8))
		return PUT_NOTHING;
	return put(e, w, from, room - (room < 2048 ? PSTN_REC_HDR : LINE), end < start, done);
}

/* What a writer of the library that died left: a record is there before tx.off has moved. */
static bool repair(struct pstn_end *e, struct writer *w)
{
	u32 guard;

	for (guard = 0; guard < w->ring.bytes / LINE; guard++) {
		u64 *header = pstn_ring_header(e, &w->ring, w->off, true);
		u64 h;

		if (!header)
			return false;
		h = smp_load_acquire(header); /* [R3] */
		if (h == 0)
			return true;
		if (h < PSTN_REC_WRAP)
			h &= ~PSTN_REC_HELD;
		if (h == PSTN_REC_WRAP) {
			w->off = 0;
		} else if (h <= w->ring.bytes && w->off + pstn_record_bytes(h) < w->ring.bytes) {
			w->off += pstn_record_bytes(h);
			w->bytes += h;
		} else {
			return true; /* not ours */
		}
	}
	return true;
}

static bool load(struct pstn_end *e, struct writer *w)
{
	const struct pstn_tx *tx = e->tx;

	w->off = READ_ONCE(tx->off);
	w->peer = READ_ONCE(tx->peer);
	w->window = READ_ONCE(tx->window);
	w->burst = READ_ONCE(tx->burst);
	w->since = READ_ONCE(tx->since);
	w->step = READ_ONCE(tx->step);
	w->blocked = READ_ONCE(tx->blocked);
	w->budget = READ_ONCE(tx->budget);
	w->desc = READ_ONCE(tx->ring);
	w->old = READ_ONCE(tx->old_ring);
	w->bytes = READ_ONCE(tx->bytes);
	if (w->desc == 0)
		return true;
	if ((w->desc & PSTN_RING_F_PENDING) != 0)
		return finish_move(e, w);
	return pstn_ring_place(e->side, w->desc, &w->ring) && w->off % LINE == 0 &&
	       w->off < w->ring.bytes && w->peer % LINE == 0 && w->peer < w->ring.bytes;
}

static void store(struct pstn_end *e, const struct writer *w)
{
	struct pstn_tx *tx = e->tx;

	WRITE_ONCE(tx->off, w->off);
	WRITE_ONCE(tx->peer, w->peer);
	WRITE_ONCE(tx->window, w->window);
	WRITE_ONCE(tx->burst, w->burst);
	WRITE_ONCE(tx->since, w->since);
	WRITE_ONCE(tx->step, w->step);
	WRITE_ONCE(tx->blocked, w->blocked);
	WRITE_ONCE(tx->ring, w->desc);
	WRITE_ONCE(tx->old_ring, w->old);
	WRITE_ONCE(tx->bytes, w->bytes);
}

void pstn_ring_write(struct pstn_end *e, struct pstn_copy *from, size_t want,
		     enum pstn_growth growth, struct pstn_write *r)
{
	struct writer w;

	r->bytes = 0;
	r->fault = false;
	r->broken = !load(e, &w);
	if (r->broken || (w.desc == 0 && !attach(e, &w, class_for(want))))
		return;
	drop_old(e, &w);
	r->broken = !repair(e, &w);
	while (!r->broken && r->bytes < want) {
		size_t n = 0;
		u32 next;

		r->fault = put_some(e, &w, from, want - r->bytes, &n) == PUT_FAULT;
		r->bytes += n;
		if (r->fault)
			break;
		if (n != 0)
			continue;
		if (w.budget != 0 && within(e, &w, 1) == 0)
			break;
		if (w.blocked < 255)
			w.blocked++;
		next = next_class(pstn_ring_class(w.desc), w.blocked, want - r->bytes, growth);
		if (next == pstn_ring_class(w.desc) || !grow(e, &w, next))
			break;
	}
	store(e, &w);
	WRITE_ONCE(e->tx->records, READ_ONCE(e->tx->records) + 1);
}

/* Whether a full ring would be followed by a larger one. */
static bool growable(struct pstn_end *e, const struct writer *w)
{
	const u32 chunks = pstn_env_chunks(e->env);
	u32 cls;

	if (w->old != 0 &&
	    (u32)(smp_load_acquire(&e->peer_pos->read) >> 32) != pstn_ring_gen(w->desc)) /* [R1] */
		return false;
	for (cls = pstn_ring_class(w->desc) + 1; cls < PSTN_SLAB_CLASSES; cls++) {
		if (ref_find(e->env, ring_maps[cls], ~0ull, rings_in(cls, chunks), 0) != PSTN_NONE)
			return true;
	}
	return false;
}

/* What a look without the lock sees of a ring in use. False: there is none, or it can't be. */
static bool glimpse(struct pstn_end *e, struct writer *w)
{
	w->desc = READ_ONCE(e->tx->ring);
	w->off = READ_ONCE(e->tx->off);
	w->old = READ_ONCE(e->tx->old_ring);
	w->budget = READ_ONCE(e->tx->budget);
	w->peer = READ_ONCE(e->tx->peer);
	if (w->desc == 0 || (w->desc & PSTN_RING_F_PENDING) != 0 ||
	    !pstn_ring_place(e->side, w->desc, &w->ring) || w->off % LINE != 0 ||
	    w->off >= w->ring.bytes || w->peer % LINE != 0 || w->peer >= w->ring.bytes)
		return false;
	learn_only(e, w);
	return true;
}

u32 pstn_ring_unread(struct pstn_end *e)
{
	struct writer w;

	return glimpse(e, &w) ? unread(e, &w) : 0;
}

bool pstn_ring_writable(struct pstn_end *e)
{
	struct writer w;
	u32 end, start;

	if (!glimpse(e, &w))
		return true; /* the next write makes one, or says what is wrong */
	if (w.budget != 0 && (u64)unread(e, &w) * 3 > allowed(e, &w) * 2)
		return false;
	/* An eighth of the ring in one piece: no wake-up for each freed line. */
	end = room_at(&w);
	start = room_at_start(&w);
	return (end >= start ? end : start) >= w.ring.bytes / 8 || growable(e, &w);
}
