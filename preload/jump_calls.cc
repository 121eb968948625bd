// SPDX-License-Identifier: Apache-2.0
// jump_calls.cc - longjmp() out of a handler: calls that the handler has interrupted are over.
//
// What they held has to be given back, or a connection that is closed next would not end: the peer
// waits for it. Calls whose functions the jump leaves standing (a jump within the handler) go on.
#include <setjmp.h>

#include "endpoint/call.h"
#include "real.h"
#include "sock/own_family.h"

using namespace postern;

namespace {

// The stack pointer that the jump restores. glibc stores it encoded (pointer guard).
uintptr_t TargetOf(const __jmp_buf_tag* env) {
#if defined(__x86_64__) && defined(__GLIBC__)
  constexpr int kStackPointer = 6;  // glibc's JB_RSP
  auto value = static_cast<uintptr_t>(env->__jmpbuf[kStackPointer]);
  __asm__("rorq $17, %0\n\txorq %%fs:0x30, %0" : "+r"(value) : : "cc");
  return value;
#else
  (void)env;
  return 0;  // not known: the thread's next call finds out (Call::Room)
#endif
}

using Jump = void (*)(__jmp_buf_tag*, int);

[[noreturn]] void JumpBy(Jump real, __jmp_buf_tag* env, int value) {
  AbandonBelow(g_family, TargetOf(env));
  real(env, value);
  __builtin_unreachable();
}

}  // namespace

#define PSTN_JUMP(name)                                                                     \
  extern "C" __attribute__((visibility("default"), noreturn)) void name(__jmp_buf_tag* env, \
                                                                        int value) {        \
    static void* found = nullptr;                                                           \
    void* real = LoadRelaxed(found);                                                        \
    if (real == nullptr) StoreRelaxed(found, real = RealSymbol(#name));                     \
    JumpBy(reinterpret_cast<Jump>(real), env, value);                                       \
  }

extern "C" void __longjmp_chk(__jmp_buf_tag* env, int value) __attribute__((noreturn));

PSTN_JUMP(longjmp)
PSTN_JUMP(_longjmp)
PSTN_JUMP(siglongjmp)
PSTN_JUMP(__longjmp_chk)
