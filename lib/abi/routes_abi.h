/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* routes_abi.h - layout of the control plane's tables, which only posternd writes. */
/*
 * A sealed memfd, mapped read-only by all but posternd (F_SEAL_FUTURE_WRITE). Two parts:
 *
 *   copy[2]   links, addresses, rules, tables, routes: a snapshot of one moment each. posternd
 *             writes the copy that is not in use, then adds one to `seq`; copy[seq & 1] is the one
 *             to read. A reader loads seq, reads, and looks whether the copy's `stamp` is still
 *             what seq was: so it loses only against two changes in a row, and never waits.
 *   neigh     neighbours, changed in place, one entry at a time, under `neigh_seq` (odd meanwhile).
 *
 * Addresses are 16 bytes, IPv4 mapped (::ffff:a.b.c.d); prefix lengths count all 128 bits, so
 * IPv4's are 96..128. All that is not said to be (a) is written under seq or neigh_seq. A reader
 * may see halves of a change before it finds out: each index and count is checked when it is used.
 */
#ifndef POSTERN_ROUTES_ABI_H
#define POSTERN_ROUTES_ABI_H

#include "abi/postern_abi.h"

#define PSTN_MAGIC_ROUTES 0x73747270u /* "prts" */
#define PSTN_ROUTES_VERSION 1u

#define PSTN_RT_ROUTES 65536u
#define PSTN_RT_HOPS 65536u
#define PSTN_RT_BUCKETS 131072u /* a power of two */
#define PSTN_RT_TABLES 512u
#define PSTN_RT_RULES 1024u
#define PSTN_RT_METRICS 1024u
#define PSTN_RT_LINKS 4096u
#define PSTN_RT_ADDRS 8192u
#define PSTN_RT_LABELS 64u
#define PSTN_RT_NEIGHS 65536u /* places, a power of two; half of them are used */

/* One next hop. */
struct pstn_rt_hop {
  pstn_u32 ifindex;
  pstn_u32 flags;  /* PSTN_RH_* */
  pstn_u32 weight; /* 1.. */
  pstn_u32 via;    /* 0: on-link, 4, 6: family of `gateway` */
  pstn_u8 gateway[16];
};
#define PSTN_RH_DEAD 1u /* not to be used: interface down, or without carrier where that counts */
#define PSTN_RH_LINKDOWN 2u /* without carrier */
#define PSTN_RH_ENCAP 4u    /* wraps packets */
#define PSTN_RH_UNKNOWN 8u  /* has an attribute that posternd doesn't know */
#define PSTN_RH_LINKSCOPE 16u

/* RTAX_* of linux/rtnetlink.h by their numbers. */
struct pstn_rt_metrics {
  pstn_u32 value[20];
  char congestion[16]; /* name; RTAX_CC_ALGO */
};

/* A route. Those of one prefix are a chain in the order in which the kernel tries them. */
struct pstn_rt_route {
  pstn_u8 dst[16];     /* bits behind plen are 0 */
  pstn_u32 hash_next;  /* route + 1: next prefix of the bucket; only in the first of a chain */
  pstn_u32 alias_next; /* route + 1: next of the same prefix */
  pstn_u32 table;      /* index */
  pstn_u32 plen;       /* 0..128; IPv4: 96..128 */
  pstn_u32 metric;     /* priority */
  pstn_u32 metrics;    /* index + 1; 0 = none */
  pstn_u32 hop_first, hop_count;
  pstn_u8 prefsrc[16]; /* all zero: none */
  pstn_u8 type;        /* RTN_* */
  pstn_u8 tos;
  pstn_u8 scope;  /* RT_SCOPE_* */
  pstn_u8 pref;   /* ICMPV6_ROUTER_PREF_* */
  pstn_u32 flags; /* PSTN_RR_* */
};
#define PSTN_RR_OBJECT 1u  /* next hops are a nexthop object's */
#define PSTN_RR_UNKNOWN 2u /* has an attribute that posternd doesn't know */
#define PSTN_RR_GROUP 4u   /* ... a group of them */

struct pstn_rt_table {
  pstn_u32 id;
  pstn_u32 family; /* 4 or 6 */
  pstn_u32 routes;
  pstn_u32 flags;
  pstn_u64 plens[3]; /* bit per prefix length that occurs */
};
#define PSTN_RTT_SOURCE \
  1u /* has routes that depend on the source address (RTA_SRC), not kept here */

