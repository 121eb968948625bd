// SPDX-License-Identifier: Apache-2.0
// check.cc - see base/check.h; beside the counters, one of which it counts.
#include "base/check.h"

#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "base/atomic.h"
#include "base/schema/counters.h"
#include "base/sys.h"

#if defined(PSTN_CHECKS) && (defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__))
extern "C" void __sanitizer_print_stack_trace();
#define PSTN_TRACE() __sanitizer_print_stack_trace()
#else
#define PSTN_TRACE()
#endif

namespace postern {
namespace {

enum PlaceState : uint32_t { kFree = 0, kBeingEntered = 1, kEntered = 2 };

pstn_stack_hdr* counts_in = nullptr;  // (a)
uint32_t expects_lies = 0;            // (a)

// From the folder of the tree on: a build says it in its own way, and may lie in some /usr/lib.
const char* InTree(const char* file) {
  const char* found = file;
  for (const char* top : {"/lib/", "/preload/", "/controlplane/", "/tests/"}) {
    for (const char* at = file; (at = strstr(at, top)) != nullptr;) found = ++at;
    if (found != file) break;
  }
  return found;
}

// The table is full of other places: then the count of all has to do.
void Enter(pstn_stack_hdr& hdr, const char* place) {
  for (pstn_check& c : hdr.checks) {
    uint32_t state = kFree;
    if (CompareExchange(c.state, state, kBeingEntered)) {
      memcpy(c.place, place, strnlen(place, sizeof c.place - 1));  // the rest is 0
      StoreRelease(c.state, kEntered);                             // [K1]: the text is there
      FetchAdd(c.count, uint64_t{1});
      return;
    }
    if (LoadAcquire(c.state) == kEntered &&  // [K1]
        strncmp(c.place, place, sizeof c.place) == 0) {
      FetchAdd(c.count, uint64_t{1});
      return;
    }
  }
}

#if defined(PSTN_CHECKS)
void EndProgram(const char* place, const char* what) {
  char text[160];
  const int n = snprintf(text, sizeof text, "postern: a check has failed at %s%s%s\n", place,
                         *what != 0 ? ": " : "", what);
  (void)sys::Call(SYS_write, 2L, &text[0], static_cast<size_t>(n));
  PSTN_TRACE();
  __builtin_trap();
}
#else
void EndProgram(const char*, const char*) {}
#endif

}  // namespace

bool CheckFailed(const char* file, uint32_t line, const char* what) {
  char place[sizeof(pstn_check::place)];
  snprintf(place, sizeof place, "%s:%u", InTree(file), line);
  if (pstn_stack_hdr* hdr = LoadAcquire(counts_in); hdr != nullptr) {  // [K2]
    Count(*hdr, kCounterChecksFailed);
    Enter(*hdr, place);
  }
  if (!ExpectsLies()) EndProgram(place, what);
  return false;
}

void CountChecksIn(pstn_stack_hdr* hdr) {
  StoreRelease(counts_in, hdr);  // [K2]: the header is mapped
}
void ExpectLies(bool expects) { StoreRelaxed(expects_lies, expects ? 1u : 0u); }
bool ExpectsLies() { return LoadRelaxed(expects_lies) != 0; }

}  // namespace postern
