// tcp_world.h - one end of a TCP connection under test: a scripted peer, and a program of strings.
// SPDX-License-Identifier: Apache-2.0
//
// Sequence numbers in tests are counted from the initial ones: the peer's SYN is .seq = 0, its
// first byte .seq = 1, and .ack = 1 acknowledges our SYN. Both initial numbers lie just below the
// wrap, so that each test crosses it. After each step Validate() has to find nothing.
//
//   TcpWorld w;
//   w.Establish();
//   w.Write("hello");
//   w.Expect({.seq = 1, .ack = 1, .data = "hello"});
//   w.Send({.ack = 6});
//   w.ExpectNothing();
#pragma once
#include <cerrno>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "tcp/machine.h"
#include "tcp/tcp.h"
#include "tcp/validate.h"

namespace postern::tcp {

inline constexpr uint32_t kIss = 0xfffffff0u, kIrs = 0xffffffe0u;
inline constexpr uint32_t kMss = 1000;
inline constexpr uint8_t kSynAckFlags = kSyn | kAck;

using Blocks = std::vector<std::pair<uint32_t, uint32_t>>;

struct Peer {                                  // what the peer sends
  std::optional<uint32_t> seq = std::nullopt;  // default: behind what it sent last
  std::optional<uint32_t> ack = std::nullopt;  // default: all that we have sent
  uint8_t flags = kAck;
  uint16_t window = 0xffff;
  std::string data = "";
  uint16_t urgent = 0;
  Ecn ecn = Ecn::kNotEct;
  Blocks sack = {};                             // of our numbers
  std::optional<uint32_t> ts = std::nullopt;    // default, if negotiated: the peer's clock
  std::optional<uint32_t> echo = std::nullopt;  // default: our last one
};

struct Want {  // what we must have sent; what is not named may be anything
  std::optional<uint32_t> seq = std::nullopt, ack = std::nullopt;
  std::optional<uint8_t> flags = std::nullopt;  // without PSH
  std::optional<std::string> data = std::nullopt;
  std::optional<uint32_t> bytes = std::nullopt;
  std::optional<uint32_t> window = std::nullopt;  // as on the wire
  std::optional<uint16_t> urgent = std::nullopt;
  std::optional<Ecn> ecn = std::nullopt;
  std::optional<Blocks> sack = std::nullopt;
};

struct Options {
  bool sack = true, timestamps = false, ecn = false;
  uint16_t mss = kMss;
  std::optional<uint8_t> scale = 7;
  uint16_t window = 0xffff;
};

class TcpWorld final : public Host {
 public:
  struct Out {
    SegmentOut segment;
    std::string data;
  };

  Tcb t = {};
  std::vector<Out> wire;
  std::string received;
  std::vector<std::pair<Event, int>> events;
  uint32_t room_max = 1u << 20;
  bool reading = true;       // the program takes what comes at once
  uint32_t wire_room = ~0u;  // segments that Transmit() takes
  uint32_t tx_segs_max = 5000;
  std::map<uint32_t, int> kept;  // packets
  uint64_t steps_looks = 0;      // at segments that came early
  Sysctls host;

  TcpWorld() {
    now_ns = 1'000'000'000'000;
    settings_ = &host;
  }
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;

  // ---- Host
  uint64_t Random() override { return random_ = random_ * 6364136223846793005u + 1; }
  bool Transmit(Tcb&, const SegmentOut& s) override {
    if (wire_room == 0) return false;
    if (wire_room != ~0u) wire_room--;
    Out o{s, ""};
    if (s.bytes != 0) o.data = stream_.substr(s.from.ring, s.bytes);
    if (s.options.has_timestamps) last_ts_ = s.options.ts_value;
    wire.push_back(o);
    return true;
  }
  Cursor Begin(Tcb&) override { return {released_, 0, 0}; }
  uint32_t Available(Tcb&, const Cursor& at, uint32_t limit) override {
    return static_cast<uint32_t>(std::min<uint64_t>(limit, stream_.size() - at.ring));
  }
  Cursor Skip(Tcb&, const Cursor& at, uint32_t bytes) override {
    REQUIRE(at.ring + bytes <= stream_.size());
    return {at.ring + bytes, 0, 0};
  }
  void Release(Tcb&, uint32_t bytes) override {
    released_ += bytes;
    REQUIRE(released_ <= stream_.size());
  }
  bool Ended(Tcb&) override { return ended_; }
  uint32_t Room(Tcb&) override { return room_max - static_cast<uint32_t>(unread_); }
  uint32_t RoomMax(Tcb&) override { return room_max; }
  uint32_t Deliver(Tcb& tcb, const uint8_t* data, uint32_t bytes) override {
    REQUIRE(tcb.rcv_nxt == tcb.irs + 1 + static_cast<uint32_t>(received.size()));
    const uint32_t n = std::min(bytes, Room(tcb));
    received.append(reinterpret_cast<const char*>(data), n);
    if (!reading) unread_ += n;
    return n;
  }
  void Report(Tcb&, Event event, int error) override { events.emplace_back(event, error); }
  bool Keep(uint32_t packet) override {
    kept[packet]++;
    return true;
  }
  void Drop(uint32_t packet) override {
    REQUIRE(kept[packet] == 1);
    kept.erase(packet);
  }
  const uint8_t* PacketAt(uint32_t packet, uint32_t off) override {
    return reinterpret_cast<const uint8_t*>(packets_[packet].data()) + off;
  }
  uint32_t TakeTxSeg() override {
    if (tx_taken_ >= tx_segs_max) return kNone;
    tx_taken_++;
    return Take(tx_, tx_free_);
  }
  void GiveTxSeg(uint32_t i) override {
    tx_taken_--;
    tx_free_.push_back(i);
  }
  TxSeg& TxSegAt(uint32_t i) override { return tx_[i]; }
  uint32_t TakeRxSeg() override { return Take(rx_, rx_free_); }
  void GiveRxSeg(uint32_t i) override { rx_free_.push_back(i); }
  RxSeg& RxSegAt(uint32_t i) override {
    rx_looks_++;
    return rx_[i];
  }

