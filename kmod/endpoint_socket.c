// SPDX-License-Identifier: GPL-2.0
/* endpoint_socket.c - an endpoint's socket: the kernel's own, with some operations of ours. */
/*
 * The descriptor of an endpoint is a `struct socket` of the family that the program asked for, as
 * the kernel makes it, with the kernel's TCP in it: it has the port, the options, the identity
 * (SO_COOKIE), a place in `ss`, and it is what any code casts it to. Only the table of operations
 * differs. It is a copy of the kernel's with some of ours in it:
 *
 *     not accelerated    ours calls the kernel's: nothing differs from any socket
 *     accelerated        calls that move bytes, wait, or ask for names are socket_stream.c's; the
 *                        rest is the kernel's still
 *
 * The step from the first to the second is made once, by PSTN_IOC_GO. What it says is checked here;
 * from then on the module finds the connection without asking anybody.
 *
 * A socket finds its endpoint by the private field of its inode, which sockets leave alone. One
 * that has our table and no endpoint is one that the kernel has made from ours (accept()); it is
 * given the kernel's table back before anybody sees it, and would be the kernel's in any case.
 */
#include <linux/compat.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/nospec.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/tcp.h>
#include <linux/uaccess.h>
#include <net/sock.h>
#include <net/tcp_states.h>

#include "compat/socket_ops_compat.h"
#include "kmod.h"

/* Of AF_INET and AF_INET6; null where the kernel has no such family. */
static const struct proto_ops *native_ops[2];
static struct proto_ops postern_ops[2];

static struct pstn_endpoint *endpoint_of(struct socket *sock)
{
	return READ_ONCE(SOCK_INODE(sock)->i_private);
}

/* The endpoint, if a call is ours to serve. */
static struct pstn_endpoint *accelerated(struct socket *sock)
{
	struct pstn_endpoint *ep = endpoint_of(sock);

	return ep && smp_load_acquire(&ep->accelerated) ? ep : NULL; /* [M1] */
}

static const struct proto_ops *native_of(struct socket *sock)
{
	return native_ops[sock->sk && sock->sk->sk_family == AF_INET6];
}

/* ---- end. */

void pstn_endpoint_free(struct pstn_endpoint *ep)
{
	unsigned int i;

	for (i = 0; i < ep->page_count; i++)
		pstn_segment_put(ep->pages[i], true);
	kfree(ep);
}

/* The last descriptor is gone. The family is told of an end of a connection that it has. */
static void endpoint_released(struct pstn_endpoint *ep)
{
	struct pstn_stack *stack = ep->stack;

	mutex_lock(&pstn_lists);
	list_del_init(&ep->node);
	mutex_unlock(&pstn_lists);
	if (ep->accelerated) {
		spin_lock(&stack->released_lock);
		list_add_tail(&ep->node, &stack->released);
		stack->released_count++;
		spin_unlock(&stack->released_lock);
		wake_up_interruptible_poll(&stack->released_wait, EPOLLIN | EPOLLRDNORM);
	} else {
		pstn_user_uncharge(stack->user, PSTN_LIMIT_ENDPOINTS);
		pstn_endpoint_free(ep);
	}
	pstn_stack_put(stack);
}

static int postern_release(struct socket *sock)
{
	struct pstn_endpoint *ep = endpoint_of(sock);
	const struct proto_ops *native = native_of(sock);
	int err;

	if (!ep)
		return native->release(sock);
	if (ep->accelerated) {
		/* Whoever rings finds no socket from here on. */
		xa_erase(&ep->seat->link->ends[ep->side], ep->conn_idx);
		del_timer_sync(&ep->held_timer);
		pstn_stream_close(ep);
	}
	SOCK_INODE(sock)->i_private = NULL;
	native = ep->native;
	err = native->release(sock);
	module_put(native->owner); /* the table's that the socket was made with */
	endpoint_released(ep);
	return err;
}

/* ---- PSTN_IOC_GO. */

static void *line(struct pstn_endpoint *ep, const struct pstn_segment *seg, u64 off)
{
	struct page *page;
	unsigned int i;

	page = pstn_segment_page(seg, off);
	if (IS_ERR(page))
		return page;
	/* The same page again, most of the time: one reference to each is enough. */
	for (i = 0; i < ep->page_count && ep->pages[i] != page; i++)
		;
	if (i < ep->page_count) {
		put_page(page);
	} else if (i < PSTN_END_PAGES) {
		ep->pages[ep->page_count++] = page;
	} else { /* somebody punches holes meanwhile: lines that follow each other lie in two pages */
		put_page(page);
		return ERR_PTR(-EAGAIN);
	}
	return page_address(page) + offset_in_page(off);
}

