// SPDX-License-Identifier: GPL-2.0
/* socket_wait.c - who sleeps at an endpoint in the kernel, and who wakes whom. */
/*
 * All that sleeps in the kernel at a socket sleeps on the socket's own wait queue: calls that
 * block, poll(), select(), event sets, io_uring, and O_ASYNC's signals go the same way. Who sleeps
 * says so in shared memory, by a bit of ctl.rx_wait or ctl.tx_wait, and looks once more [F1]. The
 * other end, in the module or in the library, takes the bit away after it has brought news, and
 * only if it was there it makes the one call that wakes (PSTN_IOC_RING). Nothing is called while
 * nobody sleeps.
 *
 * A call that blocks says it again each time. An event set says it for as long as it has the
 * socket: an edge-triggered one hears of each arrival, whatever its program does in between. So
 * does O_ASYNC, of which sockets are not told: from the next call on that finds nothing.
 */
#include <linux/sched/signal.h>
#include <linux/wait.h>
#include <net/sock.h>

#include "kmod.h"

#define PEER_ENDED (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)

/* The words of shared memory are the kernel's atomic_t in all but name. */
static void set_bits(u32 *word, u32 bits)
{
	atomic_or(bits, (atomic_t *)word);
}

static bool take_bit(u32 *word, u32 bit)
{
	return (READ_ONCE(*word) & bit) != 0 &&
	       (atomic_fetch_andnot(bit, (atomic_t *)word) & bit) != 0;
}

static void arm(struct pstn_end *e, unsigned int what)
{
	if ((what & PSTN_RING_DATA) != 0)
		set_bits(&e->ctl->rx_wait, PSTN_RXW_MODULE);
	if ((what & PSTN_RING_SPACE) != 0)
		set_bits(&e->ctl->tx_wait, PSTN_TXW_MODULE);
	smp_mb(); /* [F1] between the bit and the look that follows */
}

void pstn_endpoint_tell(struct pstn_endpoint *ep, unsigned int what)
{
	struct pstn_conn_ctl *peer = ep->lines.peer_ctl;
	unsigned int asleep = 0;

	smp_mb(); /* [F1] between the news and the look at the bits */
	if ((what & PSTN_RING_DATA) != 0 && take_bit(&peer->rx_wait, PSTN_RXW_MODULE))
		asleep |= PSTN_RING_DATA;
	if ((what & PSTN_RING_SPACE) != 0 && take_bit(&peer->tx_wait, PSTN_TXW_MODULE))
		asleep |= PSTN_RING_SPACE;
	if (asleep != 0)
		pstn_link_wake(ep->seat->link, ep->side ^ 1, ep->conn_idx, asleep);
	pstn_library_post(ep, what);
}

void pstn_endpoint_wake(struct pstn_endpoint *ep, unsigned int what)
{
	const __poll_t in = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
	const __poll_t out = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND | EPOLLHUP | EPOLLERR;
	struct sock *sk = ep->sock->sk;
	struct socket_wq *wq;

	/* Before they are woken: what comes after this look has a bit to take away. */
	if (sock_flag(sk, SOCK_FASYNC) ||
	    (READ_ONCE(ep->polled) && wq_has_sleeper(&ep->sock->wq.wait)))
		arm(&ep->lines, what);
	else
		WRITE_ONCE(ep->polled, 0);
	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_poll(&wq->wait, ((what & PSTN_RING_DATA) != 0 ? in : 0) |
							      ((what & PSTN_RING_SPACE) != 0 ? out : 0));
	rcu_read_unlock();
	if ((what & PSTN_RING_DATA) != 0)
		sk_wake_async(sk, SOCK_WAKE_WAITD, POLL_IN);
	if ((what & PSTN_RING_SPACE) != 0)
		sk_wake_async(sk, SOCK_WAKE_SPACE, POLL_OUT);
}

void pstn_endpoint_held_timer(struct timer_list *timer)
{
	pstn_endpoint_wake(container_of(timer, struct pstn_endpoint, held_timer), PSTN_RING_DATA);
}

void pstn_endpoint_note_reset(struct pstn_endpoint *ep, struct pstn_end *e)
{
	const u32 flags = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */

	if ((flags & PSTN_CF_RST) == 0 ||
	    (atomic_fetch_or(PSTN_RXG_RESET, (atomic_t *)&e->rx->gate) & PSTN_RXG_RESET) != 0)
		return;
	WRITE_ONCE(ep->sock->sk->sk_err, (flags & PSTN_CF_FIN) != 0 ? EPIPE : ECONNRESET);
}

