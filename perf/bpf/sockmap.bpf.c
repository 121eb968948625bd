// sockmap.bpf.c - BPF sockmap redirection of same-host TCP, a column of perf/bench.py.
// SPDX-License-Identifier: Apache-2.0
//
// The usual recipe, no more: when either end of a connection becomes established, sock_ops files
// the socket in a hash under its own 4-tuple; at send, sk_msg looks for the socket whose tuple is
// ours reversed and queues the bytes on its receive queue, past TCP. Where the peer isn't in the
// hash the bytes take TCP as always. Attached to one cgroup, in which only the bench's processes
// run. Ports are compared as the kernel gives them: local_port in host order, remote_port in
// network order (in the upper half for sk_msg and sock_ops alike), so both are brought to host
// order.

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PSTN_AF_INET 2
#define PSTN_SOCK_COUNT_MAX 65536

struct tuple {
  __u32 local_ip;
  __u32 remote_ip;
  __u32 local_port;
  __u32 remote_port;
};

struct {
  __uint(type, BPF_MAP_TYPE_SOCKHASH);
  __uint(max_entries, PSTN_SOCK_COUNT_MAX);
  __type(key, struct tuple);
  __type(value, __u64);
} bench_socks SEC(".maps");

// [0] sockets filed, [1] messages redirected, [2] messages left to TCP.
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 3);
  __type(key, __u32);
  __type(value, __u64);
} bench_counts SEC(".maps");

static __always_inline void count_one(__u32 which) {
  __u64* value = bpf_map_lookup_elem(&bench_counts, &which);
  if (value) __sync_fetch_and_add(value, 1);
}

SEC("sockops")
int bench_established(struct bpf_sock_ops* ops) {
  if (ops->family != PSTN_AF_INET) return 1;
  if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
      ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
    return 1;
  struct tuple key = {
      .local_ip = ops->local_ip4,
      .remote_ip = ops->remote_ip4,
      .local_port = ops->local_port,
      .remote_port = bpf_ntohl(ops->remote_port),
  };
  if (bpf_sock_hash_update(ops, &bench_socks, &key, BPF_ANY) == 0) count_one(0);
  return 1;
}

SEC("sk_msg")
int bench_redirect(struct sk_msg_md* msg) {
  if (msg->family != PSTN_AF_INET) return SK_PASS;
  struct tuple peer = {
      .local_ip = msg->remote_ip4,
      .remote_ip = msg->local_ip4,
      .local_port = bpf_ntohl(msg->remote_port),
      .remote_port = msg->local_port,
  };
  if (bpf_msg_redirect_hash(msg, &bench_socks, &peer, BPF_F_INGRESS) == SK_PASS)
    count_one(1);
  else
    count_one(2);
  return SK_PASS;
}

// None of the helpers used is reserved for GPL programs.
char _license[] SEC("license") = "Apache-2.0";