/* Where the lines of the endpoint and of the connection are, for as long as the socket lives: their
 * pages are held, so that the last close needs no memory to say that it is.
 */
static int find_lines(struct pstn_endpoint *ep, const struct pstn_seat *seat)
{
	const u64 own = ep->stack->layout.eps + (u64)ep->ep_idx * sizeof(struct pstn_ep);
	const u64 conn = PSTN_LGR_CONN_OFF + (u64)ep->conn_idx * sizeof(struct pstn_conn);
	const u64 ctl = conn + offsetof(struct pstn_conn, ctl);
	const u64 pos = conn + offsetof(struct pstn_conn, pos);
	const u32 side = ep->side;
	struct pstn_end *e = &ep->lines;
	const struct {
		void **to;
		const struct pstn_segment *seg;
		u64 off;
	} lines[] = {
		{ (void **)&e->flags, &ep->stack->seg, own + offsetof(struct pstn_ep, flags) },
		{ (void **)&ep->place, &ep->stack->seg, own + offsetof(struct pstn_ep, lgr_idx) },
		{ (void **)&e->hold, &ep->stack->seg, own + offsetof(struct pstn_ep, hold) },
		{ (void **)&e->tx, &ep->stack->seg, own + offsetof(struct pstn_ep, tx) },
		{ (void **)&e->rx, &ep->stack->seg, own + offsetof(struct pstn_ep, rx) },
		{ (void **)&e->setup, &seat->link->seg, conn + offsetof(struct pstn_conn, setup) },
		{ (void **)&e->ctl, &seat->link->seg, ctl + side * sizeof(*e->ctl) },
		{ (void **)&e->peer_ctl, &seat->link->seg, ctl + (side ^ 1) * sizeof(*e->ctl) },
		{ (void **)&e->pos, &seat->link->seg, pos + side * sizeof(*e->pos) },
		{ (void **)&e->peer_pos, &seat->link->seg, pos + (side ^ 1) * sizeof(*e->pos) },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(lines); i++) {
		void *at = line(ep, lines[i].seg, lines[i].off);

		if (IS_ERR(at))
			return PTR_ERR(at);
		*lines[i].to = at;
	}
	e->side = side;
	return 0;
}

static void forget_lines(struct pstn_endpoint *ep)
{
	while (ep->page_count != 0)
		put_page(ep->pages[--ep->page_count]);
}

/* Under the socket's lock. */
static int go(struct pstn_endpoint *ep, const struct pstn_ioc_go *arg)
{
	struct pstn_stack *stack = ep->stack;
	struct pstn_seat *seat;
	int err;

	if (ep->accelerated || ep->sock->sk->sk_state != TCP_CLOSE)
		return -EISCONN;
	if (arg->ep_idx >= stack->counts.eps || arg->lgr_idx >= stack->counts.lgrs ||
	    arg->conn_idx >= PSTN_CONNS || arg->local.zero != 0 || arg->peer.zero != 0)
		return -EINVAL;
	seat = xa_load(&stack->seats, arg->lgr_idx);
	if (!seat)
		return -EINVAL;
	ep->ep_idx = array_index_nospec(arg->ep_idx, stack->counts.eps);
	ep->lgr_idx = array_index_nospec(arg->lgr_idx, stack->counts.lgrs);
	ep->conn_idx = array_index_nospec(arg->conn_idx, PSTN_CONNS);
	ep->side = seat->side;
	ep->gen = arg->gen;
	ep->local = arg->local;
	ep->peer = arg->peer;
	ep->seat = seat;
	err = find_lines(ep, seat);
	if (!err && READ_ONCE(ep->lines.setup->gen) != ep->gen)
		err = -ESTALE;
	if (!err)
		err = xa_insert(&seat->link->ends[ep->side], ep->conn_idx, ep, GFP_KERNEL_ACCOUNT);
	if (err) {
		forget_lines(ep);
		return err;
	}
	atomic_or(PSTN_CF_MODULE, (atomic_t *)&ep->lines.ctl->flags);
	smp_store_release(&ep->accelerated, 1); /* [M1] */
	return 0;
}

