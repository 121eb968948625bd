// SPDX-License-Identifier: GPL-2.0
/* socket_stream.c - bytes through an accelerated socket: recvmsg, sendmsg, shutdown, close. */
/*
 * Bytes are copied between the program and the ring under the direction's lock in shared memory,
 * which threads of the library wait for. So the copy takes no page faults: where the program's
 * memory is not there it ends, the lock is given back, the page is fetched, and the call goes on.
 * A program whose page never comes (userfaultfd, FUSE) waits alone.
 */
#include <linux/sched/signal.h>
#include <linux/sockios.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <asm/ioctls.h>
#include <net/sock.h>

#include "kmod.h"

#define FETCH 65536 /* of the program's memory, at a time */
#define PIECE (1u << 20) /* of a call, under one hold of the direction's lock */

struct iter_copy {
	struct pstn_copy copy;
	struct iov_iter *iter;
};

static size_t bytes_to_program(struct pstn_copy *copy, void *at, size_t n)
{
	struct iov_iter *iter = container_of(copy, struct iter_copy, copy)->iter;
	size_t done;

	pagefault_disable();
	done = copy_to_iter(at, n, iter);
	pagefault_enable();
	return done;
}

static size_t bytes_from_program(struct pstn_copy *copy, void *at, size_t n)
{
	struct iov_iter *iter = container_of(copy, struct iter_copy, copy)->iter;
	size_t done;

	pagefault_disable();
	done = copy_from_iter(at, n, iter);
	pagefault_enable();
	return done;
}

/* One direction for this call: against other calls in the kernel, then against the library's.
 * -EBUSY: it can't be had without waiting longer.
 */
static int lock_direction(struct pstn_endpoint *ep, struct mutex *mutex, u32 *word, bool nonblock)
{
	for (;;) {
		if (mutex_lock_interruptible(mutex))
			return -ERESTARTSYS;
		if (pstn_shared_lock(ep->stack, word) >= 0)
			return 0;
		mutex_unlock(mutex);
		if (nonblock)
			return -EBUSY;
		if (signal_pending(current))
			return -ERESTARTSYS;
	}
}

static void unlock_direction(struct mutex *mutex, u32 *word)
{
	pstn_shared_unlock(word);
	mutex_unlock(mutex);
}

static void set_flags(u32 *word, u32 flags)
{
	atomic_or(flags, (atomic_t *)word);
}

