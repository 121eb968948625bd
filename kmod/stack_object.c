// SPDX-License-Identifier: GPL-2.0
/* stack_object.c - a stack: one object for all that have its memory, and descriptors of it. */
/*
 * Which stack a memory is, the memory's inode says; what its header says is a name that any writer
 * can change. The header is read once, when the first process makes the stack known. Its owner is
 * who made the memory, and nobody else gets a descriptor or makes a request of one.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/nospec.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "kmod.h"

DEFINE_MUTEX(pstn_lists);
LIST_HEAD(pstn_stacks);
LIST_HEAD(pstn_members);
LIST_HEAD(pstn_endpoints);

static u64 last_serial; /* under pstn_lists */

/* ---- what a header may say (lib/state/limits.h, stack_map.cc). */

static bool is_within(u32 n, u32 least, u32 most)
{
	return n >= least && n <= most;
}

static bool counts_are_sound(const struct pstn_stack_counts *c)
{
	u32 chunks;

	if (!is_within(c->slots, 8, PSTN_STACK_SLOTS) || !is_within(c->eps, 16, 1048576) ||
	    !is_within(c->lgrs, 4, 1024) || !is_within(c->epolls, 8, 2048) || c->items < c->eps ||
	    !is_within(c->items - c->eps, 16, 4194304) || c->waiters != PSTN_WAITERS || c->zero != 0)
		return false;
	chunks = 16 * ((c->eps + PSTN_FDCHUNK_FDS - 1) / PSTN_FDCHUNK_FDS);
	if (chunks < 16 * c->slots)
		chunks = 16 * c->slots;
	return c->fdchunks == chunks;
}

static u64 place(u64 *at, u64 bytes, u32 count)
{
	const u64 begin = PSTN_ALIGN_UP(*at, 4096);

	*at = begin + bytes * count;
	return begin;
}

static void lay_out(const struct pstn_stack_counts *c, struct pstn_layout *l)
{
	u64 at = sizeof(struct pstn_stack_hdr);

	place(&at, sizeof(struct pstn_waiter), c->waiters);
	place(&at, sizeof(struct pstn_epoll), c->epolls);
	place(&at, sizeof(struct pstn_slot), c->slots);
	l->lgrs = place(&at, sizeof(struct pstn_lgr_ref), c->lgrs);
	l->eps = place(&at, sizeof(struct pstn_ep), c->eps);
	place(&at, sizeof(struct pstn_item), c->items);
	place(&at, sizeof(struct pstn_fdchunk), c->fdchunks);
	l->bytes = PSTN_ALIGN_UP(at, 4096);
}

struct head {
	u32 magic, abi_version;
	u64 size_bytes;
	struct pstn_uuid id;
};

static int read_header(struct pstn_stack *stack)
{
	struct head head;
	int err;

	BUILD_BUG_ON(offsetof(struct pstn_stack_hdr, id) != offsetof(struct head, id));
	err = pstn_segment_read(&stack->seg, 0, &head, sizeof(head));
	if (err)
		return err;
	err = pstn_segment_read(&stack->seg, offsetof(struct pstn_stack_hdr, counts),
				&stack->counts, sizeof(stack->counts));
	if (err)
		return err;
	if (head.magic != PSTN_MAGIC_STACK || head.abi_version != PSTN_ABI_VERSION ||
	    !counts_are_sound(&stack->counts))
		return -EINVAL;
	lay_out(&stack->counts, &stack->layout);
	if (stack->layout.bytes != stack->seg.bytes || head.size_bytes != stack->seg.bytes)
		return -EINVAL;
	stack->id = head.id;
	return 0;
}

/* ---- the object. */

