// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// syn_option.bpf.c - puts SMC's option into SYN and SYN-ACK of sockets that ask for it, and tells
// them whether the peer did the same.
//
// Two Postern peers in different network namespaces meet over an ordinary kernel connection. A peer
// that says "exchanged" goes on to speak CLC over it, so the two must agree: a client that believes
// it and a server that does not would feed CLC to the program. The rule that makes them agree:
//
//   client says yes  =>  the SYN-ACK it took had the option  =>  server says yes
//
// The second arrow holds because one thing decides for each request, and stays with it from its
// SYN to the accepted socket: the SYN that the kernel has saved in it.
//
//     SYN --> request: saved_syn? --+--> each of its SYN-ACKs: echo if the saved SYN asks
//                                   `--> the accepted socket: "exchanged" if the saved SYN asks
//
// It is saved where the listener has TCP_SAVE_SYN. So marking a listener is that one bit, and
// taking the mark back clears it: requests that were there keep their answer, later ones are not
// echoed. A cookie SYN-ACK (overload) has no request to save anything in: no echo, and no yes.
// Server yes and client no can come of a box that takes the option out of a SYN-ACK on the way; a
// server finds out by the first byte, which is not CLC's.
//
// The callback for a SYN-ACK is given the request, not the listener, and the two facts about it
// that are needed here, is a SYN saved and whose is it, are not in BPF's view of it. They are read
// from the kernel's own structures (CO-RE), which asks for CAP_PERFMON and a licence that Linux
// takes for GPL: this file may be used under either of the two above.
//
// Cost: a socket that has not asked has no storage, so a program run finds nothing and ends. The
// callbacks for headers are switched on for each socket by itself, and off when it is connected.
#include <linux/bpf.h>

// After linux/bpf.h, whose types they use.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "abi/syn_option.h"
#include "syn_state.h"

char LICENSE[] SEC("license") = "GPL";

// Set by the loader: bpf_setsockopt() may be called for setsockopt() (Linux 5.15). Without it a
// socket is marked before listen() or not at all, and keeps its mark.
const volatile __u8 can_set = 1;

#define EEXIST 17
#define SOL_TCP 6
#define SOCK_STREAM 1
#define IPPROTO_TCP 6
#define TCP_SAVE_SYN 27
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008  // Linux 6.11; an older one answers EINVAL

#define TCP_FIN_SYN_ACK 0x13
#define TCP_SYN 0x02
#define KIND_TFO 34
#define TFO_EXID_0 0xf9  // experimental TFO shares our kind
#define TFO_EXID_1 0x89
// What bpf_load_hdr_opt() searches for, and where it puts what it has found.
#define PSTN_OPTION __attribute__((aligned(8))) __u8
#define PSTN_OPTIONS_BYTES_MAX 40

// A path that drops SYNs because of the option must not cost the connection: after as many without
// an answer the next ones go out bare.
#define PSTN_SYN_TRIES_MAX 3
// What we leave in args[0] for another instance of this program on the same SYN (posternds that
// could not see each other); the kernel's own values are 0, 1 and 2.
#define PSTN_RESERVED 0x5043

// ---- options of a header ---------------------------------------------------------------------

// Of the SYN of a request or an accepted socket.
static __always_inline int syn_has_tfo(struct bpf_sock_ops* ops) {
  PSTN_OPTION standard[PSTN_OPTIONS_BYTES_MAX] = {KIND_TFO, 0};
  if (bpf_load_hdr_opt(ops, standard, sizeof(standard), BPF_LOAD_HDR_OPT_TCP_SYN) > 0) return 1;
  PSTN_OPTION other[PSTN_OPTIONS_BYTES_MAX] = {PSTN_SYN_KIND, 4, TFO_EXID_0, TFO_EXID_1};
  return bpf_load_hdr_opt(ops, other, sizeof(other), BPF_LOAD_HDR_OPT_TCP_SYN) > 0;
}

// `syn`: BPF_LOAD_HDR_OPT_TCP_SYN for that same SYN, 0 for the header at hand.
// Searched by two of the four bytes: the helper gives up at an option of the same kind that is
// shorter than what it looks for, and experimental TFO's request is.
static __always_inline int has_option(struct bpf_sock_ops* ops, __u64 syn) {
  PSTN_OPTION found[PSTN_OPTIONS_BYTES_MAX] = {PSTN_SYN_KIND, 4, PSTN_SYN_EXID_0, PSTN_SYN_EXID_1};
  const int len = bpf_load_hdr_opt(ops, found, sizeof(found), syn);
  return len >= PSTN_SYN_LEN && len % 2 == 0 && found[4] == PSTN_SYN_EXID_2 &&
         found[5] == PSTN_SYN_EXID_3;
}

