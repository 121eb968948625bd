// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// vi_packet.h - what the filters of VIs read of a packet, whichever hook it comes by.
//
// Ends of the flow, fragments, what an ICMP error is about. Everything is bounded: two VLAN tags,
// four extension headers, one packet inside of an error.
#ifndef POSTERN_VI_PACKET_H
#define POSTERN_VI_PACKET_H

#include "xdp_maps.h"

#define EXTENSIONS_MAX 4
#define HOP_BY_HOP 0
#define ROUTING 43
#define FRAGMENT 44
#define DESTINATION 60
#define ICMPV6 58
#define TCP_SYN 0x0002
#define TCP_ACK 0x0010
#define IPV4_MORE 0x2000
#define IPV4_OFFSET 0x1fff

struct vlan_tag {
  __be16 id, type;
};
struct ipv4 {
  __u8 version_length, tos;
  __be16 bytes, id, fragment;
  __u8 ttl, protocol;
  __be16 sum;
  __be32 src, dst;
};
struct ipv6 {
  __be32 version_flow;
  __be16 payload_bytes;
  __u8 next, hops;
  struct pstn_xdp_ip src, dst;
};
struct extension {
  __u8 next, length;
  __be16 fragment;
  __be32 id;
};
struct ports {
  __be16 src, dst;
};
struct icmp {
  __u8 type, code;
  __be16 sum;
  __be32 rest;
};

struct tcp {
  struct ports ports;
  __be32 seq, ack;
  __be16 flags, window, sum, urgent;
};

// What has been read so far. `at` is the next byte that has not.
struct packet {
  void* at;
  void* end;
  void* ip;
  struct pstn_xdp_ip src, dst;
  __u32 id;  // of its fragments
  __u16 vlan;
  __u8 protocol;
  __u8 is_fragment, is_first;  // the first one has the ports
  __u8 is_ipv6;
};

// Null if the packet is shorter. The bytes after `at` are the caller's until the next call.
#define TAKE(p, type)                                                           \
  ({                                                                            \
    type* taken_ = (p)->at;                                                     \
    (void*)(taken_ + 1) > (p)->end ? (type*)0 : ((p)->at = taken_ + 1, taken_); \
  })

static __always_inline void map_ipv4(struct pstn_xdp_ip* to, __be32 from) {
  to->word[0] = to->word[1] = 0;
  to->word[2] = bpf_htonl(0xffff);
  to->word[3] = from;
}

static __always_inline int is_same(const struct pstn_xdp_ip* a, const struct pstn_xdp_ip* b) {
  return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
         a->word[3] == b->word[3];
}

static __always_inline int read_ipv4(struct packet* p) {
  struct ipv4* ip = TAKE(p, struct ipv4);
  if (!ip || ip->version_length >> 4 != 4) return 0;
  p->ip = ip;
  const __u32 header = (ip->version_length & 15) * 4;
  if (header < sizeof(*ip)) return 0;
  p->at += header - sizeof(*ip);
  map_ipv4(&p->src, ip->src);
  map_ipv4(&p->dst, ip->dst);
  p->protocol = ip->protocol;
  p->id = ip->id;
  p->is_ipv6 = 0;
  p->is_fragment = (ip->fragment & bpf_htons(IPV4_MORE | IPV4_OFFSET)) != 0;
  p->is_first = (ip->fragment & bpf_htons(IPV4_OFFSET)) == 0;
  return 1;
}

// RFC 8200, 4: those that can stand before TCP and UDP.
static __always_inline int read_ipv6(struct packet* p) {
  struct ipv6* ip = TAKE(p, struct ipv6);
  if (!ip || (bpf_ntohl(ip->version_flow) >> 28) != 6) return 0;
  p->ip = ip;
  p->src = ip->src;
  p->dst = ip->dst;
  p->protocol = ip->next;
  p->is_ipv6 = 1;
  p->is_fragment = 0;
  p->is_first = 1;
#pragma unroll
  for (int i = 0; i < EXTENSIONS_MAX; i++) {
    const __u8 kind = p->protocol;
    if (kind != HOP_BY_HOP && kind != ROUTING && kind != DESTINATION && kind != FRAGMENT) return 1;
    if (!p->is_first) return 1;  // the rest is data
    struct extension* e = TAKE(p, struct extension);
    if (!e) return 0;
    p->protocol = e->next;
    if (kind == FRAGMENT) {
      p->is_fragment = (e->fragment & bpf_htons(0xfff9)) != 0;  // offset or M
      p->is_first = (e->fragment & bpf_htons(0xfff8)) == 0;
      p->id = e->id;
    } else {
      p->at += e->length * 8;
    }
  }
  const __u8 last = p->protocol;
  return last != HOP_BY_HOP && last != ROUTING && last != DESTINATION && last != FRAGMENT;
}

static __always_inline int read_ip(struct packet* p, __be16 type) {
  if (type == bpf_htons(ETH_P_IP)) return read_ipv4(p);
  return type == bpf_htons(ETH_P_IPV6) && read_ipv6(p);
}

static __always_inline int is_error(const struct packet* p, __u8 type) {
  if (p->is_ipv6) return type >= 1 && type <= 4;              // RFC 4443, 3
  return type == 3 || type == 4 || type == 11 || type == 12;  // RFC 792
}

#endif