struct pstn_rt_rule {
  pstn_u32 priority;
  pstn_u32 family;
  pstn_u32 action; /* FR_ACT_* */
  pstn_u32 table;  /* index + 1; 0 = there is none of that number */
  pstn_u32 target; /* FR_ACT_GOTO: rule's index; PSTN_NONE: not there */
  pstn_u32 flags;  /* PSTN_RU_* */
  pstn_u8 dst[16], src[16];
  pstn_u32 dst_plen, src_plen; /* of 128; 0 (IPv4: 96) = any */
  pstn_u32 iif, oif;           /* 0 = any; PSTN_NONE = an interface that is not there */
  pstn_u32 mark, mark_mask;
  pstn_u32 uid_first, uid_last;
  pstn_u16 sport_first, sport_last, dport_first, dport_last; /* last 0 = any */
  pstn_u32 suppress_plen;  /* of the family's own length; PSTN_NONE = none */
  pstn_u32 suppress_group; /* PSTN_NONE = none */
  pstn_u8 tos, proto;      /* 0 = any */
  pstn_u8 pad[2];
};
#define PSTN_RU_INVERT 1u
#define PSTN_RU_UNKNOWN 2u /* has a condition that posternd doesn't know */
#define PSTN_RU_L3MDEV 4u
#define PSTN_RU_FIND_SADDR 8u /* IPv6: looks for a source address first */
#define PSTN_RU_UID 16u

struct pstn_rt_link {
  pstn_u32 ifindex;
  pstn_u32 flags; /* IFF_* */
  pstn_u32 mtu, mtu6;
  pstn_u32 kind;   /* PSTN_LINK_* */
  pstn_u32 lower;  /* interface below: of a VLAN, of a bond its active slave; 0 = none */
  pstn_u32 master; /* bridge, bond, VRF that it is a port of; 0 = none */
  pstn_u32 group;
  pstn_u32 conf; /* PSTN_LC_* */
  pstn_u16 tpid, vid;
  pstn_u16 arp_type; /* ARPHRD_* */
  pstn_u8 mac[6];
  pstn_u32 addr4_first, addr4_count, addr6_first, addr6_count; /* in addrs[] */
  pstn_u8 hop_limit;                                           /* IPv6 */
  pstn_u8 use_tempaddr;
  pstn_u8 pad[2];
};
enum {
  PSTN_LINK_OTHER = 0,  /* a kind that we don't know: no VI */
  PSTN_LINK_DEVICE = 1, /* no kind: hardware, or what pretends to be */
  PSTN_LINK_LOOPBACK = 2,
  PSTN_LINK_VETH = 3,
  PSTN_LINK_TUN = 4, /* tap; a tun has arp_type ARPHRD_NONE */
  PSTN_LINK_VLAN = 5,
  PSTN_LINK_BOND = 6, /* lower: set in mode active-backup only */
  PSTN_LINK_BRIDGE = 7,
  PSTN_LINK_MACVLAN = 8,
  PSTN_LINK_IPVLAN = 9,
  PSTN_LINK_VRF = 10,
  PSTN_LINK_DUMMY = 11,
  PSTN_LINK_TUNNEL = 12,
  PSTN_LINK_TEAM = 13
};
#define PSTN_LC_INET 1u  /* speaks IPv4 */
#define PSTN_LC_INET6 2u /* speaks IPv6 */
#define PSTN_LC_ROUTE_LOCALNET 4u
#define PSTN_LC_IGNORE_LINKDOWN 8u /* IPv4 */
#define PSTN_LC_IGNORE_LINKDOWN6 16u
#define PSTN_LC_OIF_ADDRS 32u  /* use_oif_addrs_only */
#define PSTN_LC_OPTIMISTIC 64u /* use_optimistic and optimistic_dad */
#define PSTN_LC_L3SLAVE 128u   /* port of a VRF */
#define PSTN_LC_PORT 256u      /* port of a bridge, bond or team */

