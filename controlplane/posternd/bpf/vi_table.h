// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// vi_table.h - which VI a packet is for: the tables that posternd fills, and what the kernel has.
//
// The kernel keeps the interface: ARP, neighbour discovery, ICMP, ssh and whatever is not named in
// a filter. What is named, a flow (both ends) or else a port (ours), goes to the filter's
// VI, as the program's redirect() knows how. Where there is no such VI any more, its owner being
// dead, the packet passes: the kernel's own socket, or a RST, answers.
//
// A filter for a port leaves alone what the kernel has already: connections that were accepted, or
// are in a handshake, before there was a filter, or that came in by another interface. Only a look
// into the kernel's own table tells that at the moment of the packet; it is asked for each packet
// of TCP that no flow's filter takes (100 ns beside the microsecond that a packet costs here). Of a
// handshake that it answered with a SYN cookie the kernel has nothing there; but it says whether an
// ACK brings one back.
//
// A filter takes nothing that the kernel has for another user. Its asker has shown a socket once,
// and may since have given up what that socket held: shutdown() of a listener frees the port for
// others at once. So the owner of the socket that the kernel would give the packet to is read at
// the moment of the packet, where the packet could be the first of something: a SYN for a listener,
// a segment of a flow, a datagram. (BPF's view of a socket has no owner: it is read from the
// kernel's own structure, CO-RE, which asks for CAP_PERFMON.)
//
// A filter for a port that connections are made from leaves listeners alone, too: it takes only
// what the kernel would answer with a RST. So it can't harm a program. And a filter whose listener
// has ended, but whose connections go on, leaves SYNs to the program that listens at the kernel
// now.
//
// A filter for a port on any address takes only what is for an address of this host
// (pstn_vi_local): a router's other packets are none of ours, whatever their port.
//
// ICMP errors go with the packet that they are about: to the VI if that one's flow (ends exchanged)
// is a VI's, else to the kernel. No copy is needed: for such a flow the kernel has no socket that
// it could tell, and it learns a path's MTU by its sockets only.
//
// Fragments have no ports but for the first, so the kernel gets them all; unless the filter says
// that the VI wants them. Then the first is remembered by source, destination, identification and
// protocol (RFC 791, 3.2; RFC 8200, 4.5), and those that follow it go the same way. (One that
// overtakes the first is the kernel's: the sender repeats it.)
//
// For a program that has said, before it includes this: `context`, what its hook hands it; PASS and
// TAKEN, its verdicts.
#ifndef POSTERN_VI_TABLE_H
#define POSTERN_VI_TABLE_H

#include "vi_packet.h"
#include "xdp_maps.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, PSTN_XDP_FLOWS_MAX);
  __type(key, struct pstn_xdp_flow);
  __type(value, struct pstn_xdp_target);
} pstn_vi_flows SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, PSTN_XDP_PORTS_MAX);
  __type(key, struct pstn_xdp_port);
  __type(value, struct pstn_xdp_target);
} pstn_vi_ports SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, PSTN_XDP_LOCAL_MAX);
  __type(key, struct pstn_xdp_ip);
  __type(value, __u32);
} pstn_vi_local SEC(".maps");

// Not used here: the owners of the slots, for a posternd that takes over.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, PSTN_XDP_SLOTS);
  __type(key, __u32);
  __type(value, __u64);
} pstn_vi_owners SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, PSTN_XDP_FRAGMENTS_MAX);
  __type(key, struct pstn_xdp_fragments);
  __type(value, __u32);
} pstn_vi_frags SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, PSTN_XDP_COUNTS);
  __type(key, __u32);
  __type(value, __u64);
} pstn_vi_counts SEC(".maps");

// Of the kernel's struct sock.
typedef struct {
  __u32 val;
} kuid_t;
struct sock {
  kuid_t sk_uid;
} __attribute__((preserve_access_index));

extern void* bpf_rdonly_cast(const void* object, __u32 type) __ksym __weak;  // Linux 6.2

static __always_inline void count(__u32 which) {
  __u64* value = bpf_map_lookup_elem(&pstn_vi_counts, &which);
  if (value) (*value)++;
}

// Hands the packet to the VI in that slot: TAKEN, or PASS where there is none.
static __always_inline int redirect(context* ctx, __u32 slot);

