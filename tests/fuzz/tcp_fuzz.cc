// SPDX-License-Identifier: Apache-2.0
// tcp_fuzz.cc - any segments, calls of the program and steps of time against a connection in each
// of its states: Validate() finds nothing, nothing is left behind, and no step takes long.
//
// The input is a program: one byte says how the connection begins, then steps of eight bytes. What
// a peer may choose freely is chosen near what matters (rcv_nxt, snd_una, the edges of windows) and
// sometimes far from it.
//
//   clang: tests/fuzz/meson.build says how to build it with libFuzzer
//   else:  tcp_fuzz [SECONDS [FIRST_SEED]]   inputs from random seeds; default 3 s from 1
#include <algorithm>
#include <cstring>
#include <vector>

#include "replay.h"
#include "tcp/tcp.h"
#include "tcp/validate.h"

namespace postern {
namespace {

using namespace tcp;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kTxSegs = 300, kRxSegs = 100, kPackets = 64;
constexpr uint32_t kRing = 1u << 16;
constexpr size_t kStepBytes = 8, kStepsMax = 300;
constexpr uint8_t kPayload[3000] = {};

class FuzzHost final : public Host {
 public:
  Tcb t = {};
  bool over = false;  // kClosed was reported

  void Reset(uint64_t seed) {
    t = Tcb{};
    random_ = seed;
    now_ns = 1'000'000'000'000;
    over = wire_full_ = ended_ = false;
    written_ = released_ = unread_ = 0;
    transmitted_ = 0;
    row_max_ = 1 + static_cast<uint32_t>(seed % kRowMax);
    Fill(tx_free_, kTxSegs);
    Fill(rx_free_, kRxSegs);
    std::memset(refs_, 0, sizeof refs_);
  }