// The one question about a SYN. Together with TFO the first bytes would be data, not CLC.
static __always_inline int syn_asks(struct bpf_sock_ops* ops) {
  return has_option(ops, BPF_LOAD_HDR_OPT_TCP_SYN) && !syn_has_tfo(ops);
}

static __always_inline long store_option(struct bpf_sock_ops* ops) {
  const __u8 option[PSTN_SYN_LEN] = {PSTN_SYN_KIND,   PSTN_SYN_LEN,    PSTN_SYN_EXID_0,
                                     PSTN_SYN_EXID_1, PSTN_SYN_EXID_2, PSTN_SYN_EXID_3};
  return bpf_store_hdr_opt(ops, option, sizeof(option), 0);
}

// ---- SYN and SYN-ACK on their way out --------------------------------------------------------

static __always_inline int request_echoes(struct bpf_sock_ops* ops) {
  struct request_sock* req = (struct request_sock*)(long)address_of(ops, bpf_sock_ops_kern);
  if (BPF_CORE_READ(req, saved_syn) == 0) return 0;  // a cookie, or taken back
  const __u64 listener = (long)BPF_CORE_READ(req, __req_common.skc_listener);
  return bpf_map_lookup_elem(&pstn_syn_listen, &listener) != 0 && syn_asks(ops);
}

static __always_inline struct state* state_of(struct bpf_sock_ops* ops) {
  struct bpf_sock* sk = ops->sk;
  return sk ? bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0) : 0;
}

// Not a SYN-ACK: that is a simultaneous open, which this end will not see confirmed.
static __always_inline int syn_offers(struct bpf_sock_ops* ops, struct state* state) {
  return state && (state->flags & PSTN_OFFERS) &&
         (ops->skb_tcp_flags & TCP_FIN_SYN_ACK) == TCP_SYN &&
         ops->total_retrans < PSTN_SYN_TRIES_MAX;
}

static __always_inline void on_header_length(struct bpf_sock_ops* ops) {
  if (ops->args[0] != 0) return;  // the size of a segment is estimated, a cookie, or PSTN_RESERVED
  const int wanted = ops->is_fullsock ? syn_offers(ops, state_of(ops)) : request_echoes(ops);
  // Fails where options fill the header: then it goes out without, and stays plain TCP.
  if (wanted && bpf_reserve_hdr_opt(ops, PSTN_SYN_LEN, 0) == 0) ops->reply = PSTN_RESERVED;
}

static __always_inline void on_header_write(struct bpf_sock_ops* ops) {
  if (ops->args[0] != 0) return;
  if (!ops->is_fullsock) {
    if (request_echoes(ops)) store_option(ops);
    return;
  }
  struct state* state = state_of(ops);
  if (!state || !syn_offers(ops, state)) return;
  const long error = store_option(ops);
  if (error == 0 || error == -EEXIST) state->flags |= PSTN_SENT;  // EEXIST: by another instance
}

// ---- the life of a socket --------------------------------------------------------------------

static __always_inline void switch_on(struct bpf_sock_ops* ops, struct state* state, __u32 wanted) {
  const __u32 now = ops->bpf_sock_ops_cb_flags;
  state->callbacks |= wanted & ~now;
  bpf_sock_ops_cb_flags_set(ops, now | wanted);
}

static __always_inline void switch_off(struct bpf_sock_ops* ops, struct state* state) {
  if (state->callbacks == 0) return;
  bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~state->callbacks);
  state->callbacks = 0;
}