static int endpoint_go(struct pstn_endpoint *ep, const struct pstn_ioc_go __user *from)
{
	struct pstn_ioc_go arg;
	int err = pstn_stack_may(ep->stack);

	if (err)
		return err;
	if (copy_from_user(&arg, from, sizeof(arg)))
		return -EFAULT;
	lock_sock(ep->sock->sk);
	err = go(ep, &arg);
	release_sock(ep->sock->sk);
	/* Who waits for the kernel's news may have some of ours. */
	if (!err)
		pstn_endpoint_wake(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
	return err;
}

static int endpoint_what(struct pstn_endpoint *ep, struct pstn_ioc_what __user *to)
{
	struct pstn_ioc_what what = {
		.stack = ep->stack->id,
		.owner = from_kuid_munged(current_user_ns(), ep->stack->user->uid),
	};

	if (smp_load_acquire(&ep->accelerated)) { /* [M1] */
		what.accelerated = 1;
		what.ep_idx = ep->ep_idx;
		what.lgr_idx = ep->lgr_idx;
		what.conn_idx = ep->conn_idx;
		what.side = ep->side;
	}
	return copy_to_user(to, &what, sizeof(what)) ? -EFAULT : 0;
}

static int endpoint_ring(struct pstn_endpoint *ep, unsigned long what)
{
	if ((what & ~(unsigned long)(PSTN_RING_DATA | PSTN_RING_SPACE)) != 0)
		return -EINVAL;
	if (!smp_load_acquire(&ep->accelerated)) /* [M1] */
		return -ENOTCONN;
	pstn_link_wake(ep->seat->link, ep->side ^ 1, ep->conn_idx, what);
	return 0;
}

/* ---- operations. */

static int postern_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
	struct pstn_endpoint *ep = endpoint_of(sock);

	if (ep && _IOC_TYPE(cmd) == PSTN_IOC_NR) {
		switch (cmd) {
		case PSTN_IOC_GO:
			return endpoint_go(ep, (void __user *)arg);
		case PSTN_IOC_RING:
			return endpoint_ring(ep, arg);
		case PSTN_IOC_WHAT:
			return endpoint_what(ep, (void __user *)arg);
		}
	}
	ep = accelerated(sock);
	if (ep) {
		const int r = pstn_stream_ioctl(ep, cmd, arg);

		if (r != -ENOIOCTLCMD)
			return r;
	}
	return native_of(sock)->ioctl(sock, cmd, arg);
}

#ifdef CONFIG_COMPAT
/* The arguments of ours are the same for programs of 32 bits. */
static int postern_compat_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
	if (_IOC_TYPE(cmd) == PSTN_IOC_NR)
		return postern_ioctl(sock, cmd, (unsigned long)compat_ptr(arg));
	return native_of(sock)->compat_ioctl(sock, cmd, arg);
}
#endif

static void postern_show_fdinfo(struct seq_file *m, struct socket *sock)
{
	struct pstn_endpoint *ep = endpoint_of(sock);

	if (!ep)
		return;
	seq_printf(m, "postern-stack:\t%llu\n", ep->stack->serial);
	if (smp_load_acquire(&ep->accelerated)) /* [M1] */
		seq_printf(m, "postern-endpoint:\t%u\npostern-connection:\t%u %u %u\n", ep->ep_idx,
			   ep->lgr_idx, ep->conn_idx, ep->side);
}

static int postern_bind(struct socket *sock, struct sockaddr *addr, int len)
{
	return accelerated(sock) ? -EINVAL : native_of(sock)->bind(sock, addr, len);
}

static int postern_connect(struct socket *sock, struct sockaddr *addr, int len, int flags)
{
	return accelerated(sock) ? -EISCONN : native_of(sock)->connect(sock, addr, len, flags);
}

static int postern_listen(struct socket *sock, int backlog)
{
	return accelerated(sock) ? -EINVAL : native_of(sock)->listen(sock, backlog);
}

/* A client of the kernel's is the kernel's whole, though its socket was begun as a copy of ours. */
static int postern_accept(struct socket *sock, struct socket *newsock, PSTN_ACCEPT_ARGS)
{
	const struct proto_ops *native = native_of(sock);

	if (accelerated(sock))
		return -EINVAL;
	if (newsock->ops->owner == THIS_MODULE) {
		__module_get(native->owner);
		WRITE_ONCE(newsock->ops, native);
		module_put(THIS_MODULE);
	}
	return native->accept(sock, newsock, PSTN_ACCEPT_PASS);
}