/* Whether a call that waits has something to do. */
static bool is_ready(struct pstn_endpoint *ep, struct pstn_end *e, unsigned int what, size_t have)
{
	const u32 peer = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */
	const u32 own = READ_ONCE(*e->flags);

	if (READ_ONCE(ep->sock->sk->sk_err) != 0 || (own & PSTN_EPF_HUNG) != 0)
		return true;
	if ((what & PSTN_RING_DATA) != 0)
		return (peer & PEER_ENDED) != 0 || (own & PSTN_EPF_SHUT_RD) != 0 ||
		       (have != 0 ? pstn_ring_queued(e, have + 1) > have : pstn_ring_readable(e));
	return (peer & (PSTN_CF_RST | PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0 ||
	       (own & PSTN_EPF_SHUT_WR) != 0 || pstn_ring_writable(e);
}

/* One look, after saying that we are about to sleep. */
static bool look(struct pstn_endpoint *ep, unsigned int what, size_t have, u64 *held_ns)
{
	struct pstn_env env;
	bool ready;

	if (!pstn_env_begin(&env, ep))
		return true; /* another connection by now: the call that waits says so */
	*held_ns = pstn_ring_held_until(&env.end);
	arm(&env.end, what);
	ready = is_ready(ep, &env.end, what, have);
	pstn_env_end(&env);
	return ready;
}

static long until_held(u64 held_ns)
{
	const u64 now = ktime_get_ns();

	return held_ns > now ? nsecs_to_jiffies(held_ns - now) + 1 : 1;
}

int pstn_endpoint_wait(struct pstn_endpoint *ep, unsigned int what, size_t have, long *timeo)
{
	struct sock *sk = ep->sock->sk;
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	int err = 0;

	add_wait_queue(sk_sleep(sk), &wait);
	for (;;) {
		u64 held_ns = 0;
		long most = *timeo, left;

		if (look(ep, what, have, &held_ns))
			break;
		if (*timeo == 0) {
			err = -EAGAIN;
			break;
		}
		if (signal_pending(current)) {
			err = sock_intr_errno(*timeo);
			break;
		}
		if (held_ns != 0 && (what & PSTN_RING_DATA) != 0)
			most = min(most, until_held(held_ns));
		left = wait_woken(&wait, TASK_INTERRUPTIBLE, most);
		if (*timeo != MAX_SCHEDULE_TIMEOUT)
			*timeo -= most - left;
	}
	remove_wait_queue(sk_sleep(sk), &wait);
	return err;
}

static __poll_t ready_for(struct pstn_endpoint *ep, struct pstn_end *e)
{
	const u32 peer = smp_load_acquire(&e->peer_ctl->flags); /* [C2] */
	const u32 own = READ_ONCE(*e->flags);
	const bool ended = (peer & PEER_ENDED) != 0 || (own & PSTN_EPF_HUNG) != 0;
	const bool deaf = ended || (own & PSTN_EPF_SHUT_RD) != 0;
	const bool mute = (own & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) != 0 ||
			  (peer & PSTN_CF_RST) != 0;
	__poll_t mask = 0;

	if (READ_ONCE(ep->sock->sk->sk_err) != 0)
		mask |= EPOLLERR;
	if ((peer & PSTN_CF_RST) != 0 || (deaf && mute))
		mask |= EPOLLHUP;
	if (deaf)
		mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
	else if (READ_ONCE(ep->sock->sk->sk_rcvlowat) > 1
			 ? pstn_ring_queued(e, ep->sock->sk->sk_rcvlowat) >= ep->sock->sk->sk_rcvlowat
			 : pstn_ring_readable(e))
		mask |= EPOLLIN | EPOLLRDNORM;
	if (mute || pstn_ring_writable(e))
		mask |= EPOLLOUT | EPOLLWRNORM;
	return mask;
}

__poll_t pstn_endpoint_poll(struct pstn_endpoint *ep, struct file *file, poll_table *wait)
{
	const __poll_t gone = EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLHUP;
	struct pstn_env env;
	__poll_t mask;
	u64 held_ns;

	if (!poll_does_not_wait(wait))
		WRITE_ONCE(ep->polled, 1);
	sock_poll_wait(file, ep->sock, wait);
	if (!pstn_env_begin(&env, ep))
		return gone;
	pstn_endpoint_note_reset(ep, &env.end);
	held_ns = pstn_ring_held_until(&env.end);
	if (READ_ONCE(ep->polled))
		arm(&env.end, PSTN_RING_DATA);
	mask = ready_for(ep, &env.end);
	if ((mask & EPOLLOUT) == 0 && READ_ONCE(ep->polled)) {
		arm(&env.end, PSTN_RING_SPACE);
		mask = ready_for(ep, &env.end);
	}
	pstn_env_end(&env);
	if ((mask & EPOLLIN) == 0 && held_ns != 0)
		mod_timer(&ep->held_timer, jiffies + until_held(held_ns));
	return mask;
}
