// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// syn_option.bpf.c - puts SMC's option into SYN and SYN-ACK of sockets that ask for it, and tells
// them whether the peer did the same.
//
// Two Postern peers in different network namespaces meet over an ordinary kernel connection. Who
// says "exchanged" goes on to speak CLC over it, so the two must agree: a client that believes it
// and a server that does not would feed CLC to the program. The rule that makes them agree:
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
// The other direction, server yes and client no, is left to who takes the option out of a SYN-ACK
// on the way; a server finds out by the first byte, which is not CLC's.
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
#define OPTION __attribute__((aligned(8))) __u8
#define OPTIONS_BYTES_MAX 40

// A path that drops SYNs because of the option must not cost the connection: after as many without
// an answer the next ones go out bare.
#define SYN_TRIES_MAX 3
// What we leave in args[0] for another instance of this program on the same SYN (posternds that
// could not see each other); the kernel's own values are 0, 1 and 2.
#define RESERVED 0x5043

// ---- options of a header ---------------------------------------------------------------------

// `syn`: BPF_LOAD_HDR_OPT_TCP_SYN to look at the SYN of a request or an accepted socket, 0 for the
// header at hand.
static __always_inline int HasTfo(struct bpf_sock_ops* ops, __u64 syn) {
  OPTION standard[OPTIONS_BYTES_MAX] = {KIND_TFO, 0};
  if (bpf_load_hdr_opt(ops, standard, sizeof(standard), syn) > 0) return 1;
  OPTION experimental[OPTIONS_BYTES_MAX] = {PSTN_SYN_KIND, 4, TFO_EXID_0, TFO_EXID_1};
  return bpf_load_hdr_opt(ops, experimental, sizeof(experimental), syn) > 0;
}

// Searched by two of the four bytes: the helper gives up at an option of the same kind that is
// shorter than what it looks for, and experimental TFO's request is.
static __always_inline int HasOption(struct bpf_sock_ops* ops, __u64 syn) {
  OPTION found[OPTIONS_BYTES_MAX] = {PSTN_SYN_KIND, 4, PSTN_SYN_EXID_0, PSTN_SYN_EXID_1};
  const int len = bpf_load_hdr_opt(ops, found, sizeof(found), syn);
  return len >= PSTN_SYN_LEN && len % 2 == 0 && found[4] == PSTN_SYN_EXID_2 &&
         found[5] == PSTN_SYN_EXID_3;
}

// The one question about a SYN. Together with TFO the first bytes would be data, not CLC.
static __always_inline int SynAsks(struct bpf_sock_ops* ops) {
  return HasOption(ops, BPF_LOAD_HDR_OPT_TCP_SYN) && !HasTfo(ops, BPF_LOAD_HDR_OPT_TCP_SYN);
}

static __always_inline long Store(struct bpf_sock_ops* ops) {
  const __u8 option[PSTN_SYN_LEN] = {PSTN_SYN_KIND,   PSTN_SYN_LEN,    PSTN_SYN_EXID_0,
                                     PSTN_SYN_EXID_1, PSTN_SYN_EXID_2, PSTN_SYN_EXID_3};
  return bpf_store_hdr_opt(ops, option, sizeof(option), 0);
}

// ---- SYN and SYN-ACK on their way out --------------------------------------------------------

static __always_inline int RequestEchoes(struct bpf_sock_ops* ops) {
  struct request_sock* req = (struct request_sock*)(long)AddressOf(ops, bpf_sock_ops_kern);
  if (BPF_CORE_READ(req, saved_syn) == 0) return 0;  // a cookie, or taken back
  const __u64 listener = (long)BPF_CORE_READ(req, __req_common.skc_listener);
  return bpf_map_lookup_elem(&pstn_syn_listen, &listener) != 0 && SynAsks(ops);
}

static __always_inline struct state* StateOf(struct bpf_sock_ops* ops) {
  struct bpf_sock* sk = ops->sk;
  return sk ? bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0) : 0;
}

// Not a SYN-ACK: that is a simultaneous open, which this end will not see confirmed.
static __always_inline int SynOffers(struct bpf_sock_ops* ops, struct state* state) {
  return state && (state->flags & OFFERS) && (ops->skb_tcp_flags & TCP_FIN_SYN_ACK) == TCP_SYN &&
         ops->total_retrans < SYN_TRIES_MAX;
}

static __always_inline void OnHeaderLength(struct bpf_sock_ops* ops) {
  if (ops->args[0] != 0) return;  // the size of a segment is estimated, a cookie, or RESERVED
  const int wanted = ops->is_fullsock ? SynOffers(ops, StateOf(ops)) : RequestEchoes(ops);
  // Fails where options fill the header: then it goes out without, and stays plain TCP.
  if (wanted && bpf_reserve_hdr_opt(ops, PSTN_SYN_LEN, 0) == 0) ops->reply = RESERVED;
}

