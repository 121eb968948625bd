// SPDX-License-Identifier: Apache-2.0
// wire_state.h - the wire segment: what the engine of a stack knows, in memory that its family
// shares.
//
// One for each stack that has a VI: connections, segments under way, listeners, the table that
// finds a connection by its addresses, timers. Everything by index, all of it under `lock`, whose
// holder names in `current` the connection that it is at. What can be computed from the
// connections (chains, wheel, free lists, the queue of those that are to be looked at) is computed
// anew by the thread that takes the lock over from a dead holder (recover.cc). Tables are sparse: a
// page that was never touched costs nothing.
#pragma once
#include "abi/postern_abi.h"
#include "stack/datagram_state.h"
#include "stack/errands.h"
#include "stack/reassembly/reassembly.h"
#include "stack/source_ports.h"
#include "stack/wheel.h"
#include "tcp/segment/challenge.h"
#include "tcp/segment/syn_cookie.h"
#include "tcp/sysctls.h"
#include "tcp/tcb.h"

namespace postern::stack {

inline constexpr uint32_t kWireMagic = 0x65726977u;  // "wire"
inline constexpr uint32_t kWireVersion = 11;
inline constexpr uint32_t kConns = 65536;
inline constexpr uint32_t kTxSegs = 262144;
inline constexpr uint32_t kRxSegs = 65536;
inline constexpr uint32_t kHashSlots = 65536;
inline constexpr uint32_t kListeners = 4096;
inline constexpr uint32_t kPortSlots = 4096;
inline constexpr uint32_t kLearnedMtus = 1024;

inline constexpr uint32_t kConnFree = 0, kConnUsed = 1;
// Listener::use. One that has ended keeps its filters while its connections need them.
inline constexpr uint32_t kListenerFree = 0, kListenerUsed = 1, kListenerEnded = 2;

// Conn::flags
inline constexpr uint32_t kReady = 1;        // in the queue of those to be looked at
inline constexpr uint32_t kEmbryo = 2;       // passive, not handed to the program yet
inline constexpr uint32_t kOrphan = 4;       // the program's end is closed, or never came to be
inline constexpr uint32_t kNoRoom = 8;       // a segment did not go out; tried again
inline constexpr uint32_t kMtuChanged = 16;  // path_mss is not what TCP was told
inline constexpr uint32_t kDetached = 32;  // the program's end is given up; TCP goes on (TIME_WAIT)
inline constexpr uint32_t kMayFragment = 64;   // the path takes less than we make: without DF
inline constexpr uint32_t kUnreachable = 128;  // in its handshake there is no way, for path_error

struct Conn {
  tcp::Tcb tcb;  // first: the engine gets from a Tcb to its Conn

