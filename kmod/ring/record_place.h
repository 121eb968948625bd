/* SPDX-License-Identifier: GPL-2.0 */
/* record_place.h - where rings and their records lie: for record_ring.c and record_writer.c. */
#ifndef PSTN_RECORD_PLACE_H
#define PSTN_RECORD_PLACE_H

#include "record_ring.h"

struct pstn_class {
	u32 first_page, pages_shift, count, bytes;
};

extern const struct pstn_class pstn_classes[PSTN_SLAB_CLASSES];

/* A ring whose descriptor has been checked. */
struct pstn_ring {
	u64 page; /* in the link group's memory */
	u32 bytes;
};

static inline u32 pstn_ring_gen(u64 desc)
{
	return (u32)(desc >> PSTN_RING_GEN_SHIFT);
}

static inline u32 pstn_ring_class(u64 desc)
{
	return (u32)(desc >> PSTN_RING_CLASS_SHIFT) & 0xfu;
}

static inline u64 pstn_slab_page(u32 side)
{
	return (PSTN_LGR_SLAB_OFF + (side & 1u) * PSTN_SLAB_BYTES) / 4096u;
}

/* A long record's payload has a line of its own, a short one's begins behind the header. */
static inline u32 pstn_payload_off(u64 len)
{
	return len < 2048 ? PSTN_REC_HDR : PSTN_REC_ALIGN;
}

/* Of a length that is at most a ring's. */
static inline u32 pstn_record_bytes(u64 len)
{
	return (u32)((len + pstn_payload_off(len) + PSTN_REC_ALIGN - 1) / PSTN_REC_ALIGN *
		     PSTN_REC_ALIGN);
}

/* Whether `desc` is a ring of `side`'s slab, and where it is. */
bool pstn_ring_place(u32 side, u64 desc, struct pstn_ring *ring);
/* The header at `off`, until the next look at a ring; NULL: no memory. */
u64 *pstn_ring_header(struct pstn_end *e, const struct pstn_ring *ring, u32 off, bool write);
/* Moves up to `n` bytes at `off`, which the ring has. Fewer: no memory, or the copy's doing. */
size_t pstn_ring_copy(struct pstn_end *e, const struct pstn_ring *ring, u32 off, size_t n,
		      struct pstn_copy *copy, bool write);
bool pstn_hold_is_over(u64 held);

#endif
