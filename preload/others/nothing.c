/* SPDX-License-Identifier: Apache-2.0 */
/* nothing.c - what 32-bit programs are given in place of libpostern.so: the loader has its file,
 * and nothing to complain of. */