static void stack_free(struct pstn_stack *stack)
{
	struct pstn_endpoint *ep, *next;

	list_for_each_entry_safe(ep, next, &stack->released, node) {
		pstn_user_uncharge(stack->user, PSTN_LIMIT_ENDPOINTS);
		pstn_endpoint_free(ep);
	}
	xa_destroy(&stack->seats);
	if (stack->bells)
		fput(stack->bells);
	if (stack->inode)
		iput(stack->inode);
	if (stack->user) {
		pstn_user_uncharge(stack->user, PSTN_LIMIT_STACKS);
		pstn_user_put(stack->user);
	}
	pstn_segment_close(&stack->seg);
	kfree(stack);
}

void pstn_stack_put(struct pstn_stack *stack)
{
	if (!refcount_dec_and_mutex_lock(&stack->refs, &pstn_lists))
		return;
	list_del(&stack->node);
	pstn_link_leave(stack);
	mutex_unlock(&pstn_lists);
	stack_free(stack);
}

int pstn_stack_may(const struct pstn_stack *stack)
{
	return uid_eq(current_euid(), stack->user->uid) ? 0 : -EPERM;
}

/* Of memory that is no stack's yet; with its segment in any case. */
static struct pstn_stack *stack_new(const struct pstn_segment *seg)
{
	struct pstn_stack *stack = kzalloc(sizeof(*stack), GFP_KERNEL_ACCOUNT);
	struct pstn_user *user;
	int err = -ENOMEM;

	if (!stack)
		return ERR_PTR(-ENOMEM);
	stack->seg = *seg;
	get_file(seg->file);
	refcount_set(&stack->refs, 1);
	xa_init(&stack->seats);
	INIT_LIST_HEAD(&stack->members);
	INIT_LIST_HEAD(&stack->released);
	spin_lock_init(&stack->released_lock);
	spin_lock_init(&stack->bells_lock);
	init_waitqueue_head(&stack->released_wait);
	user = pstn_user_get(file_inode(seg->file)->i_uid);
	if (user) {
		err = pstn_user_charge(user, PSTN_LIMIT_STACKS);
		if (err)
			pstn_user_put(user);
		else
			stack->user = user;
	}
	if (!err)
		err = read_header(stack);
	if (!err) {
		stack->inode = pstn_fs_inode(last_serial + 1);
		err = stack->inode ? 0 : -ENOMEM;
	}
	if (err) {
		stack_free(stack);
		return ERR_PTR(err);
	}
	stack->serial = ++last_serial;
	list_add_tail(&stack->node, &pstn_stacks);
	return stack;
}

static struct pstn_stack *stack_of(const struct pstn_segment *seg)
{
	struct pstn_stack *stack;

	list_for_each_entry(stack, &pstn_stacks, node) {
		if (pstn_segment_same(&stack->seg, seg)) {
			refcount_inc(&stack->refs);
			return stack;
		}
	}
	return stack_new(seg);
}

/* ---- who holds its locks. */

/* The thread `tid` of the process `tgid`, in whose PID namespace the number was written. */
static bool thread_lives(struct pid *tgid, u32 tid)
{
	struct task_struct *task;
	bool lives = false;
	struct pid *pid;

	rcu_read_lock();
	pid = find_pid_ns(tid, ns_of_pid(tgid));
	task = pid ? pid_task(pid, PIDTYPE_PID) : NULL;
	lives = task && task_tgid(task) == tgid && READ_ONCE(task->exit_state) == 0;
	rcu_read_unlock();
	return lives;
}

bool pstn_stack_holder_lives(struct pstn_stack *stack, u32 word)
{
	const u32 mark = word >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER;
	const struct pstn_member *member;
	bool lives;

	/* The reaper, a process that has no slot, the module, one that has not joined: nothing is
	 * known of them here. One that has joined keeps its descriptor for as long as it lives.
	 */
	if (mark == 0 || mark > PSTN_STACK_SLOTS)
		return true;
	mutex_lock(&pstn_lists);
	lives = !test_bit(mark - 1, stack->joined);
	list_for_each_entry(member, &stack->members, node) {
		if (READ_ONCE(member->slot) == mark - 1)
			lives = lives || thread_lives(member->tgid, word & PSTN_LOCK_TID);
	}
	mutex_unlock(&pstn_lists);
	return lives;
}

