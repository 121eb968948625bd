// reassembly.cc - lists of fragments by offset, found by a keyed hash, thrown out by age.
// SPDX-License-Identifier: Apache-2.0
//
// A datagram is a list of fragments that never overlap, so it is whole when their lengths add up to
// the end that the last one has told. Fragments come in order mostly: the end of the list is tried
// first, and a walk is bounded by kFragmentsPerDatagram.
#include "stack/reassembly/reassembly.h"

namespace postern::stack {
namespace {

using wire::Family;
using wire::IpHead;

uint32_t Side(Family family) { return family == Family::kIpv4 ? 0 : 1; }
uint64_t Deadline(const Datagram& d) {
  return d.created_ns + (d.head.family == Family::kIpv4 ? kReassembly4Ns : kReassembly6Ns);
}

// ---------------------------------------------------------------- keys

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
uint64_t MixAddress(uint64_t hash, const IpAddress& address) {
  uint64_t words[2];
  memcpy(words, address.bytes, sizeof words);
  return Mix(Mix(hash, words[0]), words[1]);
}
uint8_t KeyProtocol(const IpHead& head) {
  return head.family == Family::kIpv4 ? head.protocol : uint8_t{0};
}
uint32_t SourceBucket(const Reassembly& r, const IpHead& head) {
  return static_cast<uint32_t>(MixAddress(~r.secret, head.source) >> 32) % kSourceBuckets;
}
uint32_t Bucket(const Reassembly& r, const IpHead& head) {
  uint64_t hash = MixAddress(MixAddress(r.secret, head.source), head.destination);
  hash = Mix(hash, static_cast<uint64_t>(head.fragment_id) << 8 | KeyProtocol(head));
  return static_cast<uint32_t>(hash >> 32) % kReassemblyBuckets;
}

uint32_t Find(const Reassembly& r, const IpHead& head, uint32_t bucket) {
  for (uint32_t i = r.buckets[bucket]; i != PSTN_NONE; i = r.datagrams[i].chain_next) {
    const Datagram& d = r.datagrams[i];
    if (d.head.fragment_id == head.fragment_id && d.key_protocol == KeyProtocol(head) &&
        d.head.family == head.family && d.head.source == head.source &&
        d.head.destination == head.destination)
      return i;
  }
  return PSTN_NONE;
}

// ---------------------------------------------------------------- taking and giving back

void DropAll(Reassembly& r, Datagram& d, FrameOwner& frames) {
  for (uint32_t i = d.first; i != PSTN_NONE;) {
    Fragment& f = r.fragments[i];
    const uint32_t next = f.next;
    frames.DropFrame(f.packet);
    f.next = r.free_fragment;
    r.free_fragment = i;
    i = next;
  }
  r.fragments_used -= d.fragment_count;
  r.source_charge[d.source_bucket] -= d.fragment_count;
  d.fragment_count = 0;
  d.first = d.last = PSTN_NONE;
  d.have_bytes = 0;
}

// Of a datagram without fragments.
void Free(Reassembly& r, uint32_t idx) {
  Datagram& d = r.datagrams[idx];
  uint32_t* link = &r.buckets[d.bucket];
  while (*link != idx) link = &r.datagrams[*link].chain_next;
  *link = d.chain_next;
  const uint32_t side = Side(d.head.family);
  (d.older != PSTN_NONE ? r.datagrams[d.older].newer : r.oldest[side]) = d.newer;
  (d.newer != PSTN_NONE ? r.datagrams[d.newer].older : r.newest[side]) = d.older;
  r.source_charge[d.source_bucket] -= kDatagramCharge;
  d.state = kDatagramFree;
  d.chain_next = r.free_datagram;
  r.free_datagram = idx;
}

void Discard(Reassembly& r, uint32_t idx, FrameOwner& frames) {
  DropAll(r, r.datagrams[idx], frames);
  Free(r, idx);
}

// The oldest of both families, or of one source if that is one; PSTN_NONE: there is none.
uint32_t Oldest(const Reassembly& r, uint32_t source_bucket) {
  uint32_t best = PSTN_NONE;
  for (uint32_t i : r.oldest) {
    while (i != PSTN_NONE && source_bucket != PSTN_NONE &&
           r.datagrams[i].source_bucket != source_bucket)
      i = r.datagrams[i].newer;
    if (i == PSTN_NONE) continue;
    if (best == PSTN_NONE || r.datagrams[i].created_ns < r.datagrams[best].created_ns) best = i;
  }
  return best;
}

uint32_t Evict(Reassembly& r, uint32_t source_bucket, FrameOwner& frames) {
  const uint32_t victim = Oldest(r, source_bucket);
  if (victim == PSTN_NONE) return PSTN_NONE;
  Discard(r, victim, frames);
  r.counters.evicted++;
  return victim;
}

uint32_t Create(Reassembly& r, const IpHead& head, uint32_t bucket, uint64_t now_ns,
                FrameOwner& frames) {
  const uint32_t source_bucket = SourceBucket(r, head);
  while (r.source_charge[source_bucket] + kDatagramCharge + 1 > kChargePerSource)
    Evict(r, source_bucket, frames);
  if (r.free_datagram == PSTN_NONE) Evict(r, PSTN_NONE, frames);
  const uint32_t idx = r.free_datagram, side = Side(head.family);
  Datagram& d = r.datagrams[idx];
  r.free_datagram = d.chain_next;
  d = Datagram{};
  d.head = head;
  d.created_ns = now_ns;
  d.chain_next = r.buckets[bucket];
  r.buckets[bucket] = idx;
  d.older = r.newest[side];
  d.newer = PSTN_NONE;
  (d.older != PSTN_NONE ? r.datagrams[d.older].newer : r.oldest[side]) = idx;
  r.newest[side] = idx;
  d.first = d.last = PSTN_NONE;
  d.total_bytes = PSTN_NONE;
  d.bucket = bucket;
  d.source_bucket = source_bucket;
  r.source_charge[source_bucket] += kDatagramCharge;
  d.key_protocol = KeyProtocol(head);
  d.state = kDatagramLive;
  return idx;
}

// Makes room for one more fragment of `idx`. False: that was the oldest itself, and is gone.
bool MakeRoom(Reassembly& r, uint32_t idx, FrameOwner& frames) {
  const uint32_t source_bucket = r.datagrams[idx].source_bucket;
  while (r.source_charge[source_bucket] + 1 > kChargePerSource) {
    if (Evict(r, source_bucket, frames) == idx) return false;
  }
  while (r.fragments_used >= r.fragments_limit) {
    if (Evict(r, PSTN_NONE, frames) == idx) return false;
  }
  return true;
}

// ---------------------------------------------------------------- where a fragment belongs

enum class Fit : uint8_t { kFits, kDuplicate, kOverlap };

// `before` is set to the last fragment that begins at or before `begin`, or PSTN_NONE.
Fit Place(const Reassembly& r, const Datagram& d, uint32_t begin, uint32_t end, uint32_t& before) {
  before = PSTN_NONE;
  if (d.last != PSTN_NONE && r.fragments[d.last].begin <= begin) {
    before = d.last;
  } else {
    for (uint32_t i = d.first; i != PSTN_NONE && r.fragments[i].begin <= begin;
         i = r.fragments[i].next)
      before = i;
  }
  const uint32_t after = before != PSTN_NONE ? r.fragments[before].next : d.first;
  const bool meets_before = before != PSTN_NONE && r.fragments[before].end > begin;
  const bool meets_after = after != PSTN_NONE && r.fragments[after].begin < end;
  if (!meets_before && !meets_after) return Fit::kFits;
  if (!meets_before) return Fit::kOverlap;
  const Fragment& b = r.fragments[before];
  if (d.head.family == Family::kIpv6)
    return b.begin == begin && b.end == end ? Fit::kDuplicate : Fit::kOverlap;
  uint32_t covered = b.end;
  for (uint32_t i = after; i != PSTN_NONE && covered < end && r.fragments[i].begin == covered;
       i = r.fragments[i].next)
    covered = r.fragments[i].end;
  return covered >= end ? Fit::kDuplicate : Fit::kOverlap;
}

// Whether the end that this fragment tells agrees with all others.
bool IsEndConsistent(const Reassembly& r, const Datagram& d, const IpHead& head, uint32_t end) {
  if (d.total_bytes != PSTN_NONE)
    return head.has_more != 0 ? end <= d.total_bytes : end == d.total_bytes;
  return head.has_more != 0 || d.last == PSTN_NONE || r.fragments[d.last].end <= end;
}

void Insert(Reassembly& r, Datagram& d, const IpHead& head, uint32_t packet, uint32_t before) {
  const uint32_t idx = r.free_fragment;
  Fragment& f = r.fragments[idx];
  r.free_fragment = f.next;
  r.fragments_used++;
  r.source_charge[d.source_bucket]++;
  d.fragment_count++;
  f.packet = packet;
  f.off = head.data_off;
  f.begin = head.fragment_off;
  f.end = head.fragment_off + head.data_bytes;
  uint32_t& link = before != PSTN_NONE ? r.fragments[before].next : d.first;
  f.next = link;
  link = idx;
  if (d.last == before) d.last = idx;
  d.have_bytes += head.data_bytes;
  if (head.has_more == 0) d.total_bytes = f.end;
  d.ecn_seen |= static_cast<uint8_t>(1u << wire::EcnOf(head.tos));
  if (head.fragment_off == 0) {
    d.head = head;
    d.has_first = 1;
  }
}

// ---------------------------------------------------------------- the whole

//= rfc3168#5.3
//# Set the CE codepoint on the reassembled packet. However, this MUST NOT occur if any of the other
//# fragments contributing to this reassembly carries the Not-ECT codepoint.
// Such a mixture, and that of Not-ECT and ECT, is dropped: no sender makes it.
bool CombineEcn(uint8_t seen, uint8_t& tos) {
  constexpr uint8_t kNotEct = 1 << 0, kCe = 1 << 3;
  if ((seen & kNotEct) != 0 && seen != kNotEct) return false;
  if ((seen & kCe) != 0) tos |= 3;
  return true;
}

bool Gather(const Reassembly& r, const Datagram& d, Gathered& out) {
  out.head = d.head;
  IpHead& head = out.head;
  // What stands before the data in the first fragment counts in the length field of the whole: all
  // for IPv4, what is behind the header of 40 bytes and before the fragment header for IPv6.
  const uint32_t before =
      head.data_off - head.ip_off -
      (head.family == Family::kIpv4 ? 0 : wire::kIpv6HeaderBytes + wire::kFragmentHeaderBytes);
  if (before + d.total_bytes > wire::kIpBytesMax) return false;
  const uint32_t skip = head.l4_off - head.data_off;
  if (!CombineEcn(d.ecn_seen, head.tos)) return false;
  head.is_fragment = head.has_more = 0;
  head.l4_bytes = d.total_bytes - skip;
  out.piece_count = 0;
  for (uint32_t i = d.first; i != PSTN_NONE; i = r.fragments[i].next) {
    const Fragment& f = r.fragments[i];
    const uint32_t cut = out.piece_count == 0 ? skip : 0;
    out.pieces[out.piece_count++] = {f.packet, f.off + cut, f.end - f.begin - cut};
  }
  return true;
}

// What the arrival means for the datagram `idx`; kComplete is found out behind it.
FragmentFate Admit(Reassembly& r, uint32_t idx, const IpHead& head, uint32_t packet,
                   FrameOwner& frames) {
  Datagram& d = r.datagrams[idx];
  if (d.state == kDatagramDead) return FragmentFate::kDropped;
  const uint32_t end = head.fragment_off + head.data_bytes;
  uint32_t before = PSTN_NONE;
  const Fit fit = Place(r, d, head.fragment_off, end, before);
  if (fit == Fit::kOverlap) {
    r.counters.overlaps++;
    DropAll(r, d, frames);
    //= rfc8200#4.5
    //# reassembly of that packet must be abandoned and all the fragments that have been received
    // for # that packet must be discarded
    // And those that are still to come (RFC 5722, 4): it stays, dead, until its time is over.
    if (head.family == Family::kIpv6) {
      d.state = kDatagramDead;
    } else {
      Free(r, idx);
    }
    return FragmentFate::kDiscarded;
  }
  if (!IsEndConsistent(r, d, head, end)) {
    r.counters.inconsistent++;
    Discard(r, idx, frames);
    return FragmentFate::kDiscarded;
  }
  if (fit == Fit::kDuplicate) {
    r.counters.duplicates++;
    return FragmentFate::kDropped;
  }
  if (d.fragment_count == kFragmentsPerDatagram) {
    r.counters.too_many++;
    Discard(r, idx, frames);
    return FragmentFate::kDiscarded;
  }
  if (!MakeRoom(r, idx, frames)) return FragmentFate::kDiscarded;
  Insert(r, d, head, packet, before);
  return FragmentFate::kKept;
}

class Nobody final : public FrameOwner {
 public:
  void DropFrame(uint32_t) override {}
};

}  // namespace

void ReassemblyInit(Reassembly& r, uint64_t secret, uint32_t fragments_limit) {
  memset(&r, 0, sizeof r);
  r.secret = secret;
  r.fragments_limit = fragments_limit < kFragmentsMax ? fragments_limit : kFragmentsMax;
  for (uint32_t i = 0; i < 2; i++) r.oldest[i] = r.newest[i] = PSTN_NONE;
  for (uint32_t& bucket : r.buckets) bucket = PSTN_NONE;
  for (uint32_t i = 0; i < kDatagramsMax; i++)
    r.datagrams[i].chain_next = i + 1 < kDatagramsMax ? i + 1 : PSTN_NONE;
  for (uint32_t i = 0; i < kFragmentsMax; i++)
    r.fragments[i].next = i + 1 < kFragmentsMax ? i + 1 : PSTN_NONE;
}

FragmentFate AddFragment(Reassembly& r, const IpHead& head, uint32_t packet, uint64_t now_ns,
                         FrameOwner& frames, Gathered& out) {
  ExpireFragments(r, now_ns, frames);
  if (r.fragments_limit == 0) {
    frames.DropFrame(packet);
    return FragmentFate::kDropped;
  }
  const uint32_t bucket = Bucket(r, head);
  uint32_t idx = Find(r, head, bucket);
  if (idx == PSTN_NONE) idx = Create(r, head, bucket, now_ns, frames);
  const FragmentFate fate = Admit(r, idx, head, packet, frames);
  if (fate != FragmentFate::kKept) {
    frames.DropFrame(packet);
    return fate;
  }
  const Datagram& d = r.datagrams[idx];
  if (d.have_bytes != d.total_bytes) return FragmentFate::kKept;
  if (!Gather(r, d, out)) {
    r.counters.inconsistent++;
    Discard(r, idx, frames);
    return FragmentFate::kDiscarded;
  }
  Nobody nobody;  // the frames are the caller's now
  Discard(r, idx, nobody);
  r.counters.completed++;
  return FragmentFate::kComplete;
}

void ExpireFragments(Reassembly& r, uint64_t now_ns, FrameOwner& frames) {
  for (const uint32_t& oldest : r.oldest) {
    while (oldest != PSTN_NONE && Deadline(r.datagrams[oldest]) <= now_ns) {
      Discard(r, oldest, frames);
      r.counters.timeouts++;
    }
  }
}

uint64_t ReassemblyDeadline(const Reassembly& r) {
  uint64_t deadline_ns = UINT64_MAX;
  for (uint32_t oldest : r.oldest) {
    if (oldest != PSTN_NONE && Deadline(r.datagrams[oldest]) < deadline_ns)
      deadline_ns = Deadline(r.datagrams[oldest]);
  }
  return deadline_ns;
}

}  // namespace postern::stack
