// SPDX-License-Identifier: GPL-2.0
/* shared_lock.c - a lock word in the stack's memory, as lib/base/lock.h has it. */
/*
 * A call of the kernel takes the word as PSTN_LOCK_MODULE, holds it while it moves bytes, and gives
 * it back: it never sleeps for the program under it, since a page of the program's that is not
 * there ends the copy (socket_stream.c). So a thread that waits for it does not wait for long.
 *
 * A call that waits for a thread of the family looks again and again, for the kernel has no way to
 * sleep on a futex. It waits 20 ms, as the library does before it asks. Then it takes the word from
 * an owner that is dead, and else says so: the caller looks for signals, and may try again.
 *
 * Programs may write into the word what they like. Two holders are possible then, or none for ever;
 * what the kernel does under the lock is safe without it, and its waits can be interrupted.
 */
#include <linux/delay.h>
#include <linux/sched.h>

#include "kmod.h"

#define SLEEPERS 0x80000000u
#define SPINS 200
#define PATIENCE_NS (20 * NSEC_PER_MSEC)

int pstn_shared_lock(struct pstn_stack *stack, u32 *word)
{
	const u64 until = ktime_get_ns() + PATIENCE_NS;
	unsigned int pause_us = 20;
	int i;

	for (i = 0; i < SPINS; i++) {
		if (READ_ONCE(*word) == 0 && cmpxchg(word, 0, PSTN_LOCK_MODULE) == 0)
			return 0;
		cpu_relax();
	}
	for (;;) {
		const u32 seen = READ_ONCE(*word);

		if (seen == 0 && cmpxchg(word, 0, PSTN_LOCK_MODULE) == 0)
			return 0;
		if (ktime_get_ns() >= until) {
			if (seen == 0 || pstn_stack_holder_lives(stack, seen & ~SLEEPERS))
				return -EAGAIN;
			if (cmpxchg(word, seen, PSTN_LOCK_MODULE | (seen & SLEEPERS)) == seen)
				return 1;
			return -EAGAIN;
		}
		usleep_range(pause_us, 2 * pause_us);
		pause_us = min(2 * pause_us, 1000u);
	}
}

/* A thread of the library that sleeps for the word gets up within its 20 ms: the kernel can't wake
 * it. A word that is not ours any more is left alone.
 */
void pstn_shared_unlock(u32 *word)
{
	if (cmpxchg(word, PSTN_LOCK_MODULE, 0) != PSTN_LOCK_MODULE)
		cmpxchg(word, PSTN_LOCK_MODULE | SLEEPERS, 0);
}
