/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* thread_safety.h - which lock guards what: clang's -Wthread-safety (C11 = C++20 = kernel C). */
/*
 * A lock is a capability: what it guards says so, and so do functions that need it held, take it or
 * give it back. tests/tidy/thread_safety.py has clang check each source of lib/ and preload/. For
 * every other compiler, and for C, whose structs can't name their own fields here, all of these are
 * empty.
 *
 * The analysis compares expressions as they are written: `ep.tx.lock` of two references to one
 * endpoint are two locks to it. It looks at one function at a time, and at a lambda as at a
 * function of its own that holds nothing: there, and where the caller holds a lock under another
 * name, AssertHeld() (base/lock.h) says so.
 *
 * A plain access to what is guarded needs the lock. A look without it is a moment's answer, and
 * goes by lib/base/atomic.h, whose functions take references: those are not checked
 * (-Wno-thread-safety-reference).
 */
#ifndef POSTERN_THREAD_SAFETY_H
#define POSTERN_THREAD_SAFETY_H

#if defined(__clang__) && defined(__cplusplus)
#define PSTN_TS(x) __attribute__((x))
#else
#define PSTN_TS(x)
#endif

/* Of a type: a lock; a class whose objects hold one for as long as they live. */
#define PSTN_CAPABILITY(name) PSTN_TS(capability(name))
#define PSTN_SCOPED_CAPABILITY PSTN_TS(scoped_lockable)
/* Of a variable: read and written only with the lock; of a pointer: what it points to. */
#define PSTN_GUARDED_BY(lock) PSTN_TS(guarded_by(lock))
#define PSTN_PT_GUARDED_BY(lock) PSTN_TS(pt_guarded_by(lock))
/* Of a function: its caller holds them; must not hold them; it takes them; gives them back; takes
 * them if it returns `result`; they are held, by what its caller knows. */
#define PSTN_REQUIRES(...) PSTN_TS(requires_capability(__VA_ARGS__))
#define PSTN_EXCLUDES(...) PSTN_TS(locks_excluded(__VA_ARGS__))
#define PSTN_ACQUIRE(...) PSTN_TS(acquire_capability(__VA_ARGS__))
#define PSTN_RELEASE(...) PSTN_TS(release_capability(__VA_ARGS__))
#define PSTN_TRY_ACQUIRE(result, ...) PSTN_TS(try_acquire_capability(result, __VA_ARGS__))
#define PSTN_ASSERT_CAPABILITY(lock) PSTN_TS(assert_capability(lock))
/* Of a function that returns a lock: which. */
#define PSTN_RETURN_CAPABILITY(lock) PSTN_TS(lock_returned(lock))
/* Of a function whose locks the analysis can't follow; a comment says why. */
#define PSTN_NO_THREAD_SAFETY_ANALYSIS PSTN_TS(no_thread_safety_analysis)

#endif /* POSTERN_THREAD_SAFETY_H */
