// SPDX-License-Identifier: GPL-2.0
/* library_post.c - news for event sets and poll() of the library at the other end. */
/*
 * The other end's process waits as it does for any peer (lib/smcd/notify.h): ctl.rx_notify says
 * which of its event maps gets the connection's bit, and a waiter that says that it sleeps gets a
 * datagram to its doorbell, an abstract socket whose name is made of words in the map. All of that
 * is the other end's to write, and is loaded once: a wrong number costs its own side an event.
 *
 * A post of the library's goes to few sleepers, and so does one of ours: whom it wakes wakes the
 * others.
 */
#include <linux/file.h>
#include <linux/net.h>
#include <linux/nospec.h>
#include <linux/socket.h>
#include <linux/un.h>
#include <net/sock.h>

#include "kmod.h"

#define RINGS_PER_POST 8
#define TRIES_PER_POST 32

/* A word of the link group, and the page that holds it; NULL: no memory. */
static void *word_at(struct pstn_endpoint *ep, u64 off, struct page **page)
{
	*page = pstn_segment_page(&ep->seat->link->seg, off);
	return IS_ERR(*page) ? NULL : page_address(*page) + offset_in_page(off);
}

static u64 map_off(u32 side, u32 waiter, size_t field)
{
	return PSTN_LGR_EVMAP_OFF +
	       ((u64)(side & 1) * PSTN_WAITERS + waiter % PSTN_WAITERS) * sizeof(struct pstn_evmap) +
	       field;
}

static u32 load_u32(struct pstn_endpoint *ep, u64 off)
{
	struct page *page;
	const u32 *word = word_at(ep, off, &page);
	u32 value;

	if (!word)
		return 0;
	value = READ_ONCE(*word);
	pstn_segment_put(page, false);
	return value;
}

static u64 load_u64(struct pstn_endpoint *ep, u64 off)
{
	struct page *page;
	const u64 *word = word_at(ep, off, &page);
	u64 value;

	if (!word)
		return 0;
	value = READ_ONCE(*word);
	pstn_segment_put(page, false);
	return value;
}

static void set_bit_of(struct pstn_endpoint *ep, u64 off, u32 bit)
{
	struct page *page;
	u64 *word = word_at(ep, off, &page);

	if (!word)
		return;
	if ((READ_ONCE(*word) & 1ull << bit) == 0)
		atomic64_or(1ll << bit, (atomic64_t *)word);
	smp_mb(); /* [F1] before the look at the next word */
	pstn_segment_put(page, true);
}

/* As SetBits(): the leaf's word first, then the summary's. The owner takes them the other way. */
static void set_bits(struct pstn_endpoint *ep, u32 side, u32 waiter)
{
	const u32 conn = ep->conn_idx % PSTN_CONNS;

	set_bit_of(ep, map_off(side, waiter, offsetof(struct pstn_evmap, leaf) + conn / 64 * 8),
		   conn % 64);
	set_bit_of(ep, map_off(side, waiter, offsetof(struct pstn_evmap, summary)), conn / 64);
}

/* ---- the bell. */

static char *put_hex(char *p, u64 v)
{
	int shift;

	for (shift = 60; shift >= 0; shift -= 4)
		*p++ = "0123456789abcdef"[v >> shift & 0xf];
	return p;
}

/* BellName of lib/smcd/notify.cc. Its length. */
static int bell_name(struct pstn_endpoint *ep, u32 side, u32 waiter, struct sockaddr_un *addr)
{
	const u64 stack = offsetof(struct pstn_lgr_hdr, stack) + side * sizeof(struct pstn_uuid);
	char *p = addr->sun_path + 1;

	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	memcpy(p, "postern/", 8);
	p = put_hex(p + 8, load_u64(ep, stack + offsetof(struct pstn_uuid, hi)));
	p = put_hex(p, load_u64(ep, stack + offsetof(struct pstn_uuid, lo)));
	*p++ = '/';
	p = put_hex(p, waiter);
	*p++ = '/';
	p = put_hex(p, load_u64(ep, map_off(side, waiter, offsetof(struct pstn_evmap, nonce))));
	return offsetof(struct sockaddr_un, sun_path) + (p - addr->sun_path);
}

static int send_ring(struct socket *from, struct sockaddr_un *to, int len)
{
	struct kvec one = { "!", 1 };
	struct msghdr msg = {
		.msg_name = to,
		.msg_namelen = len,
		.msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL,
	};

	return kernel_sendmsg(from, &msg, &one, 1, 1);
}

/* A socket of its own for one ring, where the one that was given has too much under way, or its
 * process had none to give.
 */
static int ring_afresh(struct net *net, struct sockaddr_un *to, int len)
{
	struct socket *sock;
	int r = sock_create_kern(net, AF_UNIX, SOCK_DGRAM, 0, &sock);

	if (r)
		return r;
	r = send_ring(sock, to, len);
	sock_release(sock);
	return r;
}

