// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// xdp_filter.bpf.c - steers the flows of VIs to their AF_XDP sockets; everything else passes.
//
// A packet goes to the socket of its VI for the queue that it came by: there is no other way from
// one queue than to a socket of it. What is for which VI: vi_table.h.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

// After linux/bpf.h, whose types they use.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef struct xdp_md context;
enum { PASS = XDP_PASS, TAKEN = XDP_REDIRECT };

#include "vi_table.h"

char LICENSE[] SEC("license") = "GPL";

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, PSTN_XDP_SLOTS* PSTN_XDP_SLOT_QUEUES);
  __type(key, __u32);
  __type(value, __u32);
} pstn_vi_xsks SEC(".maps");

static __always_inline int redirect(struct xdp_md* ctx, __u32 slot) {
  const __u32 queue = ctx->rx_queue_index;
  if (queue >= PSTN_XDP_SLOT_QUEUES) return XDP_PASS;
  const long action =
      bpf_redirect_map(&pstn_vi_xsks, slot * PSTN_XDP_SLOT_QUEUES + queue, XDP_PASS);
  if (action == XDP_REDIRECT) count(PSTN_XDP_COUNT_REDIRECTED);
  return (int)action;
}

SEC("xdp.frags")
int pstn_xdp3_vi(struct xdp_md* ctx) {
  struct packet p = {.at = (void*)(long)ctx->data, .end = (void*)(long)ctx->data_end};
  struct ethhdr* eth = TAKE(&p, struct ethhdr);
  if (!eth) return XDP_PASS;
  __be16 type = eth->h_proto;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD)) break;
    struct vlan_tag* tag = TAKE(&p, struct vlan_tag);
    if (!tag || p.vlan != 0) return XDP_PASS;  // no VI has a tag within a tag
    p.vlan = bpf_ntohs(tag->id) & 0x0fff;
    type = tag->type;
  }
  if (type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6)) return XDP_PASS;
  if (!read_ip(&p, type)) {
    count(PSTN_XDP_COUNT_ODD);
    return XDP_PASS;
  }
  if (p.protocol == IPPROTO_TCP || p.protocol == IPPROTO_UDP) return steer(ctx, &p);
  if (p.protocol == (p.is_ipv6 ? ICMPV6 : IPPROTO_ICMP)) return steer_icmp(ctx, &p);
  return XDP_PASS;
}
