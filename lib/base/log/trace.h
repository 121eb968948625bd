// SPDX-License-Identifier: Apache-2.0
// trace.h - trace points (USDT) for bpftrace, perf and SystemTap: docs/tracing.md has each.
//
// A point is a nop and a note in the object file that says where it is and where its arguments are.
// Without <sys/sdt.h> when Postern is built there are none.
#pragma once

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
// PSTN_TRACE2(name, argument, argument): integers or pointers that are at hand; nothing is computed
// for a point alone.
#define PSTN_TRACE2(name, a, b) STAP_PROBE2(postern, name, a, b)
#define PSTN_TRACE3(name, a, b, c) STAP_PROBE3(postern, name, a, b, c)
#else
#define PSTN_TRACE2(name, a, b) static_cast<void>(0)
#define PSTN_TRACE3(name, a, b, c) static_cast<void>(0)
#endif
