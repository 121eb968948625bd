/* SPDX-License-Identifier: GPL-2.0 */
/* shared.h - how shared memory is read and written: in the kernel, and in tests in user space. */
#ifndef PSTN_KMOD_SHARED_H
#define PSTN_KMOD_SHARED_H

#ifdef __KERNEL__
#include <linux/atomic.h>
#include <linux/kernel.h>
#include <linux/nospec.h>
#include <linux/ktime.h>
#include <asm/barrier.h>

#define pstn_now_ns() ktime_get_ns()
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define READ_ONCE(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define smp_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define smp_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define xchg(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
#define array_index_nospec(i, n) ((i) < (n) ? (i) : 0)
#define min_t(t, a, b) ((t)(a) < (t)(b) ? (t)(a) : (t)(b))

static inline u64 pstn_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (u64)ts.tv_sec * 1000000000u + (u64)ts.tv_nsec;
}

static inline unsigned int __ffs64(u64 x)
{
	return (unsigned int)__builtin_ctzll(x);
}
#endif

#include "abi/kmod_abi.h"

#endif
