// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// xdp_maps.h - keys and values of the maps of xdp_filter.bpf.c and tap_filter.bpf.c, for them and
// for posternd, which fills them.
//
// Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d; "any" is :: or ::ffff:0.0.0.0, so a wildcard is
// of one family. Ports are as on the wire. A change of a layout is a change of PSTN_XDP_PROGRAM's
// digit: a posternd takes over only what speaks its own.
#ifndef POSTERN_XDP_MAPS_H
#define POSTERN_XDP_MAPS_H

#ifdef __cplusplus
#include <linux/types.h>
#endif

#define PSTN_XDP_PROGRAM "pstn_xdp3_vi"
#define PSTN_TAP_PROGRAM "pstn_tap1_vi"  // tap_filter.bpf.c's, at the interface
#define PSTN_TAP_OUT "pstn_tap1_out"     // ... and at each TAP
#define PSTN_XDP_SLOTS 64        // VIs of one interface
#define PSTN_XDP_SLOT_QUEUES 32  // of each; index in the XSKMAP: slot * 32 + queue
#define PSTN_XDP_FLOWS_MAX 262144
#define PSTN_XDP_PORTS_MAX 16384
#define PSTN_XDP_LOCAL_MAX 4096
#define PSTN_XDP_FRAGMENTS_MAX 4096

struct pstn_xdp_ip {
  union {
    __u8 byte[16];
    __u32 word[4];
  };
};

struct pstn_xdp_flow {
  struct pstn_xdp_ip local, peer;
  __be16 local_port, peer_port;
  __u16 vlan;  // 0: untagged
  __u8 protocol;
  __u8 zero;
};

struct pstn_xdp_port {
  struct pstn_xdp_ip local;  // any: looked up only for addresses in pstn_vi_local
  __be16 port;
  __u16 vlan;
  __u8 protocol;
  __u8 zero[3];
};

#define PSTN_XDP_PASS 1       // leave it to the kernel, though a wider filter would take it
#define PSTN_XDP_FRAGMENTS 2  // its fragments, too
#define PSTN_XDP_OUTGOING 4   // of a port: only what no socket of the kernel's would get
#define PSTN_XDP_ENDED 8      // of a port: its listener has ended; SYNs are for the next one

struct pstn_xdp_target {
  __u32 slot;
  __u32 flags;
  __u32 uid;  // of the kernel's socket that justifies it; another user's packets are not for it
};

// A TAP: whose it is, and by which interface leaves what is written to it.
struct pstn_xdp_tap {
  __u32 slot;
  __u32 out;
};

// Fragments of one packet, after the first has been seen.
struct pstn_xdp_fragments {
  struct pstn_xdp_ip src, dst;
  __u32 id;
  __u32 protocol;
};

enum {
  PSTN_XDP_COUNT_REDIRECTED,
  PSTN_XDP_COUNT_ICMP,       // errors about a packet of ours; of those redirected
  PSTN_XDP_COUNT_FRAGMENTS,  // fragments that went to the kernel
  PSTN_XDP_COUNT_ODD,        // not understood; to the kernel
  PSTN_XDP_COUNT_KERNELS,    // of a port with a filter, but of a connection that the kernel has
  PSTN_XDP_COUNT_FORBIDDEN,  // written to a TAP by a stack that may not send it
  PSTN_XDP_COUNTS
};

#endif
