// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// tap_filter.bpf.c - steers the flows of VIs to the TAPs beside their interface, and what is
// written to those out by it.
//
// Two programs, at tcx hooks, where packets are as the kernel's own TCP has them: gathered by their
// sender or by the driver's GRO, up to 64 KiB, with checksums that no one has filled in.
//
//   wire --> interface --(pstn_tap1_vi)--> TAP --> the stack, by read()
//                 \-----> the kernel, what is not the stack's
//   wire <-- interface <--(pstn_tap1_out)-- TAP <-- the stack, by write()
//                                 \-----> nowhere, what the stack may not send
//
// *In*: what is for which VI is the same table and the same look into the kernel's own as with
// AF_XDP (vi_table.h). A TAP that is gone, its owner being dead, is seen at the packet
// (bpf_check_mtu knows of no such interface), which passes. What is steered to a TAP is counted in
// its bell (vi/tap/tap_vi.h).
//
// *Out*: nothing of what comes out of a TAP goes to the kernel's stack of protocols: the owner of
// the TAP is not trusted, and could be anybody there. It leaves by the interface if it is TCP or
// UDP, whole or to be cut by the kernel, and its source is what one of the VI's filters is for: a
// flow, a port on its address, or a port on any address of this host. All else is dropped, and
// counted. (An AF_XDP socket sends what it likes.)
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

// After linux/bpf.h, whose types they use.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define TCX_NEXT (-1)
#define TCX_DROP 2
#define TCX_REDIRECT 7
#define NO_DEVICE (-19)
#define HEADERS_MAX 134  // of Ethernet, IPv4 and TCP, the longest
#define HEADERS_MIN 54   // ... the usual ones without options

typedef struct __sk_buff context;
enum { PASS = TCX_NEXT, TAKEN = TCX_REDIRECT };

#include "vi_table.h"

char LICENSE[] SEC("license") = "GPL";

// By slot: its TAP's interface; 0: it has none.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, PSTN_XDP_SLOTS);
  __type(key, __u32);
  __type(value, __u32);
} pstn_vi_taps SEC(".maps");

// By a TAP's interface.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, PSTN_XDP_SLOTS);
  __type(key, __u32);
  __type(value, struct pstn_xdp_tap);
} pstn_vi_slots SEC(".maps");

struct bell {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
};

// By slot. Each is a map of its own, so that no stack sees what another one's does.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
  __uint(max_entries, PSTN_XDP_SLOTS);
  __type(key, __u32);
  __array(values, struct bell);
} pstn_vi_bells SEC(".maps");

static __always_inline void ring(__u32 slot) {
  const __u32 zero = 0;
  void* bell = bpf_map_lookup_elem(&pstn_vi_bells, &slot);
  __u64* counted = bell ? bpf_map_lookup_elem(bell, &zero) : 0;
  if (counted) __sync_fetch_and_add(counted, 1);
}

static __always_inline int redirect(context* ctx, __u32 slot) {
  const __u32* tap = bpf_map_lookup_elem(&pstn_vi_taps, &slot);
  __u32 mtu = 0;
  if (!tap || *tap == 0 || bpf_check_mtu(ctx, *tap, &mtu, 0, 0) == NO_DEVICE) return PASS;
  ring(slot);
  count(PSTN_XDP_COUNT_REDIRECTED);
  return (int)bpf_redirect(*tap, 0);
}

// Headers that are not in a row are rare: what the kernel or a driver has gathered begins with
// them. False: there is no packet to be read.
static __always_inline int open_packet(context* ctx, struct packet* p, __be16* type) {
  const __u32 here = ctx->data_end - ctx->data;
  if (here < HEADERS_MIN && here < ctx->len &&
      bpf_skb_pull_data(ctx, ctx->len < HEADERS_MAX ? ctx->len : HEADERS_MAX) != 0)
    return 0;
  *p = (struct packet){.at = (void*)(long)ctx->data, .end = (void*)(long)ctx->data_end};
  struct ethhdr* eth = TAKE(p, struct ethhdr);
  if (!eth) return 0;
  *type = eth->h_proto;
  // The kernel has taken the first tag out of the frame.
  if (ctx->vlan_present) p->vlan = ctx->vlan_tci & 0x0fff;
  return *type == bpf_htons(ETH_P_IP) || *type == bpf_htons(ETH_P_IPV6);
}

SEC("tc")
int pstn_tap1_vi(context* ctx) {
  struct packet p;
  __be16 type;
  if (!open_packet(ctx, &p, &type)) return PASS;
  if (!read_ip(&p, type)) {
    count(PSTN_XDP_COUNT_ODD);
    return PASS;
  }
  if (p.protocol == IPPROTO_TCP || p.protocol == IPPROTO_UDP) return steer(ctx, &p);
  if (p.protocol == (p.is_ipv6 ? ICMPV6 : IPPROTO_ICMP)) return steer_icmp(ctx, &p);
  return PASS;
}

static __always_inline int leads_to(const struct pstn_xdp_target* target, __u32 slot) {
  return target && target->slot == slot && !(target->flags & PSTN_XDP_PASS);
}

// Whether what comes back to where this packet is from would be for that slot.
static __always_inline int is_own(const struct packet* p, const struct ports* ports, __u32 slot) {
  struct pstn_xdp_flow flow = {p->src, p->dst, ports->src, ports->dst, p->vlan, p->protocol, 0};
  if (leads_to(bpf_map_lookup_elem(&pstn_vi_flows, &flow), slot)) return 1;
  struct pstn_xdp_port port = {p->src, ports->src, p->vlan, p->protocol, {0}};
  if (leads_to(bpf_map_lookup_elem(&pstn_vi_ports, &port), slot)) return 1;
  if (!bpf_map_lookup_elem(&pstn_vi_local, &p->src)) return 0;
  port.local.word[0] = port.local.word[1] = port.local.word[3] = 0;
  port.local.word[2] = p->is_ipv6 ? 0 : bpf_htonl(0xffff);
  return leads_to(bpf_map_lookup_elem(&pstn_vi_ports, &port), slot);
}

static __always_inline int may_leave(context* ctx, __u32 slot) {
  struct packet p;
  __be16 type;
  if (!open_packet(ctx, &p, &type) || !read_ip(&p, type) || p.is_fragment) return 0;
  if (p.protocol != IPPROTO_TCP && p.protocol != IPPROTO_UDP) return 0;
  const struct ports* ports = TAKE(&p, struct ports);
  return ports && is_own(&p, ports, slot);
}

SEC("tc")
int pstn_tap1_out(context* ctx) {
  __u32 tap = ctx->ifindex;
  const struct pstn_xdp_tap* known = bpf_map_lookup_elem(&pstn_vi_slots, &tap);
  if (!known || !may_leave(ctx, known->slot)) {
    count(PSTN_XDP_COUNT_FORBIDDEN);
    return TCX_DROP;
  }
  return (int)bpf_redirect(known->out, 0);
}