/* ---- its descriptors. */

static long stack_join(struct pstn_member *member, const struct pstn_ioc_join *arg)
{
	if (arg->zero != 0 || arg->slot >= member->stack->counts.slots)
		return -EINVAL;
	/* The descriptor is the process's that asked for it; a child asks for one of its own. */
	if (member->tgid != task_tgid(current))
		return -EBUSY;
	mutex_lock(&pstn_lists);
	set_bit(arg->slot, member->stack->joined);
	WRITE_ONCE(member->slot, arg->slot);
	mutex_unlock(&pstn_lists);
	return 0;
}

static long stack_released(struct pstn_stack *stack, struct pstn_ioc_released __user *to)
{
	struct pstn_ioc_released out = {};
	struct pstn_endpoint *ep, *next;
	LIST_HEAD(told);

	spin_lock(&stack->released_lock);
	list_for_each_entry_safe(ep, next, &stack->released, node) {
		if (out.count == ARRAY_SIZE(out.ep_idx))
			break;
		out.ep_idx[out.count++] = ep->ep_idx;
		list_move_tail(&ep->node, &told);
	}
	stack->released_count -= out.count;
	out.more = stack->released_count;
	spin_unlock(&stack->released_lock);
	if (copy_to_user(to, &out, sizeof(out))) {
		spin_lock(&stack->released_lock);
		list_splice(&told, &stack->released);
		stack->released_count += out.count;
		spin_unlock(&stack->released_lock);
		return -EFAULT;
	}
	list_for_each_entry_safe(ep, next, &told, node) {
		pstn_user_uncharge(stack->user, PSTN_LIMIT_ENDPOINTS);
		pstn_endpoint_free(ep);
	}
	return 0;
}

static int member_open(const struct pstn_segment *seg, u32 flags);

/* Whoever has the descriptor may wake, and sleep, whatever his user is by now: it costs a look. */
static long stack_wake(struct pstn_stack *stack, const struct pstn_ioc_wake *arg)
{
	const u32 own = arg->what & PSTN_RING_OWN;
	const struct pstn_seat *seat;

	if (arg->zero != 0 || arg->conn_idx >= PSTN_CONNS ||
	    (arg->what & ~(PSTN_RING_DATA | PSTN_RING_SPACE | PSTN_RING_OWN)) != 0)
		return -EINVAL;
	seat = pstn_link_seat(stack, arg->lgr_idx);
	if (!seat)
		return -EINVAL;
	pstn_link_wake(seat->link, own ? seat->side : seat->side ^ 1, arg->conn_idx,
		       arg->what ^ own);
	return 0;
}

union stack_request {
	struct pstn_ioc_join join;
	struct pstn_ioc_bells bells;
	struct pstn_ioc_wake wake;
	struct pstn_ioc_wait wait;
	struct pstn_ioc_link link;
	struct pstn_ioc_endpoint endpoint;
};

static long stack_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct pstn_member *member = file->private_data;
	union stack_request r;
	long err;

	if (cmd != PSTN_IOC_JOIN && cmd != PSTN_IOC_LINK && cmd != PSTN_IOC_ENDPOINT &&
	    cmd != PSTN_IOC_RELEASED && cmd != PSTN_IOC_MEMBER && cmd != PSTN_IOC_BELLS &&
	    cmd != PSTN_IOC_WAKE && cmd != PSTN_IOC_WAIT)
		return -ENOTTY;
	err = cmd == PSTN_IOC_WAKE || cmd == PSTN_IOC_WAIT ? 0 : pstn_stack_may(member->stack);
	if (err)
		return err;
	if (cmd == PSTN_IOC_RELEASED)
		return stack_released(member->stack, (void __user *)arg);
	if (cmd == PSTN_IOC_MEMBER)
		return member_open(&member->stack->seg, PSTN_STACK_CLOEXEC);
	if (copy_from_user(&r, (void __user *)arg, _IOC_SIZE(cmd)))
		return -EFAULT;
	switch (cmd) {
	case PSTN_IOC_WAKE:
		return stack_wake(member->stack, &r.wake);
	case PSTN_IOC_WAIT:
		return pstn_sleepers_wait(member->stack, &r.wait);
	case PSTN_IOC_BELLS:
		return pstn_library_bells(member->stack, &r.bells);
	case PSTN_IOC_JOIN:
		return stack_join(member, &r.join);
	case PSTN_IOC_LINK:
		return pstn_link_sit(member->stack, &r.link);
	default:
		return pstn_endpoint_open(member->stack, &r.endpoint);
	}
}

