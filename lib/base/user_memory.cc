// SPDX-License-Identifier: Apache-2.0
// user_memory.cc - see user_memory.h.
//
// A small copy is a leaf in assembly, all of whose instructions lie between two labels: if one of
// them faults, the thread goes on at pstn_user_failed, with the stack as it is. A large one is
// memcpy, whose instructions are libc's: there the place to go back to is noted before.
#include "base/user_memory.h"

#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "base/copy.h"

namespace postern {

void (*g_watch_faults)() = [] {};
bool g_faults_watched = false;

#if defined(__x86_64__)
extern "C" {
// The stack of the copy that this thread is at, to which it goes back; null: it is at none.
extern constinit thread_local void* pstn_user_copying
    __attribute__((visibility("hidden"), tls_model("initial-exec")));
[[gnu::used]] constinit thread_local void* pstn_user_copying = nullptr;

extern const char pstn_user_begin[], pstn_user_failed[], pstn_user_resume[];
int pstn_user_call(void* to, const void* from, size_t bytes, void* copy);

[[gnu::used]] constinit uint8_t pstn_user_wide = 0;  // the assembler asks for it by name
}

namespace {

[[gnu::constructor]] void ChooseWidth() {
  __builtin_cpu_init();
  pstn_user_wide = __builtin_cpu_supports("avx") ? 1 : 0;
}

}  // namespace

// A small copy: every load comes before the first store, of at most eight registers of 16 bytes,
// or four of 32. The stores go up: they go to lines that another core has, and one that goes back
// to a line before has cost half as much again. A call of libc's copy: what the caller has in
// registers lies above the stack to go back to.
asm(R"(
    .pushsection .text
    .p2align 4
    .globl pstn_user_begin, pstn_user_copy, pstn_user_read, pstn_user_write
    .hidden pstn_user_begin, pstn_user_copy, pstn_user_read, pstn_user_write
    .globl pstn_user_failed, pstn_user_call, pstn_user_resume
    .hidden pstn_user_failed, pstn_user_call, pstn_user_resume
    .type pstn_user_copy, @function
    .type pstn_user_read, @function
    .type pstn_user_write, @function
pstn_user_begin:
pstn_user_copy:
    .cfi_startproc
    cmpq $16, %rdx
    jb 2f
    movdqu (%rsi), %xmm0
    movdqu -16(%rsi,%rdx), %xmm1
    cmpq $32, %rdx
    jbe 5f
    cmpb $0, pstn_user_wide(%rip)
    je 3f
    vmovdqu (%rsi), %ymm0
    vmovdqu -32(%rsi,%rdx), %ymm1
    cmpq $64, %rdx
    jbe 4f
    vmovdqu 32(%rsi), %ymm2
    vmovdqu -64(%rsi,%rdx), %ymm3
    vmovdqu %ymm0, (%rdi)
    vmovdqu %ymm2, 32(%rdi)
    vmovdqu %ymm3, -64(%rdi,%rdx)
    vmovdqu %ymm1, -32(%rdi,%rdx)
    vzeroupper
    movl $1, %eax
    ret
4:  vmovdqu %ymm0, (%rdi)
    vmovdqu %ymm1, -32(%rdi,%rdx)
    vzeroupper
    movl $1, %eax
    ret
3:  movdqu 16(%rsi), %xmm2
    movdqu -32(%rsi,%rdx), %xmm3
    cmpq $64, %rdx
    jbe 4f
    movdqu 32(%rsi), %xmm4
    movdqu 48(%rsi), %xmm5
    movdqu -64(%rsi,%rdx), %xmm6
    movdqu -48(%rsi,%rdx), %xmm7
    movdqu %xmm0, (%rdi)
    movdqu %xmm2, 16(%rdi)
    movdqu %xmm4, 32(%rdi)
    movdqu %xmm5, 48(%rdi)
    movdqu %xmm6, -64(%rdi,%rdx)
    movdqu %xmm7, -48(%rdi,%rdx)
    movdqu %xmm3, -32(%rdi,%rdx)
    movdqu %xmm1, -16(%rdi,%rdx)
    movl $1, %eax
    ret
4:  movdqu %xmm0, (%rdi)
    movdqu %xmm2, 16(%rdi)
    movdqu %xmm3, -32(%rdi,%rdx)
    movdqu %xmm1, -16(%rdi,%rdx)
    movl $1, %eax
    ret
5:  movdqu %xmm0, (%rdi)
    movdqu %xmm1, -16(%rdi,%rdx)
    movl $1, %eax
    ret
2:  cmpq $8, %rdx
    jb 6f
    movq (%rsi), %rax
    movq -8(%rsi,%rdx), %rcx
    movq %rax, (%rdi)
    movq %rcx, -8(%rdi,%rdx)
    movl $1, %eax
    ret
6:  cmpq $4, %rdx
    jb 7f
    movl (%rsi), %eax
    movl -4(%rsi,%rdx), %ecx
    movl %eax, (%rdi)
    movl %ecx, -4(%rdi,%rdx)
    movl $1, %eax
    ret
7:  testq %rdx, %rdx
    je 8f
    movq %rdx, %r8
    shrq $1, %r8
    movzbl (%rsi), %eax
    movzbl (%rsi,%r8), %ecx
    movzbl -1(%rsi,%rdx), %r9d
    movb %al, (%rdi)
    movb %cl, (%rdi,%r8)
    movb %r9b, -1(%rdi,%rdx)
8:  movl $1, %eax
    ret
    .cfi_endproc
    .size pstn_user_copy, . - pstn_user_copy
pstn_user_read:
    .cfi_startproc
    movzbl (%rdi), %eax
    movl $1, %eax
    ret
    .cfi_endproc
    .size pstn_user_read, . - pstn_user_read
pstn_user_write:
    .cfi_startproc
    lock orb $0, (%rdi)
    movl $1, %eax
    ret
    .cfi_endproc
    .size pstn_user_write, . - pstn_user_write
pstn_user_failed:
    xorl %eax, %eax
    ret
    .type pstn_user_call, @function
pstn_user_call:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    pushq %r12
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r12, 0
    pushq %r13
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r13, 0
    pushq %r14
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r14, 0
    pushq %r15
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %r15, 0
    movq pstn_user_copying@gottpoff(%rip), %rbx
    pushq %fs:(%rbx)
    .cfi_adjust_cfa_offset 8
    movq %rsp, %fs:(%rbx)
    call *%rcx
    movl $1, %eax
9:  popq %fs:(%rbx)
    .cfi_adjust_cfa_offset -8
    popq %r15
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r15
    popq %r14
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r14
    popq %r13
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r13
    popq %r12
    .cfi_adjust_cfa_offset -8
    .cfi_restore %r12
    popq %rbx
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbx
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    ret
    .cfi_endproc
pstn_user_resume:
    movq pstn_user_copying@gottpoff(%rip), %rbx
    xorl %eax, %eax
    jmp 9b
    .size pstn_user_call, . - pstn_user_call
    .popsection
)");
#endif

namespace {

#if defined(__x86_64__)
using Copying = void*;
Copying& Current() { return pstn_user_copying; }

template <typename To, typename From>
bool Guarded(void (*copy)(To*, const From*, size_t), To* to, const From* from, size_t bytes) {
  return pstn_user_call(to, from, bytes, reinterpret_cast<void*>(copy)) != 0;
}
#else
// What __builtin_setjmp has kept.
using Place = void* [5];
using Copying = Place*;
constinit thread_local Copying t_copying __attribute__((tls_model("initial-exec"))) = nullptr;
Copying& Current() { return t_copying; }

// Runs on the stack of the thread that has faulted, below what it was at.
[[noreturn]] void GoBack() { __builtin_longjmp(*t_copying, 1); }

// Not inlined: what comes back from a fault keeps no variable of its caller.
template <typename To, typename From>
__attribute__((noinline)) bool Guarded(void (*copy)(To*, const From*, size_t), To* to,
                                       const From* from, size_t bytes) {
  Place place;
  Copying const before = t_copying;
  if (__builtin_setjmp(place) != 0) {
    t_copying = nullptr;  // a copy is within another only in a handler, which has hidden that one
    return false;
  }
  t_copying = &place;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_copying = before;
  return true;
}
#endif

void Plain(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }

constexpr size_t kPage = 4096;  // the smallest that there is

template <typename Touch>
bool EachPage(uintptr_t at, size_t bytes, Touch touch) {
  if (bytes == 0) return true;
  const uintptr_t last = at + (bytes - 1);
  if (last < at) return false;
  while (touch(at)) {
    const uintptr_t next = (at | (kPage - 1)) + 1;
    if (next > last || next == 0) return true;
    at = next;
  }
  return false;
}

}  // namespace

#if !defined(__x86_64__)
bool CopyGuarded(void* to, const void* from, size_t bytes) { return CopyLarge(to, from, bytes); }
#endif

bool CopyLarge(void* to, const void* from, size_t bytes) {
  if (!kSanitized) return Guarded(Plain, to, from, bytes);
  memcpy(to, from, bytes);
  return true;
}

bool CopyLargePastCache(uint8_t* to, const uint8_t* from, size_t bytes) {
  if (!kSanitized) return Guarded(CopyPastCache, to, from, bytes);
  CopyPastCache(to, from, bytes);
  return true;
}

bool UserReadable(const void* at, size_t bytes) {
  return EachPage(reinterpret_cast<uintptr_t>(at), bytes, [](uintptr_t byte) {
#if defined(__x86_64__)
    return pstn_user_read(reinterpret_cast<const void*>(byte)) != 0;
#else
    char one;
    return GetUser(one, reinterpret_cast<const void*>(byte));
#endif
  });
}

bool UserWritable(void* at, size_t bytes) {
  return EachPage(reinterpret_cast<uintptr_t>(at), bytes, [](uintptr_t byte) {
#if defined(__x86_64__)
    return pstn_user_write(reinterpret_cast<void*>(byte)) != 0;
#else
    char one;
    auto* const place = reinterpret_cast<void*>(byte);
    return GetUser(one, place) && PutUser(place, one);
#endif
  });
}

bool RecoverFault(void* context) {
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  auto& pc = machine.gregs[REG_RIP];
  const auto at = static_cast<uintptr_t>(pc);
  if (at >= reinterpret_cast<uintptr_t>(pstn_user_begin) &&
      at < reinterpret_cast<uintptr_t>(pstn_user_failed)) {
    pc = static_cast<greg_t>(reinterpret_cast<uintptr_t>(pstn_user_failed));
    return true;
  }
  if (pstn_user_copying == nullptr) return false;
  machine.gregs[REG_RSP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(pstn_user_copying));
  pc = static_cast<greg_t>(reinterpret_cast<uintptr_t>(pstn_user_resume));
  return true;
#elif defined(__aarch64__)
  if (t_copying == nullptr) return false;
  machine.pc = reinterpret_cast<uintptr_t>(&GoBack);
  return true;
#endif
}

void* HideCopy() {
  void* const hidden = Current();
  Current() = nullptr;
  return hidden;
}
void ShowCopy(void* hidden) { Current() = static_cast<Copying>(hidden); }

}  // namespace postern
