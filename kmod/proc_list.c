// SPDX-License-Identifier: GPL-2.0
/* proc_list.c - /proc/postern: what there is, one line each. */
/*
 * stacks, endpoints, holders. A user reads of his own; who may administrate the network (or
 * CAP_SYS_ADMIN's holder: capabilities of the initial user namespace) reads of all.
 */
#include <linux/cred.h>
#include <linux/pid_namespace.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <net/sock.h>

#include "kmod.h"

static bool may_see(struct seq_file *m, const struct pstn_stack *stack)
{
	return uid_eq(m->file->f_cred->euid, stack->user->uid) ||
	       file_ns_capable(m->file, &init_user_ns, CAP_NET_ADMIN);
}

static unsigned int uid_of(struct seq_file *m, const struct pstn_stack *stack)
{
	return from_kuid_munged(seq_user_ns(m), stack->user->uid);
}

static void *list_start(struct list_head *list, loff_t *pos)
{
	mutex_lock(&pstn_lists);
	return seq_list_start_head(list, *pos);
}

static void list_stop(struct seq_file *m, void *v)
{
	mutex_unlock(&pstn_lists);
}

static void *stacks_start(struct seq_file *m, loff_t *pos)
{
	return list_start(&pstn_stacks, pos);
}

static void *stacks_next(struct seq_file *m, void *v, loff_t *pos)
{
	return seq_list_next(v, &pstn_stacks, pos);
}

static int stacks_show(struct seq_file *m, void *v)
{
	const struct pstn_stack *stack = list_entry(v, struct pstn_stack, node);

	if (v == &pstn_stacks) {
		seq_puts(m, "stack id                               uid links holders references\n");
	} else if (may_see(m, stack)) {
		const struct pstn_seat *seat;
		unsigned int links = 0;
		unsigned long i;

		xa_for_each((struct xarray *)&stack->seats, i, seat)
			links++;
		seq_printf(m, "%llu %016llx%016llx %u %u %zu %u\n", stack->serial, stack->id.hi,
			   stack->id.lo, uid_of(m, stack), links,
			   list_count_nodes((struct list_head *)&stack->members),
			   refcount_read(&stack->refs));
	}
	return 0;
}

static void *endpoints_start(struct seq_file *m, loff_t *pos)
{
	return list_start(&pstn_endpoints, pos);
}

static void *endpoints_next(struct seq_file *m, void *v, loff_t *pos)
{
	return seq_list_next(v, &pstn_endpoints, pos);
}

static void show_name(struct seq_file *m, const struct pstn_addr *addr)
{
	seq_printf(m, " [%pI6c]:%u", addr->ip, addr->port);
}

static int endpoints_show(struct seq_file *m, void *v)
{
	struct pstn_endpoint *ep = list_entry(v, struct pstn_endpoint, node);

	if (v == &pstn_endpoints) {
		seq_puts(m, "stack uid inode path endpoint link connection side local peer\n");
	} else if (may_see(m, ep->stack)) {
		seq_printf(m, "%llu %u %lu", ep->stack->serial, uid_of(m, ep->stack),
			   SOCK_INODE(ep->sock)->i_ino);
		if (smp_load_acquire(&ep->accelerated)) { /* [M1] */
			seq_printf(m, " memory %u %u %u %u", ep->ep_idx, ep->lgr_idx, ep->conn_idx,
				   ep->side);
			show_name(m, &ep->local);
			show_name(m, &ep->peer);
			seq_putc(m, '\n');
		} else {
			seq_puts(m, " kernel - - - - - -\n");
		}
	}
	return 0;
}

static void *holders_start(struct seq_file *m, loff_t *pos)
{
	return list_start(&pstn_members, pos);
}

static void *holders_next(struct seq_file *m, void *v, loff_t *pos)
{
	return seq_list_next(v, &pstn_members, pos);
}

static int holders_show(struct seq_file *m, void *v)
{
	const struct pstn_member *member = list_entry(v, struct pstn_member, all);

	if (v == &pstn_members) {
		seq_puts(m, "stack uid pid slot\n");
	} else if (may_see(m, member->stack)) {
		const u32 slot = READ_ONCE(member->slot);

		seq_printf(m, "%llu %u %d ", member->stack->serial, uid_of(m, member->stack),
			   pid_nr_ns(member->tgid, proc_pid_ns(file_inode(m->file)->i_sb)));
		if (slot == PSTN_NONE)
			seq_puts(m, "-\n");
		else
			seq_printf(m, "%u\n", slot);
	}
	return 0;
}

static const struct seq_operations stacks_ops = {
	.start = stacks_start, .next = stacks_next, .stop = list_stop, .show = stacks_show,
};

static const struct seq_operations endpoints_ops = {
	.start = endpoints_start, .next = endpoints_next, .stop = list_stop, .show = endpoints_show,
};

static const struct seq_operations holders_ops = {
	.start = holders_start, .next = holders_next, .stop = list_stop, .show = holders_show,
};

int pstn_proc_init(void)
{
	struct proc_dir_entry *dir = proc_mkdir("postern", NULL);

	if (dir && proc_create_seq("stacks", 0444, dir, &stacks_ops) &&
	    proc_create_seq("endpoints", 0444, dir, &endpoints_ops) &&
	    proc_create_seq("holders", 0444, dir, &holders_ops))
		return 0;
	remove_proc_subtree("postern", NULL);
	return -ENOMEM;
}

void pstn_proc_exit(void)
{
	remove_proc_subtree("postern", NULL);
}
