/* SPDX-License-Identifier: Apache-2.0 */
/* vfork_entry.S - vfork() for x86-64: see vfork_calls.cc.
 *
 * The return address is in a register while the child runs. The child returns to the program and
 * overwrites its place; the kernel gives the parent its registers as they were. */
  .text
  .globl vfork
  .type vfork, @function
  .p2align 4
vfork:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call postern_vfork_begin
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  .cfi_register %rip, %rdi
  movl $58, %eax /* SYS_vfork */
  syscall
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  .cfi_rel_offset %rip, 0
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  movq %rax, %rdi
  call postern_vfork_after
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  ret
  .cfi_endproc
  .size vfork, .-vfork
  .section .note.GNU-stack, "", @progbits