static __poll_t stack_poll(struct file *file, poll_table *wait)
{
	struct pstn_stack *stack = ((struct pstn_member *)file->private_data)->stack;

	poll_wait(file, &stack->released_wait, wait);
	return list_empty_careful(&stack->released) ? 0 : EPOLLIN | EPOLLRDNORM;
}

static void member_end(struct pstn_member *member)
{
	mutex_lock(&pstn_lists);
	list_del(&member->node);
	list_del(&member->all);
	mutex_unlock(&pstn_lists);
	pstn_stack_put(member->stack);
	put_pid(member->tgid);
	kfree(member);
}

static int stack_release(struct inode *inode, struct file *file)
{
	member_end(file->private_data);
	return 0;
}

static void stack_fdinfo(struct seq_file *m, struct file *file)
{
	const struct pstn_member *member = file->private_data;

	seq_printf(m, "postern-stack:\t%llu %016llx%016llx\n", member->stack->serial,
		   member->stack->id.hi, member->stack->id.lo);
}

static const struct file_operations stack_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = stack_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = stack_poll,
	.release = stack_release,
	.show_fdinfo = stack_fdinfo,
	.llseek = noop_llseek,
};

static struct pstn_member *member_new(const struct pstn_segment *seg)
{
	struct pstn_member *member = kzalloc(sizeof(*member), GFP_KERNEL_ACCOUNT);
	struct pstn_stack *stack;

	if (!member)
		return ERR_PTR(-ENOMEM);
	mutex_lock(&pstn_lists);
	stack = stack_of(seg);
	if (!IS_ERR(stack)) {
		member->stack = stack;
		member->slot = PSTN_NONE;
		member->tgid = get_pid(task_tgid(current));
		list_add_tail(&member->node, &stack->members);
		list_add_tail(&member->all, &pstn_members);
	}
	mutex_unlock(&pstn_lists);
	if (!IS_ERR(stack))
		return member;
	kfree(member);
	return ERR_CAST(stack);
}

static int member_open(const struct pstn_segment *seg, u32 flags)
{
	struct pstn_member *member;
	struct file *file;
	int fd;

	if (!uid_eq(file_inode(seg->file)->i_uid, current_euid()))
		return -EPERM;
	fd = get_unused_fd_flags(O_RDWR | (flags & PSTN_STACK_CLOEXEC ? O_CLOEXEC : 0));
	if (fd < 0)
		return fd;
	member = member_new(seg);
	if (IS_ERR(member)) {
		put_unused_fd(fd);
		return PTR_ERR(member);
	}
	file = pstn_fs_file(member->stack->inode, &stack_fops, member);
	if (IS_ERR(file)) {
		member_end(member);
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	fd_install(fd, file);
	return fd;
}

int pstn_stack_open(const struct pstn_ioc_stack *arg)
{
	struct pstn_segment seg;
	int fd;

	if ((arg->flags & ~PSTN_STACK_CLOEXEC) != 0)
		return -EINVAL;
	fd = pstn_segment_open(&seg, arg->memfd);
	if (fd)
		return fd;
	fd = member_open(&seg, arg->flags);
	pstn_segment_close(&seg);
	return fd;
}
