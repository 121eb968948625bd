// SPDX-License-Identifier: Apache-2.0
// link_model.h - what one direction of a link does to a packet: loss, order, copies, rate, delay.
//
// A pure function of its settings, its seed and what was offered before: the simulator asks it in
// virtual time, the relay that measures the kernel (perf/programs/lossy_relay.cc) in real time, so
// both curves are of one model.
//
//   offered --> lost? --> queue (rate, drop-tail, ECN mark) --> delay + jitter --> late? --> copies
//
// Packets keep their order, whatever the jitter, but for those that are chosen to be late: these
// are held for up to `late_ns` more, and others overtake them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "../unit/kit/known_stream.h"

namespace postern {

struct LinkSettings {
  double loss = 0;         // probability for each packet; with a burst model: in the good state
  double burst_begin = 0;  // Gilbert-Elliott: good -> bad, for each packet
  double burst_end = 1;    // bad -> good
  double burst_loss = 1;   // while bad
  double late = 0;         // "reordering"
  double copy = 0;         // duplicates
  double corrupt = 0;      // arrives, and its checksum is wrong
  uint64_t delay_ns = 0;
  uint64_t jitter_ns = 0;  // uniform, on top
  uint64_t late_ns = 0;
  uint64_t rate_bps = 0;  // 0: no limit
  uint64_t queue_bytes = ~uint64_t{0};
  uint64_t mark_bytes = ~uint64_t{0};  // CE is set while so much is queued, instead of a loss
};

struct LinkVerdict {
  uint32_t copies = 0;  // 0: lost
  bool marked = false;  // the CE bits are to be set
  bool corrupt = false;
  uint64_t arrive_ns[2] = {};
};

struct LinkCounts {
  uint64_t offered = 0, lost = 0, overflowed = 0, late = 0, copied = 0, corrupted = 0, marked = 0;
};

class LinkModel {
 public:
  LinkModel(const LinkSettings& settings, uint64_t seed) : settings_(settings), random_(seed) {}

  // `bytes` as they count on the wire; `markable`: the IP header allows CE.
  LinkVerdict Offer(uint64_t now_ns, uint32_t bytes, bool markable) {
    LinkVerdict verdict;
    counts_.offered++;
    if (IsLost()) {
      counts_.lost++;
      return verdict;
    }
    const uint64_t queued = QueuedBytes(now_ns);
    if (queued + bytes > settings_.queue_bytes) {
      counts_.overflowed++;
      return verdict;
    }
    verdict.marked = markable && queued > settings_.mark_bytes;
    verdict.corrupt = Happens(settings_.corrupt);
    uint64_t at_ns = std::max(now_ns, free_ns_);
    if (settings_.rate_bps != 0) {
      at_ns += uint64_t{bytes} * 8 * 1'000'000'000 / settings_.rate_bps;
      free_ns_ = at_ns;
    }
    at_ns += settings_.delay_ns + Below(settings_.jitter_ns);
    verdict.copies = Happens(settings_.copy) ? 2 : 1;
    for (uint32_t i = 0; i < verdict.copies; i++) verdict.arrive_ns[i] = Ordered(at_ns);
    counts_.copied += verdict.copies - 1;
    counts_.corrupted += verdict.corrupt;
    counts_.marked += verdict.marked;
    return verdict;
  }

  const LinkCounts& counts() const { return counts_; }
  LinkSettings& settings() { return settings_; }  // may change between packets

  uint64_t QueuedBytes(uint64_t now_ns) const {
    if (free_ns_ <= now_ns) return 0;
    // 1e9 * bytes * 8 of a queue of 1 GB fits into 64 bits.
    return (free_ns_ - now_ns) * settings_.rate_bps / 8 / 1'000'000'000;
  }

 private:
  bool Happens(double probability) {
    if (probability <= 0) return false;  // takes no random number: settings stay independent
    return static_cast<double>(random_.Next() >> 11) < probability * 9007199254740992.0;
  }
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : random_.Next() % limit; }

  bool IsLost() {
    if (settings_.burst_begin > 0)
      is_bad_ = is_bad_ ? !Happens(settings_.burst_end) : Happens(settings_.burst_begin);
    return Happens(is_bad_ ? settings_.burst_loss : settings_.loss);
  }

  uint64_t Ordered(uint64_t at_ns) {
    if (Happens(settings_.late)) {
      counts_.late++;
      return std::max(at_ns, last_ns_) + 1 + Below(settings_.late_ns);
    }
    last_ns_ = std::max(at_ns, last_ns_);
    return last_ns_;
  }

  LinkSettings settings_;
  TestRandom random_;
  LinkCounts counts_;
  uint64_t free_ns_ = 0;  // when the last byte that was accepted will have left
  uint64_t last_ns_ = 0;  // arrival of the last packet that kept its order
  bool is_bad_ = false;
};

}  // namespace postern