  uint64_t Random() override { return random_ = random_ * 6364136223846793005u + 1; }
  bool Transmit(Tcb&, const SegmentOut& s) override {
    FUZZ_CHECK(s.bytes == 0 || s.from.ring + s.bytes <= written_);
    FUZZ_CHECK(s.bytes == 0 || s.from.ring >= released_);
    FUZZ_CHECK((s.size != 0 ? s.size : s.bytes) <= 65'535);
    FUZZ_CHECK(s.size == 0 || (s.bytes % s.size == 0 && s.bytes / s.size <= row_max_));
    FUZZ_CHECK(s.options.sack_count <= kSackBlocksMax);
    FUZZ_CHECK(++transmitted_ < 100'000);  // in one step
    return !wire_full_;
  }
  Cursor Begin(Tcb&) override { return {released_, 0, 0}; }
  uint32_t Available(Tcb&, const Cursor& at, uint32_t limit) override {
    FUZZ_CHECK(at.ring >= released_ && at.ring <= written_);
    return static_cast<uint32_t>(std::min<uint64_t>(limit, written_ - at.ring));
  }
  Cursor Skip(Tcb&, const Cursor& at, uint32_t bytes) override {
    FUZZ_CHECK(at.ring >= released_ && at.ring + bytes <= written_);
    return {at.ring + bytes, 0, 0};
  }
  void Release(Tcb&, uint32_t bytes) override {
    released_ += bytes;
    FUZZ_CHECK(released_ <= written_);
  }
  bool Ended(Tcb&) override { return ended_; }
  uint32_t Room(Tcb&) override { return kRing - unread_; }
  uint32_t RoomMax(Tcb&) override { return kRing; }
  uint32_t Deliver(Tcb&, const uint8_t* data, uint32_t bytes) override {
    FUZZ_CHECK(!over && data >= kPayload && data + bytes <= kPayload + sizeof kPayload);
    const uint32_t n = std::min(bytes, kRing - unread_);
    unread_ += n;
    return n;
  }
  void Report(Tcb&, Event event, int) override {
    FUZZ_CHECK(!over);
    over = event == Event::kClosed;
  }
  bool Keep(uint32_t packet) override {
    if (Random() >> 60 == 0) return false;
    refs_[packet % kPackets]++;
    return true;
  }
  void Drop(uint32_t packet) override { FUZZ_CHECK(refs_[packet % kPackets]-- > 0); }
  const uint8_t* PacketAt(uint32_t, uint32_t off) override {
    FUZZ_CHECK(off < sizeof kPayload);
    return kPayload + off;
  }
  uint32_t TakeTxSeg() override { return Take(tx_free_); }
  void GiveTxSeg(uint32_t i) override { tx_free_.push_back(i); }
  TxSeg& TxSegAt(uint32_t i) override {
    FUZZ_CHECK(i < kTxSegs);
    return tx_[i];
  }
  uint32_t TakeRxSeg() override { return Take(rx_free_); }
  void GiveRxSeg(uint32_t i) override { rx_free_.push_back(i); }
  RxSeg& RxSegAt(uint32_t i) override {
    FUZZ_CHECK(i < kRxSegs);
    return rx_[i];
  }

  void Write(uint32_t bytes) {
    if (!ended_ && written_ - released_ < kRing) written_ += bytes;
  }
  void Read(uint32_t bytes) { unread_ -= std::min(unread_, bytes); }
  void End() { ended_ = true; }
  void Wire(bool full) { wire_full_ = full; }

  void Check() {
    transmitted_ = 0;
    if (const char* wrong = Validate(t, *this)) FuzzDie(wrong);
    FUZZ_CHECK(over == (StateOf(t) == State::kClosed));
    if (!over) return;
    FUZZ_CHECK(tx_free_.size() == kTxSegs && rx_free_.size() == kRxSegs);
    for (int refs : refs_) FUZZ_CHECK(refs == 0);
  }

 private:
  static void Fill(std::vector<uint32_t>& free, uint32_t count) {
    free.resize(count);
    for (uint32_t i = 0; i < count; i++) free[i] = i;
  }
  static uint32_t Take(std::vector<uint32_t>& free) {
    if (free.empty()) return kNone;
    const uint32_t i = free.back();
    free.pop_back();
    return i;
  }

  TxSeg tx_[kTxSegs];
  RxSeg rx_[kRxSegs];
  std::vector<uint32_t> tx_free_, rx_free_;
  int refs_[kPackets];
  uint64_t written_ = 0, released_ = 0, random_ = 1;
  uint32_t unread_ = 0, transmitted_ = 0;
  bool ended_ = false, wire_full_ = false;
};

// One step's bytes, taken one after the other.
struct Bytes {
  const uint8_t* at;
  uint8_t Next() { return *at++; }
};

uint32_t Near(uint8_t b) {
  static constexpr uint32_t kSteps[] = {0, 1, 2, 100, 535, 536, 1000, 1448, 1460, 5000, 0xffff};
  const uint32_t off = kSteps[b % 11];
  return (b & 0x80) != 0 ? 0u - off : off;
}

Seq NearSend(const Tcb& t, uint8_t b, uint8_t c) {
  switch (b % 6) {
    case 0:
      return t.snd_una + Near(c);
    case 1:
      return t.snd_nxt;
    case 2:
      return t.snd_nxt + Near(c);
    case 3: {
      const uint32_t flight = static_cast<uint32_t>(t.snd_nxt - t.snd_una);
      return t.snd_una + static_cast<uint32_t>(uint64_t{flight} * c / 255);
    }
    case 4:
      return t.snd_una + 1000u * (c % 64);
    default:
      return Seq(c * 0x01010101u);
  }
}

Seq NearReceive(const Tcb& t, uint8_t b, uint8_t c) {
  switch (b % 5) {
    case 0:
    case 1:
      return t.rcv_nxt;
    case 2:
      return t.rcv_nxt + Near(c);
    case 3:
      return t.rcv_adv + Near(c);
    default:
      return t.rcv_nxt + 700u * c;
  }
}

SegmentIn Segment(const Tcb& t, Bytes in, FuzzHost& h) {
  SegmentIn s;
  const uint8_t kind = in.Next(), where = in.Next(), fine = in.Next(), more = in.Next();
  const uint8_t size = in.Next(), options = in.Next(), last = in.Next();
  static constexpr uint8_t kFlags[] = {kAck, kAck,        kAck,       kAck | kFin, kAck | kPsh,
                                       kSyn, kSyn | kAck, kRst,       kRst | kAck, kAck | kUrg,
                                       0,    kAck | kEce, kAck | kCwr};
  s.flags = kind % 16 < 13 ? kFlags[kind % 16] : last;
  if ((s.flags & kRst) != 0 && last > 8) s.flags = kAck;  // else few live long
  s.seq = NearReceive(t, where, fine);
  s.ack = NearSend(t, where >> 4, more);
  if ((kind & 0x80) != 0) s.ack = t.snd_nxt;
  static constexpr uint32_t kSizes[] = {0, 0, 1, 10, 536, 1000, 1448, 2000, 3000};
  s.bytes = kSizes[size % 9];
  s.data = kPayload;
  s.packet = static_cast<uint32_t>(h.Random() >> 32) % kPackets;
  s.window = static_cast<uint16_t>((size & 0x80) != 0 ? last : last * 257u);
  s.urgent = last;
  s.ecn = static_cast<Ecn>(options & 3);
  s.options.has_timestamps = (options & 4) != 0 || ((t.flags >> 0) & 1) != 0;
  s.options.ts_value = t.ts_recent + Near(more);
  s.options.ts_echo = static_cast<uint32_t>(h.now_ns / 1'000'000) - (fine & 63);
  s.options.sack_permitted = (options & 8) != 0;
  s.options.has_window_scale = (options & 16) != 0;
  s.options.window_scale = last;
  s.options.mss = (options & 32) != 0 ? static_cast<uint16_t>(last * 10) : 0;
  s.options.sack_count = options >> 6;
  uint32_t from = fine;
  for (uint32_t i = 0; i < s.options.sack_count; i++) {
    const Seq left = NearSend(t, static_cast<uint8_t>(where + i), static_cast<uint8_t>(from));
    s.options.sack[i] = {left, left + ((last & 1) != 0 ? 1000u * (more % 8) : Near(more))};
    from += 37;
  }
  return s;
}

// Now and then it is the first of a run, as large as the Host likes.
void Arrive(FuzzHost& h, SegmentIn s) {
  RunPart parts[8];
  const uint32_t more = static_cast<uint32_t>(h.Random() >> 60);
  if (more < std::size(parts) && MayRun(h.t, s)) {
    s.segments = s.parts = more + 1;
    s.size = s.bytes;
    s.run = parts;
    for (uint32_t i = 0; i <= more; i++) parts[i] = {s.data, s.bytes};
    s.bytes *= s.segments;
  }
  Input(h.t, s, h);
}

void Program(FuzzHost& h, Bytes in) {
  Tcb& t = h.t;
  const uint8_t what = in.Next(), a = in.Next(), b = in.Next();
  switch (what % 14) {
    case 0:
    case 1:
    case 2:
      h.Write(1 + a * 16u * (b % 16));
      if (b >= 240) MarkRecord(t, a * 16u * (b % 16));  // where a record ends, or nearly
      break;
    case 3:
      h.Read(a * 256u);
      break;
    case 4:
      if (a < 16) h.End();
      break;
    case 5:
      t.settings.flags = a;
      break;
    case 6:
      if (a < 4) {
        h.End();
        Closed(t, h);
      }
      return;
    case 7:
      if (a < 2) Abort(t, h);
      return;
    case 8:
      Urgent(t, a % 8, h);
      return;
    case 9:
      PathMtu(t, a * 16u, h);
      return;
    case 10:
      SoftError(t, NearSend(t, a, b), 113, (b & 1) != 0, h);
      return;
    case 11:
      h.Wire((a & 3) == 0);
      break;
    case 12:
      SetAckMode(t, (a & 1) != 0 ? AckMode::kQuick : AckMode::kDelayed, h);
      return;
    default:
      t.settings.user_timeout_ms = (a & 1) != 0 ? b * 100u : 0;
      t.settings.max_pacing_rate = (a & 2) != 0 ? b * 10'000u : 0;
      t.settings.window_clamp = (a & 4) != 0 ? b * 100u : 0;
      break;
  }
  Output(t, h);
}

void Pass(FuzzHost& h, Bytes in) {
  const uint8_t how = in.Next(), a = in.Next();
  const uint64_t next_ns = NextDeadline(h.t);
  if (next_ns == UINT64_MAX || how % 4 == 0) {
    h.now_ns += uint64_t{1} << (a % 40);
  } else {
    h.now_ns = std::max(h.now_ns, next_ns);
  }
  Timer(h.t, h);
}

void Begin(FuzzHost& h, uint8_t how, Bytes in) {
  const OpenArgs args = {
      .mss_max = 1460, .mss_receive = 1460, .iss = Seq(0xfffffff0u), .ecn = (how & 2) != 0};
  SegmentIn s = Segment(h.t, in, h);
  s.seq = Seq(0xffffff00u);
  s.options.mss = 1460;
  if ((how & 1) == 0) {
    Open(h.t, args, h);
    if ((how & 4) != 0) return;
    s.flags = kSyn | kAck;
    s.ack = h.t.snd_nxt;
    Input(h.t, s, h);
  } else {
    s.flags = kSyn | ((how & 8) != 0 ? kEce | kCwr : 0);
    OpenPassive(h.t, args, s, h);
    if ((how & 4) != 0) return;
    s.flags = kAck;
    s.seq += 1;
    s.ack = h.t.snd_nxt;
    Input(h.t, s, h);
  }
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace postern;  // NOLINT(google-build-using-namespace)
  if (size < 1 + kStepBytes) return 0;
  static FuzzHost h;
  h.Reset(size * 77 + data[0]);
  Begin(h, data[0], {data + 1});
  h.Check();
  const size_t steps = std::min((size - 1) / kStepBytes, kStepsMax);
  for (size_t i = 1; i < steps && !h.over; i++) {
    const uint8_t* at = data + 1 + i * kStepBytes;
    const Bytes rest = {at + 1};
    if (*at % 8 < 4) {
      Arrive(h, Segment(h.t, rest, h));
    } else if (*at % 8 < 6) {
      Program(h, rest);
    } else {
      Pass(h, rest);
    }
    h.Check();
  }
  if (!h.over) Abort(h.t, h);
  h.Check();
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, 2400); }
#endif
