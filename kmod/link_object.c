// SPDX-License-Identifier: GPL-2.0
/* link_object.c - a link group: which stack has which side, which socket which end. */
/*
 * Both sides write the memory, header included. The module believes of it no more than it has to:
 * a stack gets the side that bears its name, if no other stack has it. A peer that writes its own
 * name over both costs itself and its victim this link group, which it could spoil in easier ways,
 * and nobody else anything.
 */
#include <linux/nospec.h>
#include <linux/slab.h>

#include "kmod.h"

static LIST_HEAD(links); /* under pstn_lists */

struct head {
	u32 magic, abi_version;
	u64 size_bytes;
	struct pstn_uuid id, stack[2];
};

static int check_header(const struct pstn_segment *seg, const struct pstn_stack *stack, u32 side)
{
	struct head head;
	int err;

	BUILD_BUG_ON(offsetof(struct pstn_lgr_hdr, stack) != offsetof(struct head, stack));
	if (seg->bytes != PSTN_LGR_BYTES)
		return -EINVAL;
	err = pstn_segment_read(seg, 0, &head, sizeof(head));
	if (err)
		return err;
	if (head.magic != PSTN_MAGIC_LGR || head.abi_version != PSTN_ABI_VERSION ||
	    head.size_bytes != PSTN_LGR_BYTES ||
	    memcmp(&head.stack[side], &stack->id, sizeof(stack->id)) != 0)
		return -EINVAL;
	return 0;
}

static struct pstn_link *link_of(const struct pstn_segment *seg)
{
	struct pstn_link *link;

	list_for_each_entry(link, &links, node) {
		if (pstn_segment_same(&link->seg, seg)) {
			refcount_inc(&link->refs);
			return link;
		}
	}
	link = kzalloc(sizeof(*link), GFP_KERNEL_ACCOUNT);
	if (!link)
		return NULL;
	refcount_set(&link->refs, 1);
	link->seg = *seg;
	get_file(seg->file);
	xa_init_flags(&link->ends[0], XA_FLAGS_ACCOUNT);
	xa_init_flags(&link->ends[1], XA_FLAGS_ACCOUNT);
	list_add(&link->node, &links);
	return link;
}

static void link_put(struct pstn_link *link)
{
	if (!refcount_dec_and_test(&link->refs))
		return;
	list_del(&link->node);
	xa_destroy(&link->ends[0]);
	xa_destroy(&link->ends[1]);
	pstn_segment_close(&link->seg);
	kfree(link);
}

static int take_seat(struct pstn_stack *stack, struct pstn_link *link, u32 lgr_idx, u32 side)
{
	struct pstn_seat *seat = xa_load(&stack->seats, lgr_idx);
	int err;

	if (seat)
		return seat->link == link && seat->side == side ? 1 : -EBUSY;
	if (link->side[side])
		return -EBUSY;
	err = pstn_user_charge(stack->user, PSTN_LIMIT_LINKS);
	if (err)
		return err;
	seat = kzalloc(sizeof(*seat), GFP_KERNEL_ACCOUNT);
	err = -ENOMEM;
	if (seat) {
		seat->link = link;
		seat->side = side;
		err = xa_err(xa_store(&stack->seats, lgr_idx, seat, GFP_KERNEL_ACCOUNT));
	}
	if (err) {
		kfree(seat);
		pstn_user_uncharge(stack->user, PSTN_LIMIT_LINKS);
		return err;
	}
	link->side[side] = stack;
	return 0;
}

int pstn_link_sit(struct pstn_stack *stack, const struct pstn_ioc_link *arg)
{
	struct pstn_segment seg;
	struct pstn_link *link;
	u32 side;
	int err;

	if (arg->zero != 0 || arg->side > 1 || arg->lgr_idx >= stack->counts.lgrs)
		return -EINVAL;
	side = array_index_nospec(arg->side, 2);
	err = pstn_segment_open(&seg, arg->memfd);
	if (err)
		return err;
	err = check_header(&seg, stack, side);
	if (!err) {
		mutex_lock(&pstn_lists);
		link = link_of(&seg);
		err = link ? take_seat(stack, link, arg->lgr_idx, side) : -ENOMEM;
		if (link && err) /* no new seat: no new reference */
			link_put(link);
		mutex_unlock(&pstn_lists);
	}
	pstn_segment_close(&seg);
	return err < 0 ? err : 0;
}

void pstn_link_leave(struct pstn_stack *stack)
{
	struct pstn_seat *seat;
	unsigned long i;

	xa_for_each(&stack->seats, i, seat) {
		xa_erase(&stack->seats, i);
		seat->link->side[seat->side] = NULL;
		link_put(seat->link);
		pstn_user_uncharge(stack->user, PSTN_LIMIT_LINKS);
		kfree(seat);
	}
}

struct pstn_seat *pstn_link_seat(struct pstn_stack *stack, u32 lgr_idx)
{
	if (lgr_idx >= stack->counts.lgrs)
		return NULL;
	return xa_load(&stack->seats, array_index_nospec(lgr_idx, stack->counts.lgrs));
}

void pstn_link_wake(struct pstn_link *link, u32 side, u32 conn_idx, unsigned int what)
{
	struct xarray *ends = &link->ends[side & 1];
	struct pstn_endpoint *ep;

	xa_lock(ends); /* its socket's release takes it out first */
	ep = xa_load(ends, conn_idx);
	if (ep)
		pstn_endpoint_wake(ep, what);
	xa_unlock(ends);
	pstn_sleepers_wake(link, side & 1, conn_idx, what);
}
