// SPDX-License-Identifier: Apache-2.0
// reassembly.h - fragments of IPv4 (RFC 791, 815) and IPv6 (RFC 8200, 4.5) until they are whole.
//
// No I/O, no clock: the caller hands over frames by index and gets a gather list, nothing is
// copied. All memory is one struct of fixed size with indices only, which the processes of a stack
// share; every call is made under the lock of the engine. After a death inside of a call:
// ReassemblyInit() once more. What was kept is lost then, as the network may lose it.
//
// The owner of a frame: one that was given to AddFragment() is in the table, in the gather list,
// or has gone to DropFrame(), exactly one of the three.
//
// Bounds against attack (RFC 4963, 8900): fragments of a datagram, of a source, in all. Where there
// is no room, what has waited longest goes. Sources are told apart by a keyed hash, so that two may
// share a limit, and none can choose which.
//
// Overlaps drop the whole datagram: IPv6 by RFC 5722, with all that comes later; IPv4 as Linux
// does, so that what comes later may begin a new one. What adds nothing is ignored, and its bytes
// are never looked at: for IPv6 an exact duplicate (RFC 8200, 4.5), for IPv4 all that is covered
// already.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"
#include "wire/ip/ip.h"

namespace postern::stack {

inline constexpr uint32_t kDatagramsMax = 512;
inline constexpr uint32_t kFragmentsMax = 1024;
inline constexpr uint32_t kFragmentsPerDatagram = 128;  // 64 KiB in packets of 576 bytes
// What a source may have: a datagram costs more than its fragments, since there are fewer of them.
inline constexpr uint32_t kChargePerSource = 256, kDatagramCharge = 4;
inline constexpr uint32_t kReassemblyBuckets = 512, kSourceBuckets = 256;
inline constexpr uint64_t kReassembly4Ns = 30'000'000'000;  // as Linux; RFC 1122, 3.3.2 allows it
inline constexpr uint64_t kReassembly6Ns = 60'000'000'000;  // RFC 8200, 4.5

struct Fragment {
  uint32_t next;        // of its datagram, by offset; of the free list
  uint32_t packet;      // the frame
  uint32_t off;         // in the frame, of the data
  uint32_t begin, end;  // in the datagram, bytes
};

struct Datagram {
  wire::IpHead head;  // addresses and id; all of it once the fragment with offset 0 is here
  uint64_t created_ns;
  uint32_t chain_next;    // of its bucket; of the free list
  uint32_t older, newer;  // of its family
  uint32_t first, last;   // fragments by offset
  uint32_t fragment_count;
  uint32_t have_bytes;
  uint32_t total_bytes;  // PSTN_NONE: the last fragment is not here yet
  uint32_t bucket, source_bucket;
  uint8_t key_protocol;  // RFC 791: of the key; IPv6: 0, no part of it
  uint8_t state;         // kDatagramFree...
  uint8_t has_first;     // 1: the fragment with offset 0 is here
  uint8_t ecn_seen;      // bits 1 << ECN
  uint32_t zero;
};
inline constexpr uint8_t kDatagramFree = 0, kDatagramLive = 1,
                         kDatagramDead = 2;  // overlapped: has no fragments, and takes none

struct ReassemblyCounters {
  uint64_t completed;
  uint64_t duplicates;    // fragments that added nothing
  uint64_t overlaps;      // datagrams, as below
  uint64_t inconsistent;  // lengths, ends or ECN of the fragments contradict each other
  uint64_t too_many;      // of one datagram
  uint64_t evicted;       // made room for others
  uint64_t timeouts;
};

struct Reassembly {
  uint64_t secret;
  uint32_t fragments_limit, fragments_used;
  uint32_t free_datagram, free_fragment;
  uint32_t oldest[2], newest[2];  // by family: IPv4, IPv6
  uint32_t buckets[kReassemblyBuckets];
  uint32_t source_charge[kSourceBuckets];
  ReassemblyCounters counters;
  Datagram datagrams[kDatagramsMax];
  Fragment fragments[kFragmentsMax];
};

class FrameOwner {
 public:
  virtual void DropFrame(uint32_t packet) = 0;

 protected:
  ~FrameOwner() = default;
};

struct Piece {
  uint32_t packet, off, bytes;
};
// A whole datagram: L4 header and data are the pieces in a row. The first may be empty.
struct Gathered {
  wire::IpHead head;  // of the fragment with offset 0; l4_bytes are those of all, is_fragment is 0,
                      // tos has ECN as RFC 3168, 5.3 wants it
  uint32_t piece_count;
  Piece pieces[kFragmentsPerDatagram];
};

enum class FragmentFate : uint8_t {
  kKept,
  kComplete,   // `out` has it all, and the frames are the caller's
  kDropped,    // this one only
  kDiscarded,  // and with it what was there of its datagram
};

// `secret` is random. `fragments_limit`: how many frames it may keep, at most kFragmentsMax.
void ReassemblyInit(Reassembly& r, uint64_t secret, uint32_t fragments_limit = kFragmentsMax);
// Of a frame `packet` whose header ParseFrame() has not refused, and which is a fragment.
FragmentFate AddFragment(Reassembly& r, const wire::IpHead& head, uint32_t packet, uint64_t now_ns,
                         FrameOwner& frames, Gathered& out);
void ExpireFragments(Reassembly& r, uint64_t now_ns, FrameOwner& frames);
uint64_t ReassemblyDeadline(const Reassembly& r);  // UINT64_MAX: nothing waits

// Invariants of everything there is; null, or the one that does not hold. For tests.
const char* ReassemblyCheck(const Reassembly& r);

}  // namespace postern::stack