static __always_inline void on_connect(struct bpf_sock_ops* ops) {
  struct state* state = state_of(ops);
  if (!state) return;
  state->flags &= ~(PSTN_OFFERS | PSTN_SENT | PSTN_EXCHANGED);
  // With TFO there is data in the queue already, which will go out before any CLC.
  if (!(state->flags & PSTN_MARKED) || uses_tfo(address_of(ops, bpf_sock_ops_kern))) return;
  state->flags |= PSTN_OFFERS;
  switch_on(ops, state, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void on_connected(struct bpf_sock_ops* ops) {
  struct state* state = state_of(ops);
  if (!state) return;
  switch_off(ops, state);
  if ((state->flags & PSTN_SENT) && has_option(ops, 0)) state->flags |= PSTN_EXCHANGED;
}

static __always_inline void on_listen(struct bpf_sock_ops* ops) {
  struct state* state = state_of(ops);
  if (!state || !(state->flags & PSTN_MARKED)) return;
  const __u64 listener = address_of(ops, bpf_sock_ops_kern);
  const __u8 value = 1;
  int one = 1;
  if (bpf_map_update_elem(&pstn_syn_listen, &listener, &value, BPF_ANY) != 0) return;
  switch_on(ops, state, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
  state->flags |= PSTN_ENROLLED;
  if (!(state->flags & PSTN_APP_SAVES))
    bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &one, sizeof(one));
}

// A socket that ends to listen, by close() or shutdown(). (Its address may be used again.)
static __always_inline void on_state(struct bpf_sock_ops* ops) {
  if (ops->args[0] != BPF_TCP_LISTEN) return;
  const __u64 listener = address_of(ops, bpf_sock_ops_kern);
  bpf_map_delete_elem(&pstn_syn_listen, &listener);
  struct state* state = state_of(ops);
  int zero = 0;
  if (!state) return;
  state->flags &= ~PSTN_ENROLLED;
  if (!(state->flags & PSTN_APP_SAVES))
    bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &zero, sizeof(zero));
}

// An accepted socket: what is in its storage is a copy of its listener's. A segment with SYN here
// is TFO's, or a simultaneous open.
static __always_inline void on_accepted(struct bpf_sock_ops* ops) {
  struct state* state = state_of(ops);
  if (!state) return;
  switch_off(ops, state);
  const int answer =
      (state->flags & PSTN_ENROLLED) && !(ops->skb_tcp_flags & TCP_SYN) && syn_asks(ops);
  struct bpf_sock* sk = ops->sk;
  if (answer) {
    state->flags = PSTN_EXCHANGED;
  } else if (sk) {
    bpf_sk_storage_delete(&pstn_syn_state, sk);
  }
}

SEC("sockops")
int pstn_syn1_ops(struct bpf_sock_ops* ops) {
  switch (ops->op) {
    case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
      on_header_length(ops);
      break;
    case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
      on_header_write(ops);
      break;
    case BPF_SOCK_OPS_TCP_CONNECT_CB:
      on_connect(ops);
      break;
    case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
      on_connected(ops);
      break;
    case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
      on_accepted(ops);
      break;
    case BPF_SOCK_OPS_TCP_LISTEN_CB:
      on_listen(ops);
      break;
    case BPF_SOCK_OPS_STATE_CB:
      on_state(ops);
      break;
    default:
      break;
  }
  return 1;
}

// ---- the socket option -----------------------------------------------------------------------

static __always_inline int is_tcp(struct bpf_sock* sk) {
  return sk && sk->type == SOCK_STREAM && sk->protocol == IPPROTO_TCP;
}

// Not ours: the kernel goes on with what the caller gave. Of a long value only the first page is in
// our buffer; 0 says that the kernel shall not take it from there.
static __always_inline int pass_on(struct bpf_sockopt* ctx) {
  if (ctx->optlen > ctx->optval_end - ctx->optval) ctx->optlen = 0;
  return 1;
}

static __always_inline int done(struct bpf_sockopt* ctx) {
  ctx->optlen = -1;  // not for the kernel
  return 1;
}

// An int of the caller; others are refused.
static __always_inline int get_value(struct bpf_sockopt* ctx, int* value) {
  int* given = ctx->optval;
  const int len = ctx->optlen;
  if (len != -1 && len < (int)sizeof(int)) return 0;  // -1: another instance was here before
  if ((void*)(given + 1) > ctx->optval_end) return 0;
  *value = *given;
  return 1;
}

// In these states nothing has gone out yet, or what goes out is decided for each request.
static __always_inline int can_change(__u32 tcp_state) {
  return tcp_state == BPF_TCP_CLOSE || tcp_state == BPF_TCP_LISTEN;
}

static __always_inline int set_saves_syn(struct bpf_sock* sk, int value) {
  return can_set && bpf_setsockopt(sk, SOL_TCP, TCP_SAVE_SYN, &value, sizeof(value)) == 0;
}

static __always_inline int callbacks_on(struct bpf_sock* sk, struct state* state) {
  const int wanted = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG;
  int now = 0;
  if ((state->callbacks & wanted) == wanted) return 1;
  if (!can_set || bpf_getsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &now, sizeof(now)) != 0)
    return 0;
  int next = now | wanted;
  if (bpf_setsockopt(sk, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &next, sizeof(next)) != 0) return 0;
  state->callbacks |= wanted & ~now;
  return 1;
}