static int ring_bell(struct pstn_endpoint *ep, u32 side, u32 waiter)
{
	struct pstn_stack *stack = ep->stack;
	struct sockaddr_un to;
	int len = bell_name(ep, side, waiter, &to), r = -ENOTCONN;
	struct file *bells;

	spin_lock(&stack->bells_lock);
	bells = stack->bells;
	if (bells)
		get_file(bells);
	spin_unlock(&stack->bells_lock);
	if (bells) {
		struct socket *sock = sock_from_file(bells);

		r = send_ring(sock, &to, len);
		if (r == -EAGAIN)
			r = ring_afresh(sock_net(sock->sk), &to, len);
		fput(bells);
	}
	if (r < 0 && r != -EAGAIN)
		r = ring_afresh(sock_net(ep->sock->sk), &to, len);
	return r;
}

/* True: the owner has been rung. */
static bool ring_if_asleep(struct pstn_endpoint *ep, u32 side, u32 waiter)
{
	struct page *page;
	u32 *sleeping = word_at(ep, map_off(side, waiter, offsetof(struct pstn_evmap, sleeping)),
				&page);
	bool asleep, rung = false;

	if (!sleeping)
		return false;
	asleep = READ_ONCE(*sleeping) != 0 && xchg(sleeping, 0) != 0;
	if (asleep) {
		rung = ring_bell(ep, side, waiter) >= 0;
		if (!rung) /* its bell may be full, or gone: the next post tries again */
			WRITE_ONCE(*sleeping, 1);
	}
	pstn_segment_put(page, asleep);
	return rung;
}

static void ring_some(struct pstn_endpoint *ep, u32 side, u32 flags)
{
	const u32 hw = min(load_u32(ep, offsetof(struct pstn_lgr_hdr, waiters_hw) + 4 * side),
			   PSTN_WAITERS);
	u32 waiter, rung = 0, tries = 0;

	for (waiter = 1; waiter < hw && rung < RINGS_PER_POST && tries < TRIES_PER_POST; waiter++) {
		if ((load_u32(ep, map_off(side, waiter, offsetof(struct pstn_evmap, in_use))) &
		     flags) == 0)
			continue;
		if (load_u32(ep, map_off(side, waiter, offsetof(struct pstn_evmap, sleeping))) == 0)
			continue;
		rung += ring_if_asleep(ep, side, waiter);
		tries++;
	}
}

static void post_to(struct pstn_endpoint *ep, u32 side, u32 notify)
{
	u32 waiter;

	if (notify == 0)
		return;
	if (notify == PSTN_NOTIFY_SYN && side == 1) {
		set_bits(ep, side, PSTN_EVMAP_SYN);
		ring_some(ep, side, PSTN_EV_SYN);
	} else if (notify == PSTN_NOTIFY_ALL) {
		set_bits(ep, side, PSTN_EVMAP_ALL);
		ring_some(ep, side, ~0u);
	} else {
		waiter = array_index_nospec((notify - 1) % PSTN_WAITERS, PSTN_WAITERS);
		set_bits(ep, side, waiter);
		ring_if_asleep(ep, side, waiter);
	}
}

void pstn_library_post(struct pstn_endpoint *ep, unsigned int what)
{
	struct pstn_conn_ctl *peer = ep->lines.peer_ctl;
	const u32 notify = READ_ONCE(peer->rx_notify);
	const u32 side = ep->side ^ 1;

	if (notify == 0)
		return;
	if ((what & PSTN_RING_SPACE) != 0 && (READ_ONCE(peer->tx_wait) & PSTN_TXW_POST) != 0 &&
	    (atomic_fetch_andnot(PSTN_TXW_POST, (atomic_t *)&peer->tx_wait) & PSTN_TXW_POST) != 0)
		what |= PSTN_RING_DATA; /* one post says both */
	if ((what & PSTN_RING_DATA) != 0)
		post_to(ep, side, notify);
}

int pstn_library_bells(struct pstn_stack *stack, const struct pstn_ioc_bells *arg)
{
	struct file *file, *before;
	struct socket *sock;

	if (arg->zero != 0)
		return -EINVAL;
	file = fget(arg->fd);
	if (!file)
		return -EBADF;
	sock = sock_from_file(file);
	if (!sock || sock->type != SOCK_DGRAM || !sock->sk || sock->sk->sk_family != AF_UNIX) {
		fput(file);
		return -EINVAL;
	}
	spin_lock(&stack->bells_lock);
	before = stack->bells;
	stack->bells = file;
	spin_unlock(&stack->bells_lock);
	if (before)
		fput(before);
	return 0;
}