// `ports` is where the packet's TCP header begins; null in an error.
static __always_inline int is_syn(const struct packet* p, struct ports* ports) {
  struct tcp* tcp = (struct tcp*)ports;
  if (!tcp || (void*)(tcp + 1) > p->end) return 0;
  return (tcp->flags & bpf_htons(TCP_SYN | TCP_ACK)) == bpf_htons(TCP_SYN);
}

// Whether it is the last segment of a handshake of that listener's, of which nothing was kept.
static __always_inline int brings_cookie(const struct packet* p, struct bpf_sock* listener,
                                         struct ports* ports) {
  struct tcp* tcp = (struct tcp*)ports;
  const __u32 bytes = p->is_ipv6 ? sizeof(struct ipv6) : sizeof(struct ipv4);
  if (!tcp || (void*)(tcp + 1) > p->end || p->ip + bytes > p->end) return 0;
  return bpf_tcp_check_syncookie(listener, p->ip, bytes, (struct tcphdr*)tcp, sizeof(*tcp)) == 0;
}

// Of a whole socket: no request's, none in TIME_WAIT.
// Before Linux 6.2 nothing is seen here, and what posternd watches (nic/state_watch.h) has to do.
static __always_inline int is_anothers(struct bpf_sock* sk, __u32 uid) {
  if (!bpf_rdonly_cast) return 0;
  const struct sock* whole = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
  return whole->sk_uid.val != uid;
}

// The ends as the kernel's look-ups want them; the bytes of it.
static __always_inline __u32 fill_tuple(const struct packet* p, const struct pstn_xdp_flow* flow,
                                        struct bpf_sock_tuple* tuple) {
  if (p->is_ipv6) {
    __builtin_memcpy(tuple->ipv6.saddr, &flow->peer, sizeof(tuple->ipv6.saddr));
    __builtin_memcpy(tuple->ipv6.daddr, &flow->local, sizeof(tuple->ipv6.daddr));
    tuple->ipv6.sport = flow->peer_port;
    tuple->ipv6.dport = flow->local_port;
    return sizeof(tuple->ipv6);
  }
  tuple->ipv4.saddr = flow->peer.word[3];
  tuple->ipv4.daddr = flow->local.word[3];
  tuple->ipv4.sport = flow->peer_port;
  tuple->ipv4.dport = flow->local_port;
  return sizeof(tuple->ipv4);
}

// Whether a datagram would reach another user's socket.
static __always_inline int is_anothers_datagram(context* ctx, struct bpf_sock_tuple* tuple,
                                                __u32 bytes, __u32 uid) {
  struct bpf_sock* sk = bpf_sk_lookup_udp(ctx, tuple, bytes, BPF_F_CURRENT_NETNS, 0);
  if (!sk) return 0;
  const int is = is_anothers(sk, uid);
  bpf_sk_release(sk);
  return is;
}

// Whether a packet of a port's filter is the kernel's: TCP's, if it has a connection between these
// ends, be it established, in a handshake, or ended.
static __always_inline int is_kernels(context* ctx, const struct packet* p,
                                      const struct pstn_xdp_flow* flow,
                                      const struct pstn_xdp_target* target, struct ports* ports) {
  struct bpf_sock_tuple tuple = {};
  const __u32 bytes = fill_tuple(p, flow, &tuple);
  const __u32 flags = target->flags, uid = target->uid;
  if (p->protocol != IPPROTO_TCP) return is_anothers_datagram(ctx, &tuple, bytes, uid);
  struct bpf_sock* sk = bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
  if (!sk) return 0;
  int takes;
  if (sk->state != BPF_TCP_LISTEN || (flags & PSTN_XDP_OUTGOING))
    takes = 1;
  else if (is_syn(p, ports))
    takes = (flags & PSTN_XDP_ENDED) || is_anothers(sk, uid);
  else
    takes = brings_cookie(p, sk, ports);
  bpf_sk_release(sk);
  return takes;
}