static int name_of(const struct pstn_addr *addr, int family, struct sockaddr *to)
{
	struct sockaddr_in *in = (struct sockaddr_in *)to;

	if (family == AF_INET6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;

		memset(in6, 0, sizeof(*in6));
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(addr->port);
		memcpy(&in6->sin6_addr, addr->ip, sizeof(addr->ip));
		in6->sin6_scope_id = addr->scope;
		return sizeof(*in6);
	}
	memset(in, 0, sizeof(*in));
	in->sin_family = AF_INET;
	in->sin_port = htons(addr->port);
	memcpy(&in->sin_addr, addr->ip + 12, 4); /* kept v4-mapped */
	return sizeof(*in);
}

static int postern_getname(struct socket *sock, struct sockaddr *addr, int peer)
{
	struct pstn_endpoint *ep = accelerated(sock);

	if (!ep)
		return native_of(sock)->getname(sock, addr, peer);
	return name_of(peer ? &ep->peer : &ep->local, sock->sk->sk_family, addr);
}

static __poll_t postern_poll(struct file *file, struct socket *sock, poll_table *wait)
{
	struct pstn_endpoint *ep = accelerated(sock);

	return ep ? pstn_endpoint_poll(ep, file, wait) : native_of(sock)->poll(file, sock, wait);
}

static int postern_shutdown(struct socket *sock, int how)
{
	struct pstn_endpoint *ep = accelerated(sock);

	return ep ? pstn_stream_shutdown(ep, how) : native_of(sock)->shutdown(sock, how);
}

static int postern_sendmsg(struct socket *sock, struct msghdr *msg, size_t size)
{
	struct pstn_endpoint *ep = accelerated(sock);

	return ep ? pstn_stream_sendmsg(ep, msg, size) : native_of(sock)->sendmsg(sock, msg, size);
}

static int postern_recvmsg(struct socket *sock, struct msghdr *msg, size_t size, int flags)
{
	struct pstn_endpoint *ep = accelerated(sock);

	if (!ep || (flags & MSG_ERRQUEUE) != 0)
		return native_of(sock)->recvmsg(sock, msg, size, flags);
	return pstn_stream_recvmsg(ep, msg, size, flags);
}

/* kTLS would keep a copy of our table for other sockets, for ever (tls_build_proto()). */
static int postern_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			      unsigned int len)
{
	if (level == SOL_TCP && name == TCP_ULP)
		return -ENOENT; /* as a kernel without that protocol */
	return native_of(sock)->setsockopt(sock, level, name, value, len);
}

static ssize_t postern_splice_read(struct socket *sock, loff_t *ppos, struct pipe_inode_info *pipe,
				   size_t len, unsigned int flags)
{
	if (accelerated(sock))
		return pstn_copy_splice_read(sock->file, ppos, pipe, len, flags);
	return native_of(sock)->splice_read(sock, ppos, pipe, len, flags);
}

#ifdef PSTN_HAS_SENDPAGE
static ssize_t postern_sendpage(struct socket *sock, struct page *page, int off, size_t size,
				int flags)
{
	if (accelerated(sock))
		return sock_no_sendpage(sock, page, off, size, flags);
	return native_of(sock)->sendpage(sock, page, off, size, flags);
}
#else
static void postern_splice_eof(struct socket *sock)
{
	if (!accelerated(sock))
		native_of(sock)->splice_eof(sock);
}
#endif

static void make_ops(struct proto_ops *ops, const struct proto_ops *native)
{
	*ops = *native;
	ops->owner = THIS_MODULE;
	ops->release = postern_release;
	ops->bind = postern_bind;
	ops->connect = postern_connect;
	ops->accept = postern_accept;
	ops->getname = postern_getname;
	ops->poll = postern_poll;
	ops->ioctl = postern_ioctl;
#ifdef CONFIG_COMPAT
	ops->compat_ioctl = postern_compat_ioctl;
#endif
	ops->show_fdinfo = postern_show_fdinfo;
	ops->listen = postern_listen;
	ops->shutdown = postern_shutdown;
	ops->setsockopt = postern_setsockopt;
	ops->sendmsg = postern_sendmsg;
	ops->recvmsg = postern_recvmsg;
	ops->splice_read = postern_splice_read;
#ifdef PSTN_HAS_SENDPAGE
	ops->sendpage = postern_sendpage;
#else
	ops->splice_eof = postern_splice_eof;
#endif
}

