// SPDX-License-Identifier: Apache-2.0
// congestion_fuzz.cc - congestion control and the RTO under acknowledgements that no network sends.
//
// A peer chooses when it acknowledges what, and so most of what comes in here. Whatever that is,
// the window keeps to its bounds, grows by no more than was acknowledged in slow start and by half
// in congestion avoidance, and the RTO keeps to its own.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include "replay.h"
#include "tcp/congestion/congestion.h"
#include "tcp/congestion/rtt.h"

namespace postern::tcp {
namespace {

[[maybe_unused]] constexpr size_t kInputMax = 600;

class Run {
 public:
  Run(const uint8_t* data, size_t size) : data_(data), size_(size) {
    constexpr uint32_t kMss[] = {1, 88, 536, 1460, 8948, 65535};
    CongestionInit(cc_, static_cast<CongestionKind>(Next() % 2), kMss[Next() % 6]);
    RttInit(rtt_);
  }
  void All() {
    while (at_ < size_) {
      Step();
      FUZZ_CHECK(cc_.cwnd_bytes >= 1 && cc_.cwnd_bytes <= kCwndMax);
      FUZZ_CHECK(cc_.ssthresh_bytes >= 2 || cc_.mss_bytes == 1);
      FUZZ_CHECK(cc_.phase <= 2);
      FUZZ_CHECK(rtt_.rto_ns >= rtt_.rto_min_ns && rtt_.rto_ns <= rtt_.rto_max_ns);
      FUZZ_CHECK(MinRtt(rtt_, now_) > 0);
      CongestionPacingRate(cc_, Srtt(rtt_));
    }
  }

 private:
  uint32_t Next() { return at_ < size_ ? data_[at_++] : 0; }
  // Of any magnitude.
  uint64_t Number(uint32_t bits) {
    const uint64_t value = Next() | Next() << 8;
    return value << Next() % (bits - 15);
  }

  AckSample Ack() {
    AckSample ack = {};
    now_ += Number(50);
    ack.now_ns = now_;
    ack.rtt_ns = Next() % 4 == 0 ? 0 : Number(50);
    ack.srtt_ns = Srtt(rtt_);
    ack.delivered_bytes = static_cast<uint32_t>(Number(32));
    ack.newly_lost_bytes = Next() % 4 == 0 ? static_cast<uint32_t>(Number(32)) : 0;
    ack.in_flight_bytes = static_cast<uint32_t>(Number(32));
    ack.una_advanced = Next() % 4 != 0;
    ack.reordered = Next() % 4 == 0;
    una_ += static_cast<uint32_t>(Number(32));
    nxt_ = una_ + static_cast<uint32_t>(Number(30));
    ack.snd_una = una_;
    ack.snd_nxt = nxt_;
    if (ack.rtt_ns != 0) RttSample(rtt_, now_, ack.rtt_ns, una_, nxt_);
    return ack;
  }
  void OnAck() {
    const AckSample ack = Ack();
    const uint64_t before = cc_.cwnd_bytes;
    const CubicState cubic = cc_.cubic;
    const bool reducing = IsReducing(cc_), slow_start = InSlowStart(cc_);
    CongestionOnAck(cc_, ack);
    if (reducing) {
      FUZZ_CHECK(ack.delivered_bytes != 0 || ack.newly_lost_bytes != 0 || cc_.cwnd_bytes == before);
      return;
    }
    FUZZ_CHECK(cc_.cwnd_bytes >= before);
    if (cc_.cubic.epoch_start_ns != 0 && cubic.epoch_start_ns != 0)
      FUZZ_CHECK(cc_.cubic.w_est_4096 >> 12 <= (cubic.w_est_4096 >> 12) + cc_.mss_bytes + 1);
    if (!slow_start && cc_.kind == 0)
      FUZZ_CHECK(cc_.cwnd_bytes <= before + before / 2 + cc_.mss_bytes);
    FUZZ_CHECK(cc_.cwnd_bytes <= before + uint64_t{ack.delivered_bytes} + before / 2 +
                                     uint64_t{ack.delivered_bytes} / before * cc_.mss_bytes +
                                     cc_.mss_bytes);
  }
  void Sent() {
    const auto in_flight = static_cast<uint32_t>(Number(32));
    CongestionOnSent(cc_,
                     {now_, rtt_.rto_ns, static_cast<uint32_t>(Number(32)), in_flight, una_, nxt_});
  }
  void Step() {
    switch (Next() % 16) {
      case 0:
        return CongestionOnLoss(cc_, static_cast<Cause>(Next() % 2));
      case 1:
        return CongestionOnRecovered(cc_);
      case 2:
        RttBackOff(rtt_);
        return CongestionOnTimeout(cc_, static_cast<Timeout>(Next() % 2));
      case 3:
        return CongestionUndo(cc_);
      case 4:
        return CongestionOnIdle(cc_, Number(55), Number(40));
      case 5:
        return CongestionSetMss(cc_, static_cast<uint32_t>(Number(16)));
      case 6:
        return CongestionSetKind(cc_, static_cast<CongestionKind>(Next() % 2));
      case 7:
      case 8:
      case 9:
        return Sent();
      default:
        return OnAck();
    }
  }

  const uint8_t* data_;
  size_t size_, at_ = 0;
  Congestion cc_;
  RttEstimator rtt_;
  uint64_t now_ = 1;
  Seq una_, nxt_;
};

}  // namespace
}  // namespace postern::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  postern::tcp::Run(data, size).All();
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::tcp::kInputMax); }
#endif
