// reassembly_check.cc - what has to hold of a Reassembly between calls; for tests and fuzzers.
// SPDX-License-Identifier: Apache-2.0
#include "stack/reassembly/reassembly.h"

namespace postern::stack {
namespace {

// Each walk is bounded, so that a broken list is found instead of followed.
const char* CheckFragments(const Reassembly& r, const Datagram& d) {
  uint32_t count = 0, bytes = 0, end = 0, last = PSTN_NONE;
  for (uint32_t i = d.first; i != PSTN_NONE; i = r.fragments[i].next) {
    if (i >= kFragmentsMax || ++count > d.fragment_count) return "fragment list";
    const Fragment& f = r.fragments[i];
    if (f.begin >= f.end || f.end > wire::kIpBytesMax) return "fragment bounds";
    if (f.begin < end) return "fragments overlap";
    if (d.total_bytes != PSTN_NONE && f.end > d.total_bytes) return "beyond the end";
    end = f.end;
    bytes += f.end - f.begin;
    last = i;
  }
  if (count != d.fragment_count || count > kFragmentsPerDatagram) return "fragment count";
  if (last != d.last) return "last fragment";
  if (bytes != d.have_bytes) return "bytes";
  if (d.have_bytes == d.total_bytes) return "whole, and still there";
  if ((d.has_first != 0) != (d.first != PSTN_NONE && r.fragments[d.first].begin == 0) &&
      d.state == kDatagramLive)
    return "first fragment";
  return d.state == kDatagramLive ? count == 0 ? "empty" : nullptr
         : count != 0             ? "dead with fragments"
                                  : nullptr;
}

const char* CheckAges(const Reassembly& r, uint32_t& in_lists) {
  for (uint32_t side = 0; side < 2; side++) {
    uint32_t before = PSTN_NONE;
    for (uint32_t i = r.oldest[side]; i != PSTN_NONE; i = r.datagrams[i].newer) {
      if (i >= kDatagramsMax || ++in_lists > kDatagramsMax) return "age list";
      const Datagram& d = r.datagrams[i];
      if (d.state == kDatagramFree) return "free one in an age list";
      if (d.older != before) return "age list, backwards";
      if (before != PSTN_NONE && d.created_ns < r.datagrams[before].created_ns) return "age order";
      if ((d.head.family == wire::Family::kIpv4 ? 0u : 1u) != side) return "family of age list";
      before = i;
    }
    if (r.newest[side] != before) return "newest";
  }
  return nullptr;
}

const char* CheckBuckets(const Reassembly& r, uint32_t& in_buckets) {
  for (uint32_t b = 0; b < kReassemblyBuckets; b++) {
    for (uint32_t i = r.buckets[b]; i != PSTN_NONE; i = r.datagrams[i].chain_next) {
      if (i >= kDatagramsMax || ++in_buckets > kDatagramsMax) return "bucket chain";
      if (r.datagrams[i].bucket != b || r.datagrams[i].state == kDatagramFree) return "bucket";
    }
  }
  return nullptr;
}

}  // namespace

const char* ReassemblyCheck(const Reassembly& r) {
  uint32_t used = 0, fragments = 0, in_lists = 0, in_buckets = 0, free_ones = 0;
  uint32_t charge[kSourceBuckets] = {};
  for (const Datagram& d : r.datagrams) {
    if (d.state == kDatagramFree) continue;
    used++;
    fragments += d.fragment_count;
    if (d.source_bucket >= kSourceBuckets) return "source bucket";
    charge[d.source_bucket] += kDatagramCharge + d.fragment_count;
    if (const char* bad = CheckFragments(r, d)) return bad;
  }
  if (fragments != r.fragments_used || fragments > r.fragments_limit) return "fragments used";
  for (uint32_t i = 0; i < kSourceBuckets; i++) {
    if (charge[i] != r.source_charge[i] || charge[i] > kChargePerSource)
      return "charge of a source";
  }
  if (const char* bad = CheckAges(r, in_lists)) return bad;
  if (const char* bad = CheckBuckets(r, in_buckets)) return bad;
  if (in_lists != used || in_buckets != used) return "not in its lists";
  for (uint32_t i = r.free_datagram; i != PSTN_NONE; i = r.datagrams[i].chain_next) {
    if (i >= kDatagramsMax || ++free_ones > kDatagramsMax - used) return "free datagrams";
  }
  if (free_ones != kDatagramsMax - used) return "a datagram is lost";
  free_ones = 0;
  for (uint32_t i = r.free_fragment; i != PSTN_NONE; i = r.fragments[i].next) {
    if (i >= kFragmentsMax || ++free_ones > kFragmentsMax - fragments) return "free fragments";
  }
  return free_ones == kFragmentsMax - fragments ? nullptr : "a fragment is lost";
}

}  // namespace postern::stack
