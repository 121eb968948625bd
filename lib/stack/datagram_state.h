// SPDX-License-Identifier: Apache-2.0
// datagram_state.h - what the wire segment has of UDP: sockets, and the datagrams that wait at
// them.
//
// As the rest of it (wire_state.h): by index, under its lock. What is believed after a death are
// the sockets that are in use and the chains of what waits at each; all else is computed anew
// (Datagrams::Recover).
#pragma once
#include "abi/postern_abi.h"
#include "udp/udp_endpoint.h"
#include "vi/layout.h"
#include "wire/packet/ethernet.h"

namespace postern::stack {

inline constexpr uint32_t kDatagramSockets = 1024;
inline constexpr uint32_t kDatagramsWaiting = 8192;  // each holds a frame: there are no more

// How packets to a peer go out, as found by Paths (engine.h).
struct Path {
  uint64_t version;  // of the tables it is from; 0: not looked up
  uint32_t vi;       // index in the area
  uint32_t mtu;
  wire::LinkOut link;
  uint8_t ttl;
  uint8_t zero[7];
};

struct DatagramSocket {
  udp::Endpoint e;
  uint32_t use;                  // 1: it is one
  uint32_t next;                 // free list: + 1
  uint32_t owner, owner_gen;     // the Streams' name of the program's side
  uint32_t wants;                // control messages that it wants to receive; the Streams' bits
  uint32_t filter_epoch;         // of the grant that the filters were made under
  uint32_t filter[kAreaVis];     // what steers to it, by VI
  uint32_t is_left;              // (a) 1: it is the kernel's; what still waits can be received
  uint32_t is_from_any;          // 1: path_from is what the route says
  pstn_addr path_from, path_to;  // what `path` leads from and to
  Path path;
};

struct DatagramCounters {
  uint64_t in, out;    // datagrams that a socket got, or sent
  uint64_t full;       // dropped: no room at the socket, or no frame to spare
  uint64_t not_ours;   // no socket any more
  uint64_t by_kernel;  // sends that were left to the kernel's socket
  uint64_t left;       // sockets that were
};

struct DatagramTables {
  udp::Ports ports;
  uint32_t hw, free;                    // sockets: first never used; free list (+ 1)
  uint32_t received_hw, received_free;  // entries, likewise
  DatagramCounters counters;
  DatagramSocket at[kDatagramSockets];
  uint64_t named[kDatagramsWaiting / 64];  // Recover()'s
  udp::Received received[kDatagramsWaiting];
};

}  // namespace postern::stack