// While it listens. The callbacks come first, the bit that decides comes last: a SYN is never saved
// for a listener that would not echo it.
static __always_inline int mark_listener(struct bpf_sock* sk, struct state* state, __u64 listener) {
  const __u8 value = 1;
  if (!(state->flags & PSTN_ENROLLED)) {
    if (!callbacks_on(sk, state)) return 0;
    if (bpf_map_update_elem(&pstn_syn_listen, &listener, &value, BPF_ANY) != 0) return 0;
    state->flags |= PSTN_ENROLLED;
  }
  return set_saves_syn(sk, 1);
}

static __always_inline int unmark_listener(struct bpf_sock* sk, struct state* state) {
  return !(state->flags & PSTN_ENROLLED) || set_saves_syn(sk, 0);
}

// Where a program saves SYNs itself they tell nothing of the mark, so there it stays what it was in
// listen().
static __always_inline int change_listener(struct bpf_sockopt* ctx, struct bpf_sock* sk,
                                           struct state* state, int value) {
  if (value == !!(state->flags & PSTN_MARKED)) return 1;
  if (state->flags & PSTN_APP_SAVES) return 0;
  return value ? mark_listener(sk, state, address_of(ctx, bpf_sockopt_kern))
               : unmark_listener(sk, state);
}

static __always_inline struct state* new_state(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  // Where another instance was here before, in this very call, it may have set it.
  const int saves = saves_syn(address_of(ctx, bpf_sockopt_kern)) && ctx->optlen != -1;
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (state && saves) state->flags |= PSTN_APP_SAVES;
  return state;
}

static __always_inline int mark(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  int value = 0;
  if (!get_value(ctx, &value) || value < 0 || value > 1 || !can_change(sk->state)) return 0;
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  if (!state && value) state = new_state(ctx, sk);
  if (!state) return value ? 0 : done(ctx);
  if (sk->state == BPF_TCP_LISTEN && !change_listener(ctx, sk, state, value)) return 0;
  state->flags = value ? state->flags | PSTN_MARKED : state->flags & ~PSTN_MARKED;
  return done(ctx);
}

// The program's own TCP_SAVE_SYN on a socket of ours. Off: a mark keeps it on underneath. On, while
// the mark is taken back: the saved SYN can't decide any more, so the listener leaves.
static __always_inline int on_save_syn(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  int value = 0;
  if (!state || !get_value(ctx, &value)) return pass_on(ctx);
  if (value == 0) {
    state->flags &= ~PSTN_APP_SAVES;
    const int in_use =
        (state->flags & (PSTN_ENROLLED | PSTN_MARKED)) == (PSTN_ENROLLED | PSTN_MARKED);
    return in_use ? done(ctx) : pass_on(ctx);
  }
  state->flags |= PSTN_APP_SAVES;
  if ((state->flags & (PSTN_ENROLLED | PSTN_MARKED)) == PSTN_ENROLLED) {
    const __u64 listener = address_of(ctx, bpf_sockopt_kern);
    bpf_map_delete_elem(&pstn_syn_listen, &listener);
    state->flags &= ~PSTN_ENROLLED;
  }
  return pass_on(ctx);
}

SEC("cgroup/setsockopt")
int pstn_syn1_set(struct bpf_sockopt* ctx) {
  struct bpf_sock* sk = ctx->sk;
  if (ctx->level != SOL_TCP || !is_tcp(sk)) return pass_on(ctx);
  if (ctx->optname == TCP_SAVE_SYN) return on_save_syn(ctx, sk);
  return ctx->optname == PSTN_TCP_SMC ? mark(ctx, sk) : pass_on(ctx);
}

SEC("cgroup/getsockopt")
int pstn_syn1_get(struct bpf_sockopt* ctx) {
  struct bpf_sock* sk = ctx->sk;
  if (ctx->level != SOL_TCP || ctx->optname != PSTN_TCP_SMC || !is_tcp(sk)) return pass_on(ctx);
  int* answer = ctx->optval;
  if ((void*)(answer + 1) > ctx->optval_end) return 0;
  int bits = ctx->retval == 0 ? *answer : 0;  // another instance has answered
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  if (state && (state->flags & PSTN_EXCHANGED)) bits |= PSTN_TCP_SMC_EXCHANGED;
  if (state && (state->flags & PSTN_MARKED)) bits |= PSTN_TCP_SMC_MARKED;
  *answer = bits;
  ctx->optlen = sizeof(bits);
  barrier();  // as one store of both, the verifier would refuse it
  ctx->retval = 0;
  return 1;
}