static __always_inline void OnHeaderWrite(struct bpf_sock_ops* ops) {
  if (ops->args[0] != 0) return;
  if (!ops->is_fullsock) {
    if (RequestEchoes(ops)) Store(ops);
    return;
  }
  struct state* state = StateOf(ops);
  if (!state || !SynOffers(ops, state) || HasTfo(ops, 0)) return;
  const long error = Store(ops);
  if (error == 0 || error == -17) state->flags |= SENT;  // EEXIST: by the other instance
}

// ---- the life of a socket --------------------------------------------------------------------

static __always_inline void SwitchOn(struct bpf_sock_ops* ops, struct state* state, __u32 wanted) {
  const __u32 now = ops->bpf_sock_ops_cb_flags;
  state->callbacks |= wanted & ~now;
  bpf_sock_ops_cb_flags_set(ops, now | wanted);
}

static __always_inline void SwitchOff(struct bpf_sock_ops* ops, struct state* state) {
  if (state->callbacks == 0) return;
  bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~state->callbacks);
  state->callbacks = 0;
}

static __always_inline void OnConnect(struct bpf_sock_ops* ops) {
  struct state* state = StateOf(ops);
  if (!state) return;
  state->flags &= ~(OFFERS | SENT | EXCHANGED);
  if (!(state->flags & MARKED)) return;
  state->flags |= OFFERS;
  SwitchOn(ops, state, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void OnConnected(struct bpf_sock_ops* ops) {
  struct state* state = StateOf(ops);
  if (!state) return;
  SwitchOff(ops, state);
  if ((state->flags & SENT) && HasOption(ops, 0)) state->flags |= EXCHANGED;
}

static __always_inline void OnListen(struct bpf_sock_ops* ops) {
  struct state* state = StateOf(ops);
  if (!state || !(state->flags & MARKED)) return;
  const __u64 listener = AddressOf(ops, bpf_sock_ops_kern);
  const __u8 value = 1;
  int one = 1;
  if (bpf_map_update_elem(&pstn_syn_listen, &listener, &value, BPF_ANY) != 0) return;
  SwitchOn(ops, state, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
  state->flags |= ENROLLED;
  if (!(state->flags & APP_SAVES)) bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &one, sizeof(one));
}

// A socket that ends to listen, by close() or shutdown(). (Its address may be used again.)
static __always_inline void OnState(struct bpf_sock_ops* ops) {
  if (ops->args[0] != BPF_TCP_LISTEN) return;
  const __u64 listener = AddressOf(ops, bpf_sock_ops_kern);
  bpf_map_delete_elem(&pstn_syn_listen, &listener);
  struct state* state = StateOf(ops);
  int zero = 0;
  if (!state) return;
  state->flags &= ~ENROLLED;
  if (!(state->flags & APP_SAVES)) bpf_setsockopt(ops, SOL_TCP, TCP_SAVE_SYN, &zero, sizeof(zero));
}

// An accepted socket: what is in its storage is a copy of its listener's. A segment with SYN here
// is TFO's, or a simultaneous open.
static __always_inline void OnAccepted(struct bpf_sock_ops* ops) {
  struct state* state = StateOf(ops);
  if (!state) return;
  SwitchOff(ops, state);
  const int answer = (state->flags & ENROLLED) && !(ops->skb_tcp_flags & TCP_SYN) && SynAsks(ops);
  struct bpf_sock* sk = ops->sk;
  if (answer) {
    state->flags = EXCHANGED;
  } else if (sk) {
    bpf_sk_storage_delete(&pstn_syn_state, sk);
  }
}

SEC("sockops")
int pstn_syn1_ops(struct bpf_sock_ops* ops) {
  switch (ops->op) {
    case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
      OnHeaderLength(ops);
      break;
    case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
      OnHeaderWrite(ops);
      break;
    case BPF_SOCK_OPS_TCP_CONNECT_CB:
      OnConnect(ops);
      break;
    case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
      OnConnected(ops);
      break;
    case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
      OnAccepted(ops);
      break;
    case BPF_SOCK_OPS_TCP_LISTEN_CB:
      OnListen(ops);
      break;
    case BPF_SOCK_OPS_STATE_CB:
      OnState(ops);
      break;
    default:
      break;
  }
  return 1;
}

// ---- the socket option -----------------------------------------------------------------------

static __always_inline int IsTcp(struct bpf_sock* sk) {
  return sk && sk->type == SOCK_STREAM && sk->protocol == IPPROTO_TCP;
}

// Not ours: the kernel goes on with what the caller gave. Of a long value only the first page is in
// our buffer; 0 says that the kernel shall not take it from there.
static __always_inline int PassOn(struct bpf_sockopt* ctx) {
  if (ctx->optlen > ctx->optval_end - ctx->optval) ctx->optlen = 0;
  return 1;
}

static __always_inline int Done(struct bpf_sockopt* ctx) {
  ctx->optlen = -1;  // not for the kernel
  return 1;
}

// An int of the caller; others are refused.
static __always_inline int Value(struct bpf_sockopt* ctx, int* value) {
  int* given = ctx->optval;
  const int len = ctx->optlen;
  if (len != -1 && len < (int)sizeof(int)) return 0;  // -1: another instance was here before
  if ((void*)(given + 1) > ctx->optval_end) return 0;
  *value = *given;
  return 1;
}

// In these states nothing has gone out yet, or what goes out is decided for each request.
static __always_inline int CanChange(__u32 tcp_state) {
  return tcp_state == BPF_TCP_CLOSE || tcp_state == BPF_TCP_LISTEN;
}

static __always_inline int SetSavesSyn(struct bpf_sock* sk, int value) {
  return can_set && bpf_setsockopt(sk, SOL_TCP, TCP_SAVE_SYN, &value, sizeof(value)) == 0;
}

static __always_inline int CallbacksOn(struct bpf_sock* sk, struct state* state) {
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
static __always_inline int MarkListener(struct bpf_sock* sk, struct state* state, __u64 listener) {
  const __u8 value = 1;
  if (!(state->flags & ENROLLED)) {
    if (!CallbacksOn(sk, state)) return 0;
    if (bpf_map_update_elem(&pstn_syn_listen, &listener, &value, BPF_ANY) != 0) return 0;
    state->flags |= ENROLLED;
  }
  return SetSavesSyn(sk, 1);
}

static __always_inline int UnmarkListener(struct bpf_sock* sk, struct state* state) {
  return !(state->flags & ENROLLED) || SetSavesSyn(sk, 0);
}

// Where a program saves SYNs itself they tell nothing of the mark, so there it stays what it was in
// listen().
static __always_inline int ChangeListener(struct bpf_sockopt* ctx, struct bpf_sock* sk,
                                          struct state* state, int value) {
  if (value == !!(state->flags & MARKED)) return 1;
  if (state->flags & APP_SAVES) return 0;
  return value ? MarkListener(sk, state, AddressOf(ctx, bpf_sockopt_kern))
               : UnmarkListener(sk, state);
}

static __always_inline struct state* NewState(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  // Where another instance was here before, in this very call, it may have set it.
  const int saves = SavesSyn(AddressOf(ctx, bpf_sockopt_kern)) && ctx->optlen != -1;
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  if (state && saves) state->flags |= APP_SAVES;
  return state;
}

static __always_inline int Mark(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  int value = 0;
  if (!Value(ctx, &value) || value < 0 || value > 1 || !CanChange(sk->state)) return 0;
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  if (!state && value) state = NewState(ctx, sk);
  if (!state) return value ? 0 : Done(ctx);
  if (sk->state == BPF_TCP_LISTEN && !ChangeListener(ctx, sk, state, value)) return 0;
  state->flags = value ? state->flags | MARKED : state->flags & ~MARKED;
  return Done(ctx);
}

// The program's own TCP_SAVE_SYN on a socket of ours. Off: a mark keeps it on underneath. On, while
// the mark is taken back: the saved SYN can't decide any more, so the listener leaves.
static __always_inline int OnSaveSyn(struct bpf_sockopt* ctx, struct bpf_sock* sk) {
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  int value = 0;
  if (!state || !Value(ctx, &value)) return PassOn(ctx);
  if (value == 0) {
    state->flags &= ~APP_SAVES;
    const int in_use = (state->flags & (ENROLLED | MARKED)) == (ENROLLED | MARKED);
    return in_use ? Done(ctx) : PassOn(ctx);
  }
  state->flags |= APP_SAVES;
  if ((state->flags & (ENROLLED | MARKED)) == ENROLLED) {
    const __u64 listener = AddressOf(ctx, bpf_sockopt_kern);
    bpf_map_delete_elem(&pstn_syn_listen, &listener);
    state->flags &= ~ENROLLED;
  }
  return PassOn(ctx);
}

SEC("cgroup/setsockopt")
int pstn_syn1_set(struct bpf_sockopt* ctx) {
  struct bpf_sock* sk = ctx->sk;
  if (ctx->level != SOL_TCP || !IsTcp(sk)) return PassOn(ctx);
  if (ctx->optname == TCP_SAVE_SYN) return OnSaveSyn(ctx, sk);
  return ctx->optname == PSTN_TCP_SMC ? Mark(ctx, sk) : PassOn(ctx);
}

SEC("cgroup/getsockopt")
int pstn_syn1_get(struct bpf_sockopt* ctx) {
  struct bpf_sock* sk = ctx->sk;
  if (ctx->level != SOL_TCP || ctx->optname != PSTN_TCP_SMC || !IsTcp(sk)) return PassOn(ctx);
  int* answer = ctx->optval;
  if ((void*)(answer + 1) > ctx->optval_end) return 0;
  int bits = ctx->retval == 0 ? *answer : 0;  // another instance has answered
  struct state* state = bpf_sk_storage_get(&pstn_syn_state, sk, 0, 0);
  if (state && (state->flags & EXCHANGED)) bits |= PSTN_TCP_SMC_EXCHANGED;
  if (state && (state->flags & MARKED)) bits |= PSTN_TCP_SMC_MARKED;
  *answer = bits;
  ctx->optlen = sizeof(bits);
  barrier();  // as one store of both, the verifier would refuse it
  ctx->retval = 0;
  return 1;
}
