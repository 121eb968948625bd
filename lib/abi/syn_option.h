/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* syn_option.h - SMC's option in SYN and SYN-ACK, and the socket option that asks for it. */
/*
 * C11, C++20 and BPF C. The socket option exists where posternd has attached
 * controlplane/posternd/bpf/syn_option.bpf.c to a cgroup that the socket belongs to; elsewhere the
 * kernel answers ENOPROTOOPT, which means "not available". What it promises is in
 * docs/protocols/syn-option.md.
 *
 *   setsockopt(fd, SOL_TCP, PSTN_TCP_SMC, &one, sizeof(int))
 *     before connect() or listen(), or on a listening socket: SYN and SYN-ACK of this socket carry
 *     the mark. 0 takes it back. EPERM: not in this state, not on this kernel, not this value.
 *   getsockopt(fd, SOL_TCP, PSTN_TCP_SMC, &bits, &len)
 *     PSTN_TCP_SMC_*. Final once connected or accepted; it goes with the programs, so ask at once.
 */
#ifndef POSTERN_SYN_OPTION_H
#define POSTERN_SYN_OPTION_H

/*
 * "PSMC". An int, so that nothing has to be handed out: Linux counts its TCP options up from 1 and
 * BPF's own from 1001, other BPF programs take small or round numbers; four letters meet none.
 */
#define PSTN_TCP_SMC 0x50534d43
#define PSTN_TCP_SMC_EXCHANGED 1 /* SYN and SYN-ACK of this connection both had the option */
#define PSTN_TCP_SMC_MARKED 2    /* setsockopt() has asked for it */

/* RFC 7609 3.1: shared experimental kind (RFC 6994), then "SMCR" in EBCDIC. */
#define PSTN_SYN_KIND 254
#define PSTN_SYN_LEN 6
#define PSTN_SYN_EXID_0 0xe2
#define PSTN_SYN_EXID_1 0xd4
#define PSTN_SYN_EXID_2 0xc3
#define PSTN_SYN_EXID_3 0xd9

#endif /* POSTERN_SYN_OPTION_H */
