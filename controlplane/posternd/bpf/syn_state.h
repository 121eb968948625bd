// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// syn_state.h - what syn_option.bpf.c keeps of a socket, and what it looks at in the kernel's own
// structures. After linux/bpf.h and libbpf's headers.
#ifndef POSTERN_SYN_STATE_H
#define POSTERN_SYN_STATE_H

#define PSTN_LISTENERS_MAX 65536

// The kernel's structures, as far as they are looked at.
#define PSTN_CORE __attribute__((preserve_access_index))
struct sock_common {
  void* skc_listener;  // of a request
} PSTN_CORE;
struct request_sock {
  struct sock_common __req_common;
  void* saved_syn;
} PSTN_CORE;
struct tcp_sock {
  __u8 save_syn : 2;
  void* fastopen_req;  // of a socket that connects by sending
} PSTN_CORE;
// What a program's context really is; the first is behind struct bpf_sock_ops, the second behind
// struct bpf_sockopt.
struct bpf_sock_ops_kern {
  void* sk;
} PSTN_CORE;
struct bpf_sockopt_kern {
  void* sk;
} PSTN_CORE;

enum {
  PSTN_MARKED = 1,     // setsockopt() said so
  PSTN_OFFERS = 2,     // connect(): it was marked then
  PSTN_SENT = 4,       // connect(): a SYN with the option went out
  PSTN_EXCHANGED = 8,  // the answer
  PSTN_ENROLLED = 16,  // listener: in pstn_syn_listen, and its callbacks are on
  PSTN_APP_SAVES = 32  // TCP_SAVE_SYN is the program's own wish
};

struct state {
  __u32 flags;
  __u32 callbacks;  // those that we have switched on, and so have to switch off
};

struct {
  __uint(type, BPF_MAP_TYPE_SK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
  __type(key, int);
  __type(value, struct state);
} pstn_syn_state SEC(".maps");

// Addresses of listening sockets that were marked once, so that no client is echoed for a listener
// on which another program has switched the callbacks on.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, PSTN_LISTENERS_MAX);
  __type(key, __u64);
  __type(value, __u8);
} pstn_syn_listen SEC(".maps");

#define address_of(context, type)                                     \
  ({                                                                  \
    __u64 sk_ = 0;                                                    \
    bpf_core_read(&sk_, sizeof(sk_), &((struct type*)(context))->sk); \
    sk_;                                                              \
  })

static __always_inline int saves_syn(__u64 listener) {
  struct tcp_sock* tp = (struct tcp_sock*)(long)listener;
  return BPF_CORE_READ_BITFIELD_PROBED(tp, save_syn) != 0;
}

static __always_inline int uses_tfo(__u64 socket) {
  struct tcp_sock* tp = (struct tcp_sock*)(long)socket;
  return BPF_CORE_READ(tp, fastopen_req) != 0;
}

#endif  // POSTERN_SYN_STATE_H