/* What lies in the rings can't be: the connection ends, and the other end is told. */
static void break_off(struct pstn_endpoint *ep, struct pstn_end *e)
{
	set_flags(&e->rx->gate, PSTN_RXG_BROKEN);
	set_flags(&e->ctl->flags, PSTN_CF_RST);
	set_flags(e->flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR);
	pstn_endpoint_tell(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
}

/* ---- receive. */

struct receive {
	struct iov_iter *to; /* NULL: dropped, or counted */
	enum pstn_read_mode mode;
	bool nonblock;
	bool fault;
};

/* Bytes; -EAGAIN: there are none; 0: nothing will ever be read again. */
static ssize_t receive_once(struct pstn_endpoint *ep, struct receive *how, size_t want)
{
	struct iter_copy copy = { { bytes_to_program }, how->to };
	u32 *word = &ep->lines.rx->lock.word;
	bool space = false, broken = false;
	struct pstn_read r = {};
	struct pstn_env env;
	ssize_t n;

	how->fault = false;
	n = lock_direction(ep, &ep->rx_mutex, word, how->nonblock);
	if (n != 0)
		return n;
	if (!pstn_env_begin(&env, ep)) {
		n = -ECONNRESET;
	} else if ((READ_ONCE(env.end.rx->gate) & PSTN_RXG_BROKEN) == 0) {
		pstn_ring_read(&env.end, how->to ? &copy.copy : NULL, want, how->mode, &r);
		broken = r.status == PSTN_LOOK_LIE || r.status == PSTN_LOOK_NO_MEMORY;
		n = r.bytes != 0 ? (ssize_t)r.bytes : broken ? -ECONNRESET : -EAGAIN;
		how->fault = r.fault;
		if (env.starved && r.bytes == 0) { /* not the peer's doing, nor the program's */
			broken = false;
			n = -ENOBUFS;
		}
		space = r.bytes != 0 && how->mode == PSTN_READ_TAKE && pstn_ring_returns(&env.end);
	}
	pstn_env_end(&env);
	unlock_direction(&ep->rx_mutex, word);
	if (broken && r.bytes == 0)
		break_off(ep, &ep->lines);
	if (space)
		pstn_endpoint_tell(ep, PSTN_RING_SPACE);
	return n;
}

/* What an empty ring means: -EAGAIN, 0 at the end, the connection's error. 1: it isn't empty. */
static int when_empty(struct pstn_endpoint *ep)
{
	struct sock *sk = ep->sock->sk;
	struct pstn_env env;
	int r = -EAGAIN;
	u32 flags;

	if (!pstn_env_begin(&env, ep))
		return -ECONNRESET;
	flags = smp_load_acquire(&env.end.peer_ctl->flags); /* [C2] */
	if ((flags & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0) {
		pstn_endpoint_note_reset(ep, &env.end);
		if (pstn_ring_readable(&env.end))
			r = 1; /* it came just before the end */
		else /* behind a FIN the kernel's recv() reports no error */
			r = (flags & PSTN_CF_FIN) != 0 ? 0 : sock_error(sk);
	} else if (READ_ONCE(sk->sk_err) != 0) {
		r = sock_error(sk);
	} else if ((READ_ONCE(*env.end.flags) & (PSTN_EPF_SHUT_RD | PSTN_EPF_HUNG)) != 0) {
		r = 0;
	}
	pstn_env_end(&env);
	return r;
}

/* A call for no bytes: whether one for some would have come back. */
static int receive_nothing(struct pstn_endpoint *ep, bool nonblock, long timeo)
{
	for (;;) {
		struct pstn_env env;
		bool some;
		int r;

		if (!pstn_env_begin(&env, ep))
			return -ECONNRESET;
		some = pstn_ring_readable(&env.end);
		pstn_env_end(&env);
		r = some ? 0 : when_empty(ep);
		if (r != 1 && r != -EAGAIN)
			return r;
		if (nonblock)
			return -EAGAIN;
		/* Before each wait: memory that changes all the time makes none of them long. */
		if (signal_pending(current))
			return sock_intr_errno(timeo);
		r = pstn_endpoint_wait(ep, PSTN_RING_DATA, 0, &timeo);
		if (r)
			return r;
	}
}

/* So often in a row a call fetches memory in vain, since something takes it away again. */
#define FAULTS_MAX 100

/* Fetches memory of the program's. How many bytes of it are there; 0: none. */
static size_t fetch(struct iov_iter *iter, bool write)
{
	const size_t n = min_t(size_t, iov_iter_count(iter), FETCH);

	return n - (write ? fault_in_iov_iter_writeable(iter, n) :
			    fault_in_iov_iter_readable(iter, n));
}

/* What a call that has some bytes already does with an end: the next call says it. */
static int keep_error(struct sock *sk, size_t copied, int err)
{
	if (copied == 0)
		return err == -EBUSY ? -EAGAIN : err;
	if (err == -ECONNRESET)
		WRITE_ONCE(sk->sk_err, -err);
	return copied;
}

int pstn_stream_recvmsg(struct pstn_endpoint *ep, struct msghdr *msg, size_t size, int flags)
{
	struct iov_iter *iter = &msg->msg_iter;
	struct sock *sk = ep->sock->sk;
	const bool peek = (flags & MSG_PEEK) != 0;
	struct receive how = {
		.to = (flags & MSG_TRUNC) != 0 ? NULL : iter,
		.mode = peek ? PSTN_READ_PEEK : PSTN_READ_TAKE,
		.nonblock = (flags & MSG_DONTWAIT) != 0,
	};
	long timeo = sock_rcvtimeo(sk, how.nonblock);
	size_t copied = 0, target;
	bool looked = false; /* a call that does not wait looks once more, and no oftener */
	int faults = 0;

	if ((flags & MSG_OOB) != 0)
		return -EINVAL;
	/* A peek sees what two rings hold, at most, and all of it at once. */
	size = min_t(size_t, size, peek ? 2 * PSTN_RING2_BYTES : INT_MAX);
	if (size == 0)
		return receive_nothing(ep, how.nonblock, timeo);
	target = sock_rcvlowat(sk, flags & MSG_WAITALL, size);
	for (;;) {
		ssize_t n;
		int r;

		if (peek && how.to)
			iov_iter_revert(iter, copied);
		if (peek)
			copied = 0;
		cond_resched();
		n = receive_once(ep, &how, peek ? size : min_t(size_t, size - copied, PIECE));
		if (n > 0) {
			copied += n;
			faults = 0;
		}
		if (n == 0 || copied >= target)
			return copied;
		if (n < 0 && n != -EAGAIN)
			return keep_error(sk, copied, n);
		if (how.fault) {
			if (fetch(iter, true) == 0 || ++faults > FAULTS_MAX)
				return copied != 0 ? copied : -EFAULT;
			if (signal_pending(current))
				return copied != 0 ? copied : sock_intr_errno(timeo);
			continue;
		}
		if (n > 0 && !peek)
			continue;
		r = when_empty(ep);
		if ((r == 1 || r == -EAGAIN) && !how.nonblock && signal_pending(current))
			r = sock_intr_errno(timeo);
		if (r == 1 && !peek && !looked) {
			looked = how.nonblock;
			continue;
		}
		if (r != 1 && r != -EAGAIN)
			return keep_error(sk, copied, r);
		if (r == 1 && copied != 0) /* a peek has seen all that there will be */
			return copied;
		if (how.nonblock && (looked || !sock_flag(sk, SOCK_FASYNC)))
			return copied != 0 ? copied : -EAGAIN;
		looked = how.nonblock;
		r = pstn_endpoint_wait(ep, PSTN_RING_DATA, peek ? copied : 0, &timeo);
		if (r)
			return copied != 0 ? copied : r;
	}
}

/* ---- send. */

struct transmit {
	struct iov_iter *from;
	size_t most; /* bytes that are surely there */
	enum pstn_growth growth;
	bool nonblock;
	bool fault;
};

/* Whether bytes can be sent; 1: they are swallowed, since the other end has closed. */
static int check_send(struct pstn_endpoint *ep, size_t size)
{
	struct sock *sk = ep->sock->sk;
	struct pstn_end *e = &ep->lines;
	const u32 peer = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */
	const u32 own = READ_ONCE(*e->flags);

	if (!pstn_endpoint_is_here(ep))
		return -ECONNRESET;
	pstn_endpoint_note_reset(ep, e);
	if (READ_ONCE(sk->sk_err) != 0)
		return sock_error(sk);
	if ((own & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) != 0 || (peer & PSTN_CF_RST) != 0)
		return -EPIPE;
	if ((peer & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) == 0 || size == 0)
		return 0;
	/* With TCP the first bytes go out, and are answered by a RST. */
	set_flags(e->flags, PSTN_EPF_HUNG);
	set_flags(&e->rx->gate, PSTN_RXG_RESET);
	WRITE_ONCE(sk->sk_err, EPIPE);
	if ((peer & PSTN_CF_CLOSED) == 0) {
		set_flags(&e->ctl->flags, PSTN_CF_RST);
		pstn_endpoint_tell(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
	}
	pstn_endpoint_wake(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
	return 1;
}

/* Bytes, 0: the ring is full; or an error. */
static ssize_t transmit_once(struct pstn_endpoint *ep, struct transmit *how)
{
	struct iter_copy copy = { { bytes_from_program }, how->from };
	const size_t all = iov_iter_count(how->from);
	const size_t want = min3(all, how->most, (size_t)PIECE);
	u32 *word = &ep->lines.tx->lock.word;
	struct pstn_write r = {};
	bool held = false;
	struct pstn_env env;
	ssize_t n;

	how->fault = false;
	n = lock_direction(ep, &ep->tx_mutex, word, how->nonblock);
	if (n != 0)
		return n;
	if (!pstn_env_begin(&env, ep)) {
		n = -ECONNRESET;
	} else if ((READ_ONCE(env.end.ctl->flags) & (PSTN_CF_FIN | PSTN_CF_RST)) != 0) {
		n = -EPIPE;
	} else {
		held = pstn_ring_release_held(&env.end);
		pstn_ring_write(&env.end, &copy.copy, want, how->growth, &r);
		n = r.broken ? -EPIPE : (ssize_t)r.bytes;
		how->fault = r.fault;
		if (env.starved && r.bytes == 0) {
			r.broken = false;
			n = -ENOBUFS;
		}
		/* What was copied of a record that is not there. */
		iov_iter_revert(how->from, all - iov_iter_count(how->from) - r.bytes);
	}
	pstn_env_end(&env);
	unlock_direction(&ep->tx_mutex, word);
	if (r.broken)
		break_off(ep, &ep->lines);
	else if (held || r.bytes != 0)
		pstn_endpoint_tell(ep, PSTN_RING_DATA);
	return n;
}

/* No room: 0 when there is some, or may be. A ring that can't be had is asked for once a tick. */
static int wait_for_room(struct pstn_endpoint *ep, int *vain, long *timeo)
{
	if (*vain > 1)
		schedule_timeout_interruptible(1);
	(*vain)++;
	return pstn_endpoint_wait(ep, PSTN_RING_SPACE, 0, timeo);
}

static int send_bytes(struct pstn_endpoint *ep, struct msghdr *msg, size_t size)
{
	struct sock *sk = ep->sock->sk;
	struct transmit how = {
		.from = &msg->msg_iter,
		.most = SIZE_MAX,
		.growth = PSTN_GROW_WHEN_USEFUL,
		.nonblock = (msg->msg_flags & MSG_DONTWAIT) != 0,
	};
	long timeo = sock_sndtimeo(sk, how.nonblock);
	size_t copied = 0;
	int vain = 0, faults = 0;

	for (;;) {
		ssize_t n = check_send(ep, size);

		if (n == 1)
			return copied != 0 ? copied : size;
		if (n == 0 && size == 0)
			return 0;
		if (n == 0)
			n = transmit_once(ep, &how);
		if (n < 0)
			return keep_error(sk, copied, n);
		copied += n;
		if (copied == size)
			return copied;
		cond_resched();
		if (how.fault) {
			/* A record is put in whole: of no more than there is. */
			how.most = fetch(how.from, false);
			if (how.most == 0 || ++faults > FAULTS_MAX)
				return copied != 0 ? copied : -EFAULT;
			if (signal_pending(current))
				return copied != 0 ? copied : sock_intr_errno(timeo);
			continue;
		}
		how.most = SIZE_MAX;
		if (n != 0)
			vain = faults = 0;
		if (n == PIECE)
			continue;
		if (how.growth == PSTN_GROW_WHEN_USEFUL || n != 0) {
			how.growth = PSTN_GROW_NOW;
			continue;
		}
		if (!how.nonblock && signal_pending(current))
			return copied != 0 ? copied : sock_intr_errno(timeo);
		/* With no time to wait this says that somebody waits, and looks once more. */
		n = wait_for_room(ep, &vain, &timeo);
		if (n == 0 && how.nonblock && vain > 1)
			n = -EAGAIN;
		if (n != 0)
			return copied != 0 ? copied : n;
	}
}

int pstn_stream_sendmsg(struct pstn_endpoint *ep, struct msghdr *msg, size_t size)
{
	int r;

	if ((msg->msg_flags & MSG_OOB) != 0)
		return -EOPNOTSUPP;
	r = send_bytes(ep, msg, min_t(size_t, size, INT_MAX));
	return r == -EPIPE ? sk_stream_error(ep->sock->sk, msg->msg_flags, r) : r;
}

/* ---- ends. */

static void end_writing(struct pstn_endpoint *ep)
{
	struct pstn_end *e = &ep->lines;
	const u32 peer = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */

	set_flags(&e->ctl->flags,
		  PSTN_CF_FIN | ((peer & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0 ? PSTN_CF_SECOND : 0));
}

int pstn_stream_shutdown(struct pstn_endpoint *ep, int how)
{
	u32 *word = &ep->lines.tx->lock.word;
	struct pstn_end *e = &ep->lines;
	struct pstn_env env;
	int err;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	if (!pstn_endpoint_is_here(ep) ||
	    (READ_ONCE(e->peer_ctl->flags) & PSTN_CF_RST) != 0 ||
	    (READ_ONCE(*e->flags) & PSTN_EPF_HUNG) != 0)
		return -ENOTCONN;
	if (how != SHUT_RD) {
		err = lock_direction(ep, &ep->tx_mutex, word, false);
		if (err)
			return err;
		if (pstn_env_begin(&env, ep)) {
			pstn_ring_release_held(&env.end);
			set_flags(e->flags, PSTN_EPF_SHUT_WR);
			end_writing(ep);
		}
		pstn_env_end(&env);
		unlock_direction(&ep->tx_mutex, word);
	}
	if (how != SHUT_WR)
		set_flags(e->flags, PSTN_EPF_SHUT_RD);
	if ((READ_ONCE(*e->flags) & (PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR)) ==
	    (PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR))
		set_flags(&e->ctl->flags, PSTN_CF_RD_SHUT);
	pstn_endpoint_tell(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
	pstn_endpoint_wake(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
	return 0;
}

/* The last descriptor is gone, in whatever way: as the kernel's TCP, what was written is delivered,
 * then FIN; unread data makes it a RST.
 */
void pstn_stream_close(struct pstn_endpoint *ep)
{
	struct sock *sk = ep->sock->sk;
	struct pstn_end *e = &ep->lines;
	u32 peer, own, end = PSTN_CF_CLOSED;
	struct pstn_env env;

	if (!pstn_env_begin(&env, ep))
		return;
	peer = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */
	own = READ_ONCE(e->ctl->flags);
	if ((own & PSTN_CF_RST) == 0 &&
	    ((sock_flag(sk, SOCK_LINGER) && READ_ONCE(sk->sk_lingertime) == 0) ||
	     pstn_ring_readable(&env.end)) &&
	    (own & peer & PSTN_CF_FIN) == 0)
		end |= PSTN_CF_RST;
	else if ((own & PSTN_CF_RST) == 0)
		end |= PSTN_CF_FIN;
	if ((peer & (PSTN_CF_FIN | PSTN_CF_CLOSED | PSTN_CF_RST)) != 0 &&
	    (own & (PSTN_CF_FIN | PSTN_CF_RST)) == 0)
		end |= PSTN_CF_SECOND;
	if (READ_ONCE(e->tx->holds) != 0 && pstn_shared_lock(ep->stack, &e->tx->lock.word) >= 0) {
		pstn_ring_release_held(&env.end);
		pstn_shared_unlock(&e->tx->lock.word);
	}
	set_flags(&e->ctl->flags, end);
	pstn_env_end(&env);
	pstn_endpoint_tell(ep, PSTN_RING_DATA | PSTN_RING_SPACE);
}

int pstn_stream_ioctl(struct pstn_endpoint *ep, unsigned int cmd, unsigned long arg)
{
	struct pstn_env env;
	int n = 0;

	if (cmd != SIOCINQ && cmd != SIOCOUTQ && cmd != SIOCATMARK)
		return -ENOIOCTLCMD;
	if (cmd != SIOCATMARK && pstn_env_begin(&env, ep)) {
		n = cmd == SIOCINQ ? (int)pstn_ring_queued(&env.end, INT_MAX) :
				     (int)pstn_ring_unread(&env.end);
		pstn_env_end(&env);
	}
	return put_user(n, (int __user *)arg);
}
