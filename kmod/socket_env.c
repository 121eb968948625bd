// SPDX-License-Identifier: GPL-2.0
/* socket_env.c - what a ring needs of the kernel: pages of the rings and of the family's tables. */
#include <linux/mm.h>

#include "kmod.h"

/* Neither the connection's place nor the endpoint's is another connection's by now, and the family
 * has not ended it, as after the death of the process that held the endpoint. A family that lies
 * about that spoils what is its own.
 */
bool pstn_endpoint_is_here(const struct pstn_endpoint *ep)
{
	BUILD_BUG_ON(offsetof(struct pstn_ep, conn_idx) != offsetof(struct pstn_ep, lgr_idx) + 4 ||
		     offsetof(struct pstn_ep, conn_gen) != offsetof(struct pstn_ep, lgr_idx) + 8);
	return READ_ONCE(ep->lines.setup->gen) == ep->gen && READ_ONCE(ep->place[0]) == ep->lgr_idx &&
	       READ_ONCE(ep->place[1]) == ep->conn_idx && READ_ONCE(ep->place[2]) == ep->gen &&
	       (READ_ONCE(ep->lines.ctl->flags) & PSTN_CF_CLOSED) == 0;
}

bool pstn_env_begin(struct pstn_env *env, struct pstn_endpoint *ep)
{
	env->ep = ep;
	env->end = ep->lines;
	env->end.env = env;
	env->ring = NULL;
	env->ref = NULL;
	env->starved = false;
	return pstn_endpoint_is_here(ep);
}

void pstn_env_end(struct pstn_env *env)
{
	if (env->ring)
		pstn_segment_put(env->ring, env->ring_written);
	if (env->ref)
		pstn_segment_put(env->ref, true);
	env->ring = NULL;
	env->ref = NULL;
}

u8 *pstn_env_ring_page(struct pstn_env *env, u64 page, bool write)
{
	const u64 off = page * 4096;

	if (!env->ring || env->ring_at != off >> PAGE_SHIFT) {
		if (env->ring)
			pstn_segment_put(env->ring, env->ring_written);
		env->ring = pstn_segment_page(&env->ep->seat->link->seg, off);
		env->ring_at = off >> PAGE_SHIFT;
		env->ring_written = false;
		if (IS_ERR(env->ring)) {
			env->ring = NULL;
			env->starved = true;
			return NULL;
		}
	}
	env->ring_written |= write;
	return page_address(env->ring) + offset_in_page(off);
}

void *pstn_env_ref(struct pstn_env *env, size_t in_ref)
{
	const struct pstn_stack *stack = env->ep->stack;
	const u64 off = stack->layout.lgrs + env->ep->lgr_idx * sizeof(struct pstn_lgr_ref) +
			in_ref;

	if (!env->ref || env->ref_at != off >> PAGE_SHIFT) {
		if (env->ref)
			pstn_segment_put(env->ref, true);
		env->ref = pstn_segment_page(&stack->seg, off);
		env->ref_at = off >> PAGE_SHIFT;
		if (IS_ERR(env->ref)) {
			env->ref = NULL;
			env->starved = true;
			return NULL;
		}
	}
	return page_address(env->ref) + offset_in_page(off);
}

bool pstn_env_lock_ref(struct pstn_env *env)
{
	u32 *word = pstn_env_ref(env, offsetof(struct pstn_lgr_ref, lock));

	return word && pstn_shared_lock(env->ep->stack, word) >= 0;
}

void pstn_env_unlock_ref(struct pstn_env *env)
{
	u32 *word = pstn_env_ref(env, offsetof(struct pstn_lgr_ref, lock));

	if (word)
		pstn_shared_unlock(word);
}

/* As ChunksOf() of lib/state/address_limit.h. What it says binds the writer's choice of a ring and
 * nothing else.
 */
u32 pstn_env_chunks(struct pstn_env *env)
{
	const u32 *own = pstn_env_ref(env, offsetof(struct pstn_lgr_ref, chunks));
	const u32 ours = own ? READ_ONCE(*own) : 0;
	const u32 *at = pstn_env_ref(env, offsetof(struct pstn_lgr_ref, remote));
	const bool same = at && READ_ONCE(*at) == PSTN_LGR_SAME_USER;
	const u32 most = same ? 2 * PSTN_SLAB_BYTES >> 20 : 16;
	u32 theirs = 0;

	/* Of the link group's header, whose page no connection has. */
	if (pstn_segment_read(&env->ep->seat->link->seg,
			      offsetof(struct pstn_lgr_hdr, chunks) + 4 * (env->ep->side ^ 1),
			      &theirs, sizeof(theirs)))
		theirs = 0;
	if (ours != 0 && (theirs == 0 || ours < theirs))
		theirs = ours;
	return theirs == 0 || theirs > most ? most : theirs;
}