  // ---- the program
  void Write(const std::string& s) {
    stream_ += s;
    Step([&] { Output(t, *this); });
  }
  void Write(uint32_t bytes) { Write(Text(bytes)); }
  // Bytes whose place in the stream can be seen.
  std::string Text(uint32_t bytes) const {
    std::string s(bytes, 'a');
    auto letter = static_cast<uint32_t>(stream_.size() % 23);
    char* const to = s.data();  // megabytes of it, in a build that does not optimise
    for (uint32_t i = 0; i < bytes; i++) {
      to[i] = static_cast<char>('a' + letter);
      letter = letter == 22 ? 0 : letter + 1;
    }
    return s;
  }
  void End() {
    ended_ = true;
    Step([&] { Output(t, *this); });
  }
  void Close() {
    ended_ = true;
    Step([&] { Closed(t, *this); });
  }
  void Read() {
    unread_ = 0;
    Step([&] { Output(t, *this); });
  }
  void Kick() {
    Step([&] { Output(t, *this); });
  }

  // ---- the peer
  void Send(const Peer& p) {
    SegmentIn s;
    s.seq = Seq(kIrs) + p.seq.value_or(peer_next_);
    s.ack = p.ack ? Seq(kIss) + *p.ack : t.snd_nxt;
    s.flags = p.flags;
    s.window = p.window;
    s.urgent = p.urgent;
    s.ecn = p.ecn;
    for (const auto& [left, right] : p.sack)
      s.options.sack[s.options.sack_count++] = {Seq(kIss) + left, Seq(kIss) + right};
    if (options_.timestamps) {
      s.options.has_timestamps = true;
      s.options.ts_value = p.ts.value_or(PeerClock());
      s.options.ts_echo = p.echo.value_or(last_ts_);
    }
    if ((p.flags & kSyn) != 0) {
      s.options.mss = options_.mss;
      s.options.sack_permitted = options_.sack;
      s.options.has_window_scale = options_.scale.has_value();
      s.options.window_scale = options_.scale.value_or(0);
    }
    Deliver(s, p.data);
  }
  void Deliver(SegmentIn s, const std::string& data) {
    packets_.push_back(data);
    s.packet = static_cast<uint32_t>(packets_.size() - 1);
    s.data = reinterpret_cast<const uint8_t*>(packets_.back().data());
    s.bytes = static_cast<uint32_t>(data.size());
    const uint32_t end = static_cast<uint32_t>(s.seq - Seq(kIrs)) + SequenceLength(s);
    if (end > peer_next_ && end < 1u << 30) peer_next_ = end;
    last_in_ = s;
    Step([&] { Input(t, s, *this); });
  }
  uint32_t PeerClock() const { return static_cast<uint32_t>(now_ns / 1'000'000) + 77; }

  // ---- time
  void Advance(uint64_t ns) {
    const uint64_t end = now_ns + ns;
    for (int steps = 0; NextDeadline(t) <= end; steps++) {
      REQUIRE(steps < 10000);
      now_ns = std::max(now_ns, NextDeadline(t));
      Step([&] { Timer(t, *this); });
    }
    now_ns = end;
  }
  // To the next deadline, which has to be within [least, most] from now.
  void Fire(uint64_t least_ns, uint64_t most_ns) {
    const uint64_t at = NextDeadline(t);
    REQUIRE(at != UINT64_MAX);
    INFO("in " << (at - now_ns) / 1000 << " us");
    CHECK(at >= now_ns + least_ns);
    CHECK(at <= now_ns + most_ns);
    now_ns = std::max(now_ns, at);
    Step([&] { Timer(t, *this); });
  }