/* Grouped by interface, each group in the kernel's order. */
struct pstn_rt_addr {
  pstn_u8 ip[16];   /* IFA_LOCAL */
  pstn_u8 peer[16]; /* IFA_ADDRESS: the prefix's */
  pstn_u32 ifindex;
  pstn_u32 flags; /* IFA_F_* */
  pstn_u32 plen;  /* of 128 */
  pstn_u32 scope; /* RT_SCOPE_* */
};

/* Prefix labels of RFC 6724, longest first. */
struct pstn_rt_label {
  pstn_u8 prefix[16];
  pstn_u32 plen, label, ifindex, pad;
};

struct pstn_rt_copy {
  pstn_u64 stamp; /* (a) the seq that it belongs to; 0 while it is written */
  pstn_u32 flags; /* PSTN_RTF_* */
  pstn_u32 bucket_mask;
  pstn_u32 table_count, rule_count, link_count, addr_count, label_count, metrics_count;
  pstn_u32 route_count, hop_count;
  pstn_u32 rules4_first, rules4_count, rules6_first, rules6_count;
  pstn_u32 local4, main4, default4, local6, main6; /* table index + 1; 0 = not there */
  pstn_u32 hop_limit4;
  struct pstn_rt_table tables[PSTN_RT_TABLES];
  struct pstn_rt_rule rules[PSTN_RT_RULES];
  struct pstn_rt_link links[PSTN_RT_LINKS]; /* by ifindex */
  struct pstn_rt_addr addrs[PSTN_RT_ADDRS];
  struct pstn_rt_label labels[PSTN_RT_LABELS];
  struct pstn_rt_metrics metrics[PSTN_RT_METRICS];
  pstn_u32 buckets[PSTN_RT_BUCKETS]; /* route + 1 */
  struct pstn_rt_route routes[PSTN_RT_ROUTES];
  struct pstn_rt_hop hops[PSTN_RT_HOPS];
};
#define PSTN_RTF_UNSYNCED 1u /* not what the kernel has */
#define PSTN_RTF_FULL4 2u    /* something of IPv4 did not fit */
#define PSTN_RTF_FULL6 4u
#define PSTN_RTF_NETFILTER 8u
#define PSTN_RTF_XFRM 16u
#define PSTN_RTF_NO_ROUTER_PREF 32u /* kernel without CONFIG_IPV6_ROUTER_PREF */
#define PSTN_RTF_FORWARDING6 64u    /* all/forwarding: routers are not judged by their neighbours */
#define PSTN_RTF_PLAIN_RULES4 128u  /* local, main, default: nothing else, nothing missing */
#define PSTN_RTF_TOS4 256u          /* a rule or route asks for TOS */
#define PSTN_RTF_TOS6 512u
#define PSTN_RTF_SRC_RULES6 1024u /* a rule asks for the source address */

struct pstn_rt_neigh {
  pstn_u8 ip[16];
  pstn_u32 ifindex; /* 0 = free */
  pstn_u16 state;   /* NUD_* */
  pstn_u8 mac[6];
  pstn_u32 flags; /* NTF_* | PSTN_NB_MAC */
};
#define PSTN_NB_MAC 0x80000000u /* `mac` is there */

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a line for each writer */
struct pstn_routes {
  pstn_u32 magic, version;      /* (c) */
  pstn_u64 size_bytes;          /* (c) */
  pstn_u64 netns_ino;           /* (c) the namespace that it speaks of */
  pstn_u32 pid, pad;            /* (c) of posternd */
  pstn_u64 syncs, overruns;     /* (a) complete readings; of these, after messages were lost */
  PSTN_LINE pstn_u64 seq;       /* (a) 0 = nothing yet */
  PSTN_LINE pstn_u64 neigh_seq; /* (a) odd while neigh[] is changed */
  pstn_u32 neigh_count;
  pstn_u32 neigh_full; /* 1: some did not fit: the kernel may know more */
  struct pstn_rt_neigh neigh[PSTN_RT_NEIGHS];
  PSTN_LINE struct pstn_rt_copy copy[2];
};

PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_hop) == 32, "two a line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_route) == 72, "no padding");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_rule) == 108, "no padding");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_link) == 68, "no padding");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_addr) == 48, "no padding");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_neigh) == 32, "two a line");
PSTN_STATIC_ASSERT(sizeof(struct pstn_rt_copy) % 8 == 0, "whole words");

#endif /* POSTERN_ROUTES_ABI_H */