/* ---- PSTN_IOC_ENDPOINT. */

static int endpoint_new(struct pstn_stack *stack, struct socket *sock)
{
	int err = pstn_user_charge(stack->user, PSTN_LIMIT_ENDPOINTS);
	struct pstn_endpoint *ep;

	if (err)
		return err;
	ep = kzalloc(sizeof(*ep), GFP_KERNEL_ACCOUNT);
	if (!ep) {
		pstn_user_uncharge(stack->user, PSTN_LIMIT_ENDPOINTS);
		return -ENOMEM;
	}
	ep->stack = stack;
	ep->sock = sock;
	ep->native = sock->ops;
	mutex_init(&ep->rx_mutex);
	mutex_init(&ep->tx_mutex);
	timer_setup(&ep->held_timer, pstn_endpoint_held_timer, 0);
	refcount_inc(&stack->refs);
	mutex_lock(&pstn_lists);
	list_add_tail(&ep->node, &pstn_endpoints);
	mutex_unlock(&pstn_lists);
	SOCK_INODE(sock)->i_private = ep;
	__module_get(THIS_MODULE); /* given back with the socket */
	sock->ops = &postern_ops[sock->sk->sk_family == AF_INET6];
	return 0;
}

static int endpoint_fd(struct pstn_stack *stack, const struct pstn_ioc_endpoint *arg)
{
	const int flags = arg->type & (SOCK_CLOEXEC | SOCK_NONBLOCK);
	const int ops = arg->family == AF_INET6;
	struct socket *sock;
	struct file *file;
	int fd, err;

	err = sock_create(arg->family, arg->type & SOCK_TYPE_MASK, arg->protocol, &sock);
	if (err)
		return err;
	fd = get_unused_fd_flags(flags & SOCK_CLOEXEC ? O_CLOEXEC : 0);
	if (fd < 0) {
		sock_release(sock);
		return fd;
	}
	/* Anything else has the kernel's table replaced, by a BPF program or a module. */
	err = sock->ops == native_ops[ops] ? 0 : -EPROTONOSUPPORT;
	if (!err)
		err = endpoint_new(stack, sock);
	if (err) {
		sock_release(sock);
		put_unused_fd(fd);
		return err;
	}
	file = sock_alloc_file(sock, flags & SOCK_NONBLOCK ? O_NONBLOCK : 0, NULL);
	if (IS_ERR(file)) { /* the socket is released, and with it what is above */
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	fd_install(fd, file);
	return fd;
}

int pstn_endpoint_open(struct pstn_stack *stack, const struct pstn_ioc_endpoint *arg)
{
	if (arg->zero != 0)
		return -EINVAL;
	if ((arg->family != AF_INET && arg->family != AF_INET6) ||
	    !native_ops[arg->family == AF_INET6])
		return -EPFNOSUPPORT;
	if ((arg->type & ~(SOCK_TYPE_MASK | SOCK_CLOEXEC | SOCK_NONBLOCK)) != 0)
		return -EINVAL;
	if ((arg->type & SOCK_TYPE_MASK) != SOCK_STREAM ||
	    (arg->protocol != 0 && arg->protocol != IPPROTO_TCP))
		return -EPROTONOSUPPORT;
	return endpoint_fd(stack, arg);
}

/* ---- the kernel's tables, found in sockets of the kernel's. */

static int learn_family(int family)
{
	struct socket *sock;
	int err = sock_create_kern(&init_net, family, SOCK_STREAM, IPPROTO_TCP, &sock);

	if (err)
		return err;
	native_ops[family == AF_INET6] = sock->ops;
	__module_get(sock->ops->owner);
	make_ops(&postern_ops[family == AF_INET6], sock->ops);
	sock_release(sock);
	return 0;
}

int pstn_socket_init(void)
{
	int err = learn_family(AF_INET);

	if (!err)
		(void)learn_family(AF_INET6); /* a kernel may be without */
	return err;
}

void pstn_socket_exit(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (native_ops[i])
			module_put(native_ops[i]->owner);
	}
}