// The same of a flow's filter. The kernel has no connection there if the asker has one.
static __always_inline int has_another(context* ctx, const struct packet* p,
                                       const struct pstn_xdp_flow* flow, __u32 uid) {
  struct bpf_sock_tuple tuple = {};
  const __u32 bytes = fill_tuple(p, flow, &tuple);
  if (p->protocol != IPPROTO_TCP) return is_anothers_datagram(ctx, &tuple, bytes, uid);
  struct bpf_sock* sk = bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
  if (!sk) return 0;
  const int has = sk->state == BPF_TCP_LISTEN ? is_anothers(sk, uid) : 1;
  bpf_sk_release(sk);
  return has;
}

// The filter for a packet between these ends, if there is one. `ports` is where its TCP begins, if
// it is not one that an error is about.
static __always_inline struct pstn_xdp_target* find(context* ctx, const struct packet* p,
                                                    const struct pstn_xdp_ip* local,
                                                    const struct pstn_xdp_ip* peer,
                                                    __be16 local_port, __be16 peer_port,
                                                    struct ports* ports) {
  struct pstn_xdp_flow flow = {*local, *peer, local_port, peer_port, p->vlan, p->protocol, 0};
  struct pstn_xdp_target* target = bpf_map_lookup_elem(&pstn_vi_flows, &flow);
  if (target && !has_another(ctx, p, &flow, target->uid)) return target;
  struct pstn_xdp_port port = {*local, local_port, p->vlan, p->protocol, {0}};
  target = bpf_map_lookup_elem(&pstn_vi_ports, &port);
  if (!target && bpf_map_lookup_elem(&pstn_vi_local, local)) {
    port.local.word[0] = port.local.word[1] = port.local.word[3] = 0;
    port.local.word[2] = p->is_ipv6 ? 0 : bpf_htonl(0xffff);
    target = bpf_map_lookup_elem(&pstn_vi_ports, &port);
  }
  if (target && is_kernels(ctx, p, &flow, target, ports)) {
    count(PSTN_XDP_COUNT_KERNELS);
    return 0;
  }
  return target;
}

// An error goes where the packet that it is about came from.
static __always_inline int steer_icmp(context* ctx, struct packet* p) {
  struct icmp* icmp = TAKE(p, struct icmp);
  if (!icmp || p->is_fragment || !is_error(p, icmp->type)) return PASS;
  struct packet inner = {.at = p->at, .end = p->end, .vlan = p->vlan};
  const __be16 type = p->is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
  if (!read_ip(&inner, type) || !inner.is_first) return PASS;
  if (inner.protocol != IPPROTO_TCP && inner.protocol != IPPROTO_UDP) return PASS;
  struct ports* ports = TAKE(&inner, struct ports);
  if (!ports || !is_same(&inner.src, &p->dst)) return PASS;
  struct pstn_xdp_target* target =
      find(ctx, &inner, &inner.src, &inner.dst, ports->src, ports->dst, (struct ports*)0);
  if (!target || (target->flags & PSTN_XDP_PASS)) return PASS;
  const int action = redirect(ctx, target->slot);
  if (action == TAKEN) count(PSTN_XDP_COUNT_ICMP);
  return action;
}

static __always_inline int steer_fragment(context* ctx, const struct packet* p) {
  struct pstn_xdp_fragments key = {p->src, p->dst, p->id, p->protocol};
  __u32* slot = bpf_map_lookup_elem(&pstn_vi_frags, &key);
  if (slot) return redirect(ctx, *slot);
  count(PSTN_XDP_COUNT_FRAGMENTS);
  return PASS;
}

static __always_inline int steer(context* ctx, struct packet* p) {
  if (!p->is_first) return steer_fragment(ctx, p);
  struct ports* ports = TAKE(p, struct ports);
  if (!ports) return PASS;
  struct pstn_xdp_target* target = find(ctx, p, &p->dst, &p->src, ports->dst, ports->src, ports);
  if (!target || (target->flags & PSTN_XDP_PASS)) return PASS;
  if (p->is_fragment) {
    if (!(target->flags & PSTN_XDP_FRAGMENTS)) {
      count(PSTN_XDP_COUNT_FRAGMENTS);
      return PASS;
    }
    struct pstn_xdp_fragments key = {p->src, p->dst, p->id, p->protocol};
    bpf_map_update_elem(&pstn_vi_frags, &key, &target->slot, BPF_ANY);
  }
  return redirect(ctx, target->slot);
}

#endif