  alignas(64) uint32_t use;  // kConn*
  uint32_t flags;
  uint32_t hash_next;  // Conn + 1 of the same slot; 0: end
  uint32_t next;       // of the queue or the free list: + 1
  uint32_t gen;
  uint32_t listener;  // kEmbryo: index in listeners
  uint32_t owner;     // the Streams' name of the program's side
  uint32_t path_mss;  // as TCP was told
  pstn_addr local, peer;
  WheelLink wheel;
  Path path;
  uint32_t ip_id;
  uint32_t flow_label;
  uint32_t tos;
  uint32_t ttl;                // as the program has set it; 0: the route's
  uint32_t filter, filter_vi;  // what steers to it alone; 0: its listener's does
  uint32_t mtu_epoch;          // WireState::mtu_epoch when `path` was found
  uint32_t filter_epoch;       // of the grant that the filter was made under
  int32_t path_error;
  uint32_t zero;
};

struct Listener {
  uint32_t use;
  uint32_t next;    // of the same port slot: + 1
  pstn_addr local;  // ip all zero: any, of `family`
  uint32_t family, v6only;
  uint32_t backlog;
  uint32_t embryos;           // in handshakes
  uint32_t owner, owner_gen;  // the Streams' name
  uint32_t cookies;           // SYNs answered without keeping anything, for people to see
  uint32_t filter_epoch;      // of the grant that the filters were made under
  uint32_t filter[kAreaVis];  // what steers to it, by VI
  tcp::CookieGate cookie_gate;
  uint32_t maxseg;  // TCP_MAXSEG, of clients to come
  uint32_t zero;
};

// The host's settings that a stack of ours follows, by the names of their sysctls: as a process
// that connected or accepted has read them (offhost/wire_settings.cc).
struct WireSettings {
  uint32_t tcp_syncookies;  // 0: never; 1: when a listener has too many handshakes; 2: always
  uint32_t tcp_challenge_ack_limit;  // a second; INT32_MAX, Linux's default since 6.1: any
  uint32_t tcp_ecn;                  // 0: none; 1: asked for and agreed to; 2: agreed to
  uint32_t tcp_congestion;           // tcp_congestion_control, as a tcp::CongestionKind
  tcp::Sysctls tcp;
};

// What a router has said that the path to a peer takes (errors.cc). One for each slot of a hash of
// the address: two peers that share one forget each other's, and learn it again.
struct LearnedMtu {
  uint8_t ip[16];
  uint64_t until_ns;  // 0: nothing is known
  uint32_t mtu;
  uint32_t may_fragment;  // 1: it was less than kMtuMin4, which is what `mtu` is then
};

// Counters of the engine. Prose: docs/wire.md.
struct WireCounters {
  uint64_t packets_in, packets_out;
  uint64_t refused[64];  // by wire::Refusal
  uint64_t no_headroom;  // frames that came in more than one piece, or without room for us
  uint64_t not_ours;     // no connection, no listener: answered by a RST, or dropped
  uint64_t resets_out;
  uint64_t no_frame, no_tx_room, no_path, no_conn, no_segment;
  uint64_t lost_payload;  // what a program's end had promised was not there
  uint64_t syns_in, syns_dropped, accepts_full;
  uint64_t cookies_sent, cookies_taken, cookies_refused;
  uint64_t challenges_limited;
  uint64_t fragments_in, fragments_dropped;  // dropped: no room, or not TCP's
  uint64_t icmp_in, icmp_ignored;            // errors; those about nothing that is under way
  uint64_t taken_over;                       // locks of the dead
  uint64_t lost_connections;                 // reset because a process died in them
};

// The lock and what changes with it have lines of their own.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct WireState {
  uint32_t magic, version;
  uint64_t size_bytes;
  pstn_uuid stack;
  alignas(64) pstn_lock lock;
  uint32_t current;                 // Conn + 1 that the holder is at; 0: none
  uint32_t ready_head, ready_tail;  // + 1
  uint64_t polled_ns;               // (a) when a thread last polled
  uint64_t attended_ns;             // (a) when a thread other than the keeper's was last about to
  uint32_t awake;          // (a) threads that poll and do not sleep; one that died counts too much
  uint32_t keeper_naps;    // (a) 1: the keeper relies on them, and wants to be rung when they sleep
  uint32_t settings_used;  // (a) 1: connections have begun since the settings were read
  alignas(64) uint64_t random[2];  // the key; with `random_turn` it gives Engine::Random()
  uint64_t random_turn;
  uint64_t grant[kAreaVis];  // (c) posternd's names of the VIs
  WireSettings settings;
  uint64_t settings_ns;         // (a) when they were read
  uint64_t secret[2];           // of ISNs, cookies and time-stamp offsets
  uint32_t conn_hw, conn_free;  // first never used; free list (+ 1)
  uint32_t tx_hw, tx_free, rx_hw, rx_free;
  uint32_t listener_hw, listener_free;
  uint32_t conn_count, embryo_count;
  WireCounters counters;
  Wheel wheel;
  uint32_t hash[kHashSlots];       // Conn + 1
  uint32_t port_head[kPortSlots];  // Listener + 1
  tcp::ChallengeLimit challenges;
  uint64_t mtu_expiry_ns;  // before that no LearnedMtu ends; 0: there are none
  uint32_t mtu_epoch;      // grows when what is known of a path changes
  uint32_t zero;
  LearnedMtu learned[kLearnedMtus];
  Reassembly reassembly;
  SourcePorts sources;
  Errands errands;
  DatagramTables datagrams;
  Listener listeners[kListeners];
  Conn conns[kConns];
  uint64_t tx_named[kTxSegs / 64], rx_named[kRxSegs / 64];  // recover.cc's
  tcp::TxSeg tx[kTxSegs];
  tcp::RxSeg rx[kRxSegs];
};
static_assert(std::is_standard_layout_v<WireState>);

// Writes an empty one into zeroed memory; `entropy` are 32 bytes no host can guess.
void FormatWire(WireState& w, const pstn_uuid& stack, const uint64_t entropy[4], uint64_t now_ns);

}  // namespace postern::stack
