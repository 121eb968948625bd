// SPDX-License-Identifier: Apache-2.0
// tcp_flow.h - a sender reduced to its window: what congestion control is tried with.
#pragma once
#include <algorithm>
#include <cmath>

#include "tcp/congestion/congestion.h"
#include "tcp/machine.h"

namespace postern::tcp {

struct Flow {
  Congestion cc;
  uint64_t now = 100 * kSecond, rtt = 100 * kMs;
  Seq una = Seq(0xffff0000u), nxt = Seq(0xffff0000u);
  uint32_t app_bytes = ~0u;  // the program lets at most so much be under way
  // How wide the path is: the acknowledgements of a round come in 1/wide of its time. 1: the window
  // fills it.
  double wide = 1;
  bool paced = false;

  explicit Flow(CongestionKind kind, uint32_t mss = 1000) { CongestionInit(cc, kind, mss); }

  double segments() const { return cc.cwnd_bytes / double(cc.mss_bytes); }
  uint32_t in_flight() const { return static_cast<uint32_t>(nxt - una); }
  uint64_t rto() const { return rtt + 200 * kMs; }

  // Sends what the window allows, in whole segments.
  void Fill() {
    const uint32_t target = std::min(cc.cwnd_bytes, app_bytes) / cc.mss_bytes * cc.mss_bytes;
    if (in_flight() >= target) return;
    const uint32_t bytes = target - in_flight();
    nxt += bytes;
    CongestionOnSent(cc, {now, rto(), bytes, in_flight(), una, nxt});
  }
  void Ack(uint32_t bytes) {
    una += bytes;
    AckSample ack = {};
    ack.now_ns = now;
    ack.rtt_ns = ack.srtt_ns = rtt;
    ack.delivered_bytes = bytes;
    ack.in_flight_bytes = in_flight();
    ack.snd_una = una;
    ack.snd_nxt = nxt;
    ack.una_advanced = true;
    ack.paced = paced;
    CongestionOnAck(cc, ack);
  }
  // One round trip: all that is under way is acknowledged, two segments at a time and evenly
  // spaced (within a part of it, see `wide`), and replaced. `sample(i)`: the RTT of its i-th
  // acknowledgement.
  template <typename Fn>
  void Round(Fn sample) {
    Fill();
    const uint32_t acks = std::max(in_flight() / (2 * cc.mss_bytes), 1u);
    const Seq end = nxt;
    const auto step = static_cast<uint64_t>(static_cast<double>(rtt / acks) / wide);
    now += rtt - step * acks;
    for (uint32_t i = 0; Before(una, end); i++) {
      now += step;
      rtt = sample(i);
      Ack(std::min(2 * cc.mss_bytes, static_cast<uint32_t>(end - una)));
      Fill();
    }
  }
  void Round() {
    Round([r = rtt](uint32_t) { return r; });
  }
  // A loss, and the recovery of it as PRR has it: ends with cwnd = ssthresh.
  void Lose() {
    CongestionOnLoss(cc, Cause::kLoss);
    now += rtt;
    una = nxt;
    CongestionOnRecovered(cc);
  }
  // Out of slow start, with a window of so many segments.
  void Settle(uint32_t segments) {
    cc.cwnd_bytes = segments * cc.mss_bytes;
    cc.ssthresh_bytes = cc.cwnd_bytes;
  }
};

}  // namespace postern::tcp
