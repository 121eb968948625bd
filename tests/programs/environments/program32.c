/* program32.c - a program of 32 bits, with the loader and without a C library: says so.
 * SPDX-License-Identifier: Apache-2.0 */
static long Call(long number, long a, long b, long c) {
  long r;
  __asm__ volatile("int $0x80" : "=a"(r) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
  return r;
}

void _start(void);
void _start(void) {
  static const char text[] = "32 bits\n";
  Call(4, 1, (long)text, sizeof text - 1); /* write */
  Call(1, 0, 0, 0);                        /* exit */
}
