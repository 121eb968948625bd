// SPDX-License-Identifier: GPL-2.0
/* library_sleep.c - threads of the library that sleep for a connection whose other end is ours. */
/*
 * Such a thread could sleep on a futex, as it does for a peer with the library, but the kernel has
 * no way for a module to wake one. So it sleeps here, by a request that is FUTEX_WAIT in all but
 * name: it names a word of its own line, and the value that it has left there. What wakes it is
 * what wakes a socket's sleepers (pstn_link_wake).
 *
 * A sleeper is on a queue before it looks at the word, and whoever wakes changes the word before he
 * looks at the queue: [F1]. A wake-up is remembered, as the word may be armed again meanwhile.
 */
#include <linux/hash.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/sched/signal.h>
#include <linux/wait.h>

#include "kmod.h"

#define BED_BITS 8

static wait_queue_head_t beds[1 << BED_BITS];

struct bed_key {
	const struct pstn_link *link;
	u32 side, conn_idx;
	unsigned int what;
};

struct sleeper {
	struct wait_queue_entry wait;
	struct bed_key key;
	bool woken; /* under the queue's lock */
};

static wait_queue_head_t *bed_of(const struct bed_key *key)
{
	return &beds[hash_64((unsigned long)key->link + 2 * key->conn_idx + key->side, BED_BITS)];
}

static int wake_sleeper(struct wait_queue_entry *wait, unsigned int mode, int flags, void *key)
{
	struct sleeper *s = container_of(wait, struct sleeper, wait);
	const struct bed_key *k = key;

	if (k->link != s->key.link || k->side != s->key.side || k->conn_idx != s->key.conn_idx ||
	    (k->what & s->key.what) == 0)
		return 0;
	WRITE_ONCE(s->woken, true);
	return default_wake_function(wait, mode, flags, NULL);
}

void pstn_sleepers_wake(struct pstn_link *link, u32 side, u32 conn_idx, unsigned int what)
{
	struct bed_key key = { link, side, conn_idx, what };
	wait_queue_head_t *bed = bed_of(&key);

	if (wq_has_sleeper(bed)) /* [F1] a full barrier behind the change of the word */
		__wake_up(bed, TASK_INTERRUPTIBLE, 0, &key);
}

static int sleep_while(struct sleeper *s, const u32 *word, u32 value, u64 timeout_ns)
{
	const bool forever = timeout_ns == PSTN_WAIT_FOREVER;
	ktime_t end = forever ? 0 : ktime_add_safe(ktime_get(), min_t(u64, timeout_ns, KTIME_MAX));
	wait_queue_head_t *bed = bed_of(&s->key);
	int err;

	add_wait_queue(bed, &s->wait);
	for (;;) {
		set_current_state(TASK_INTERRUPTIBLE); /* [F1] a full barrier before the look */
		err = READ_ONCE(s->woken) ? 0 : 1;
		if (err && READ_ONCE(*word) != value)
			err = -EAGAIN;
		else if (err && signal_pending(current))
			err = forever ? -ERESTARTSYS : -EINTR;
		if (err <= 0)
			break;
		if (schedule_hrtimeout(forever ? NULL : &end, HRTIMER_MODE_ABS) == 0) {
			err = READ_ONCE(s->woken) ? 0 : -ETIMEDOUT;
			break;
		}
	}
	__set_current_state(TASK_RUNNING);
	remove_wait_queue(bed, &s->wait);
	return err;
}

int pstn_sleepers_wait(struct pstn_stack *stack, const struct pstn_ioc_wait *arg)
{
	struct pstn_seat *seat = pstn_link_seat(stack, arg->lgr_idx);
	const bool data = arg->what == PSTN_RING_DATA;
	struct sleeper s = {};
	struct page *page;
	u64 off;
	int err;

	if (!seat || arg->conn_idx >= PSTN_CONNS || (!data && arg->what != PSTN_RING_SPACE))
		return -EINVAL;
	off = PSTN_LGR_CONN_OFF + (u64)arg->conn_idx * sizeof(struct pstn_conn) +
	      offsetof(struct pstn_conn, ctl) + seat->side * sizeof(struct pstn_conn_ctl) +
	      (data ? offsetof(struct pstn_conn_ctl, rx_wait) :
		      offsetof(struct pstn_conn_ctl, tx_wait));
	page = pstn_segment_page(&seat->link->seg, off);
	if (IS_ERR(page))
		return PTR_ERR(page);
	init_waitqueue_func_entry(&s.wait, wake_sleeper);
	s.wait.private = current;
	s.key.link = seat->link;
	s.key.side = seat->side;
	s.key.conn_idx = arg->conn_idx;
	s.key.what = arg->what;
	err = sleep_while(&s, page_address(page) + offset_in_page(off), arg->value,
			  arg->timeout_ns);
	pstn_segment_put(page, false);
	return err;
}

void pstn_sleepers_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(beds); i++)
		init_waitqueue_head(&beds[i]);
}