  // ---- what must have happened
  Out Expect(const Want& w) {
    REQUIRE(!wire.empty());
    const Out o = wire.front();
    wire.erase(wire.begin());
    const SegmentOut& s = o.segment;
    INFO("seq " << (s.seq - Seq(kIss)) << " ack " << (s.ack - Seq(kIrs)) << " bytes " << s.bytes
                << " flags " << int{s.flags} << " window " << s.window);
    if (w.seq) CHECK(s.seq == Seq(kIss) + *w.seq);
    if (w.ack) CHECK(s.ack == Seq(kIrs) + *w.ack);
    if (w.flags) CHECK(int{s.flags} % 256 - (s.flags & kPsh) == *w.flags);
    if (w.data) CHECK(o.data == *w.data);
    if (w.bytes) CHECK(s.bytes == *w.bytes);
    if (w.window) CHECK(s.window == *w.window);
    if (w.urgent) CHECK(s.urgent == *w.urgent);
    if (w.ecn) CHECK(s.ecn == *w.ecn);
    if (w.sack) {
      REQUIRE(s.options.sack_count == w.sack->size());
      for (uint32_t i = 0; i < s.options.sack_count; i++) {
        CHECK(s.options.sack[i].left == Seq(kIrs) + (*w.sack)[i].first);
        CHECK(s.options.sack[i].right == Seq(kIrs) + (*w.sack)[i].second);
      }
    }
    return o;
  }
  void ExpectNothing() { CHECK(wire.size() == 0); }
  void ExpectState(State s) { CHECK(t.state == static_cast<uint32_t>(s)); }
  bool Happened(Event e) const {
    for (const auto& [event, error] : events) {
      if (event == e) return true;
    }
    return false;
  }
  int ErrorOf(Event e) const {
    for (const auto& [event, error] : events) {
      if (event == e) return error;
    }
    return -1;
  }
  void ExpectClosed() {
    ExpectState(State::kClosed);
    REQUIRE(!events.empty());
    CHECK(events.back().first == Event::kClosed);
    CHECK(tx_taken_ == 0);
    CHECK(kept.empty());
  }

  // ---- states to begin with
  void OpenActive(const Options& o = {}) {
    options_ = o;
    Step([&] {
      Open(t, {.mss_max = o.mss, .mss_receive = o.mss, .iss = Seq(kIss), .ecn = o.ecn}, *this);
    });
  }
  // Active, both sides with the options of `o`; the wire is empty afterwards.
  void Establish(const Options& o = {}) {
    OpenActive(o);
    Advance(10 * kMs);
    Send({.seq = 0,
          .ack = 1,
          .flags = static_cast<uint8_t>(kSynAckFlags | (o.ecn ? kEce : 0)),
          .window = o.window});
    ExpectState(State::kEstablished);
    wire.clear();
    t.quick_acks = 0;  // tests say so where they want them
    t.ato_ns = static_cast<uint32_t>(kDelayedAckMinNs);
  }
  void OpenPassiveBy(const Options& o = {}, uint8_t flags = kSyn) {
    options_ = o;
    SegmentIn s;
    s.seq = Seq(kIrs);
    s.flags = flags;
    s.window = o.window;
    s.options.mss = o.mss;
    s.options.sack_permitted = o.sack;
    s.options.has_window_scale = o.scale.has_value();
    s.options.window_scale = o.scale.value_or(0);
    if (o.timestamps) {
      s.options.has_timestamps = true;
      s.options.ts_value = PeerClock();
    }
    peer_next_ = 1;
    Step([&] {
      OpenPassive(t, {.mss_max = o.mss, .mss_receive = o.mss, .iss = Seq(kIss), .ecn = o.ecn}, s,
                  *this);
    });
  }

  template <typename F>
  void Step(F f) {
    const uint64_t before = rx_looks_;
    f();
    steps_looks += rx_looks_ - before;
    const char* wrong = Validate(t, *this);
    INFO((wrong != nullptr ? wrong : "valid"));
    REQUIRE(wrong == nullptr);
  }
  Options options_;

 private:
  uint64_t rx_looks_ = 0;
  template <typename T>
  static uint32_t Take(std::vector<T>& pool, std::vector<uint32_t>& free) {
    if (free.empty()) {
      pool.reserve(8192);  // references stay good
      pool.emplace_back();
      return static_cast<uint32_t>(pool.size() - 1);
    }
    const uint32_t i = free.back();
    free.pop_back();
    return i;
  }

  std::string stream_;
  uint64_t released_ = 0, unread_ = 0;
  bool ended_ = false;
  uint32_t peer_next_ = 0, last_ts_ = 0, tx_taken_ = 0;
  uint64_t random_ = 1;
  std::vector<std::string> packets_;
  std::vector<TxSeg> tx_;
  std::vector<RxSeg> rx_;
  std::vector<uint32_t> tx_free_, rx_free_;
  SegmentIn last_in_;
};

}  // namespace postern::tcp
