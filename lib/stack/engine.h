// SPDX-License-Identifier: Apache-2.0
// engine.h - runs a stack's connections over its VIs: frames in, TCP, frames out, timers.
//
// An Engine is one process's view of the wire segment and the packet area; the holder of the
// segment's lock runs it, by Poll(). It knows addresses and packets. What a program's end of a
// connection is, it asks of Streams (lib/offhost/wire.cc: rings; tests: plain memory); where
// packets go, of Paths (route_paths.h; tests: one wire). See docs/adr/0010.
#pragma once
#include "base/clock.h"
#include "base/lock.h"
#include "stack/datagrams.h"
#include "stack/run.h"
#include "stack/wire_state.h"
#include "tcp/tcp.h"
#include "vi/packet_area.h"
#include "vi/vi.h"
#include "wire/checksum.h"
#include "wire/packet/packet.h"
#include "wire/packet/tcp_header.h"

namespace postern::stack {

// What the program's end wants of TCP, besides sending what is there.
inline constexpr uint32_t kEndAborted = 1;  // RST
inline constexpr uint32_t kEndClosed = 2;   // no program reads any more

// What a program has asked for before it connects, besides what Look() tells. 0: the default.
struct OpenWish {
  tcp::Settings settings;
  uint32_t tos, ttl;
};

// The program's ends. All calls come from within Poll(), under the lock. A connection that is in
// its handshake and passive has none yet (owner PSTN_NONE): only the rooms are asked for then,
// which are what the program's end will have.
class Streams {
 public:
  virtual tcp::Cursor Begin(Conn& c) = 0;
  virtual uint32_t Available(Conn& c, const tcp::Cursor& at, uint32_t limit) = 0;
  virtual tcp::Cursor Skip(Conn& c, const tcp::Cursor& at, uint32_t bytes) = 0;
  // Copies `bytes` from `at` on, which are there; `at` is behind them then. False: they are not (a
  // peer that lies, to us).
  virtual bool Copy(Conn& c, tcp::Cursor& at, uint32_t bytes, uint8_t* to,
                    wire::Checksummer& sum) = 0;
  virtual void Release(Conn& c, uint32_t bytes) = 0;
  virtual bool MoreFollows(Conn&, uint32_t /*ahead*/) { return false; }
  virtual bool Ended(Conn& c) = 0;
  virtual uint32_t Room(Conn& c) = 0;
  virtual uint32_t RoomMax(Conn& c) = 0;
  virtual uint32_t Deliver(Conn& c, const uint8_t* data, uint32_t bytes) = 0;
  virtual uint32_t DeliverRun(Conn& c, const tcp::SegmentIn& run, uint32_t skip, uint32_t bytes) {
    return tcp::EachPart(run, skip, bytes,
                         [&](const uint8_t* data, uint32_t n) { return Deliver(c, data, n); });
  }
  virtual void Report(Conn& c, tcp::Event event, int error) = 0;
  // kEnd* of the program's end; and the options as they are now go into c.tcb.settings.
  virtual uint32_t Look(Conn& c) = 0;

  // A passive connection is through its handshake: the program may accept it. False: it can't be
  // had; it is reset.
  virtual bool Accept(Conn& c, uint32_t idx, const Listener& l) = 0;
  // Whether the accept queue has room for one more.
  virtual bool MayAccept(const Listener& l) = 0;
  // Whether the listener is still there.
  virtual bool Listens(const Listener& l) = 0;
  // TCP_DEFER_ACCEPT: how long its clients may take for their first data; 0: they need not send.
  virtual uint32_t DeferSeconds(const Listener&) { return 0; }
  // Connections of which a process has said that there is news: Engine::Wake() for each.
  virtual void Collect(class Engine& engine) = 0;
  // Whether there is such news; without the lock.
  virtual bool HasNews() = 0;
  // Whether this process can get at all programs' ends. Under the lock it does not wait for that.
  virtual bool Reaches() { return true; }

  // There is something to be received at a UDP socket, or an error.
  virtual void DatagramCame(const DatagramSocket&) {}
  // It is the kernel's from now on (DatagramSocket::is_left): its filters are not needed any more.
  virtual void DatagramsLeave(DatagramSocket&) {}

 protected:
  ~Streams() = default;
};

enum class PathStatus : uint8_t {
  kOk,
  kWait,  // the neighbour is being asked for
  kDead,  // `error`
};

class Paths {
 public:
  // True: `path` is as good as when it was found.
  virtual bool IsFresh(const Path& path) = 0;
  virtual PathStatus Find(const pstn_addr& local, const pstn_addr& peer, Path& path,
                          int& error) = 0;
  // The same for UDP. If `local` has no address it gets the one that the packet is to be from.
  virtual PathStatus FindDatagram(pstn_addr&, const pstn_addr&, Path&, int&) {
    return PathStatus::kDead;
  }

 protected:
  ~Paths() = default;
};

// Where the payload of a kept packet lies, written in front of the packet, where its frame is free.
struct KeptHead {
  uint32_t data_off;
};
inline constexpr uint32_t kHeadOff = 0;
// In a frame to be sent, before the Ethernet header: the payload's line is its own.
inline constexpr uint32_t kFrameHead = 64;

// Segments of a row, at most: two of them are a batch of frames; or, where a VI takes them as one,
// what a packet of IP's can be, of Ethernet's segments (1,448 bytes).
inline constexpr uint32_t kRowFrames = kViBatchMax / 2, kRowLarge = 45;

// What is called by a part of the engine, or by TCP (tcp::Host), is called under the lock, too; of
// these the analysis checks those that have PSTN_REQUIRES().
class PSTN_CAPABILITY("engine") Engine final : public tcp::Host {
 public:
  Engine(WireState& state, Area& area, Streams& streams, Paths& paths)
      : w_(state), area_(area), streams_(streams), paths_(paths) {
    settings_ = &state.settings.tcp;
    row_max_ = kRowFrames;
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `idx` as in the area. The object stays the caller's.
  void SetVi(uint32_t idx, Vi* vi) {
    vi_[idx % kAreaVis] = vi;
    if (vi != nullptr && TakesLarge(idx % kAreaVis)) row_max_ = kRowLarge;
    if (vi_end_ <= idx % kAreaVis) vi_end_ = idx % kAreaVis + 1;
  }

  // Everything that is due, if no other thread is at it. How many packets and timers there were; 0:
  // nothing, or another thread has done it.
  uint32_t Poll(uint64_t now) PSTN_EXCLUDES(this);
  // The lock, whose last holder may have died. Nothing under it waits for posternd or any other
  // process: all connections of the family would stand still (CheckMayWait, errands.h).
  void Acquire() PSTN_ACQUIRE() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    const bool from_dead = Lock(w_.lock);
    t_locks.engine++;
    if (from_dead) Recover(MonotonicNs());
  }
  // Before this process uses the lock: a thread of the image before an exec() may have left it.
  void MendAfterExec() PSTN_EXCLUDES(this) PSTN_NO_THREAD_SAFETY_ANALYSIS;
  void Release() PSTN_RELEASE() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    t_locks.engine--;
    Unlock(w_.lock);
  }
  // As AssertHeld() of base/lock.h.
  void AssertHeld() const PSTN_ASSERT_CAPABILITY(this) {}
  // The same under a lock that the caller has, until there was nothing left at its last look, or
  // `rounds` are over.
  uint32_t PollLocked(uint64_t now, uint32_t rounds = 8) PSTN_REQUIRES(this);
  // When Poll() has to be called at the latest, if no packet comes and no thread is woken.
  uint64_t NextDeadline() const { return WheelNext(w_.wheel); }
  // Whether a VI has packets; without the lock.
  bool Pending();
  // Whether Poll() would find anything to do.
  bool IsDue(uint64_t now) {
    return Pending() || streams_.HasNews() || LoadRelaxed(w_.ready_head) != 0 ||
           WheelNext(w_.wheel) <= now;
  }

  // Connections that a process has to go on with; TIME_WAIT is none. Without the lock: about so
  // many.
  uint32_t Unfinished() const;

  // ---- under the lock
  void Wake(uint32_t conn) PSTN_REQUIRES(this);  // there is news of the program's end
  // Whether a connection has these names; it may be in TIME_WAIT.
  bool IsTaken(const pstn_addr& local, const pstn_addr& peer) PSTN_REQUIRES(this) {
    return FindConn(local, peer) != PSTN_NONE;
  }
  // Active open: SYN_SENT, or PSTN_NONE and `error`.
  uint32_t Connect(const pstn_addr& local, const pstn_addr& peer, uint32_t owner, uint64_t now,
                   int& error, const OpenWish& wish = {}) PSTN_REQUIRES(this);
  // A place in the port's table, or PSTN_NONE.
  uint32_t Listen(const pstn_addr& local, uint32_t family, uint32_t v6only, uint32_t backlog,
                  uint32_t owner, uint32_t owner_gen) PSTN_REQUIRES(this);
  void Unlisten(uint32_t listener) PSTN_REQUIRES(this);  // those in handshakes are reset
  // Whether connections of a listener that has ended still come by its filters.
  bool NeedsFilter(const Listener& l) const PSTN_REQUIRES(this);
  // After Unlisten(), when its filters are gone.
  void FreeListener(uint32_t listener) PSTN_REQUIRES(this);
  Vi* ViAt(uint32_t idx) { return vi_[idx % kAreaVis]; }
  Conn& ConnAt(uint32_t idx) { return w_.conns[idx % kConns]; }
  uint32_t IdxOf(const Conn& c) const { return static_cast<uint32_t>(&c - w_.conns); }
  WireState& state() { return w_; }
  Datagrams& datagrams() { return datagrams_; }
  // Mends what a dead holder of the lock has left. Acquire() does it by itself.
  void Recover(uint64_t now) PSTN_REQUIRES(this);

  // ---- tcp::Host
  uint64_t Random() PSTN_REQUIRES(this) override;
  bool MayChallenge() PSTN_REQUIRES(this) override;
  bool Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& s) PSTN_REQUIRES(this) override;
  tcp::Cursor Begin(tcp::Tcb& t) override {
    return HasEnd(t) ? streams_.Begin(Of(t)) : tcp::Cursor{};
  }
  uint32_t Available(tcp::Tcb& t, const tcp::Cursor& at, uint32_t limit) override {
    return HasEnd(t) ? streams_.Available(Of(t), at, limit) : 0;
  }
  tcp::Cursor Skip(tcp::Tcb& t, const tcp::Cursor& at, uint32_t bytes) override {
    return HasEnd(t) ? streams_.Skip(Of(t), at, bytes) : at;
  }
  void Release(tcp::Tcb& t, uint32_t bytes) override {
    if (HasEnd(t)) streams_.Release(Of(t), bytes);
  }
  bool MoreFollows(tcp::Tcb& t, uint32_t ahead) override {
    return HasEnd(t) && streams_.MoreFollows(Of(t), ahead);
  }
  bool Ended(tcp::Tcb& t) override { return HasEnd(t) && streams_.Ended(Of(t)); }
  uint32_t Room(tcp::Tcb& t) override { return streams_.Room(Of(t)); }
  uint32_t RoomMax(tcp::Tcb& t) override { return streams_.RoomMax(Of(t)); }
  uint32_t Deliver(tcp::Tcb& t, const uint8_t* data, uint32_t bytes) override {
    return HasEnd(t) ? streams_.Deliver(Of(t), data, bytes) : 0;
  }
  uint32_t DeliverRun(tcp::Tcb& t, const tcp::SegmentIn& run, uint32_t skip,
                      uint32_t bytes) override {
    return HasEnd(t) ? streams_.DeliverRun(Of(t), run, skip, bytes) : 0;
  }
  void Report(tcp::Tcb& t, tcp::Event event, int error) PSTN_REQUIRES(this) override;
  bool Keep(uint32_t packet) PSTN_REQUIRES(this) override;
  void Drop(uint32_t packet) override { area_.Give(packet); }
  const uint8_t* PacketAt(uint32_t packet, uint32_t off) PSTN_REQUIRES(this) override;
  uint32_t TakeTxSeg() PSTN_REQUIRES(this) override;
  void GiveTxSeg(uint32_t idx) PSTN_REQUIRES(this) override;
  tcp::TxSeg& TxSegAt(uint32_t idx) override { return w_.tx[idx % kTxSegs]; }
  uint32_t TakeRxSeg() PSTN_REQUIRES(this) override;
  void GiveRxSeg(uint32_t idx) PSTN_REQUIRES(this) override;
  tcp::RxSeg& RxSegAt(uint32_t idx) override { return w_.rx[idx % kRxSegs]; }

 private:
  friend class Datagrams;

  static bool HasEnd(tcp::Tcb& t) { return Of(t).owner != PSTN_NONE; }
  static Conn& Of(tcp::Tcb& t) { return reinterpret_cast<Conn&>(t); }
  WheelLink& LinkAt(uint32_t idx) { return w_.conns[idx].wheel; }
  auto Timers() {
    return WheelView(w_.wheel, [this](uint32_t i) -> WheelLink& { return LinkAt(i); });
  }

  // demux.cc
  uint32_t FindConn(const pstn_addr& local, const pstn_addr& peer) PSTN_REQUIRES(this);
  uint32_t FindListener(const pstn_addr& local, uint32_t hash) PSTN_REQUIRES(this);
  uint32_t NewConn(const pstn_addr& local, const pstn_addr& peer) PSTN_REQUIRES(this);
  void FreeConn(uint32_t idx) PSTN_REQUIRES(this);
  tcp::OpenArgs ArgsFor(const Conn& c) PSTN_REQUIRES(this);
  uint32_t HashOf(const pstn_addr& local, const pstn_addr& peer) const PSTN_REQUIRES(this);
  void Enter(uint32_t idx) PSTN_REQUIRES(this);
  void Leave(uint32_t idx) PSTN_REQUIRES(this);

  // recover.cc
  void GiveUp(Conn& c) PSTN_REQUIRES(this);
  bool ClaimSegments(Conn& c) PSTN_REQUIRES(this);

  // frame_in.cc
  uint32_t ReceiveAll() PSTN_REQUIRES(this);
  enum class Behind : uint8_t { kNothing, kMore };  // frames that came with it
  void Frame(const ViRx& rx, uint32_t vi, Behind behind) PSTN_REQUIRES(this);
  void Segment(const wire::Packet& p, tcp::SegmentIn& s, uint32_t vi, Behind behind)
      PSTN_REQUIRES(this);
  void AnswerReset(const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi) PSTN_REQUIRES(this);
  uint32_t KnownOf(const ViRx& rx, uint32_t vi);
  bool TakesLarge(uint32_t vi) { return (vi_[vi]->info().caps & kCapLarge) != 0; }

  void NoteData(uint32_t packet, uint32_t off) PSTN_REQUIRES(this);

  // runs.cc
  void BeginRun(uint32_t idx, const wire::Packet& p, const tcp::SegmentIn& s) PSTN_REQUIRES(this);
  bool GoesOn(const wire::Packet& p, const tcp::SegmentIn& s) PSTN_REQUIRES(this);
  void EndRun() PSTN_REQUIRES(this);

  // large.cc
  // The packet that `rx` begins with, of at most `count` frames: of how many. They are given back.
  uint32_t Large(const ViRx* rx, uint32_t count, uint32_t vi) PSTN_REQUIRES(this);
  bool ReadLarge(const ViRx* rx, uint32_t frames, uint32_t vi, LargePacket& large)
      PSTN_REQUIRES(this);
  bool TakeAsRun(const LargePacket& large) PSTN_REQUIRES(this);
  void TakeApart(const LargePacket& large, uint32_t vi) PSTN_REQUIRES(this);

  // passive.cc
  // `iss`: one that the last connection of these names, in TIME_WAIT, has left us; null: there was
  // none.
  void Syn(uint32_t listener, const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi,
           const tcp::Seq* iss) PSTN_REQUIRES(this);
  uint32_t NewEmbryo(uint32_t listener, const wire::Packet& p) PSTN_REQUIRES(this);
  void AnswerByCookie(uint32_t listener, const wire::Packet& p, tcp::SegmentIn s)
      PSTN_REQUIRES(this);
  bool TakeCookie(uint32_t listener, const wire::Packet& p, const tcp::SegmentIn& s)
      PSTN_REQUIRES(this);

  // fragments.cc
  void Fragment(const wire::Packet& p, const ViRx& rx, uint32_t vi) PSTN_REQUIRES(this);
  void Whole(const Gathered& whole, uint32_t vi) PSTN_REQUIRES(this);
  void Piecewise(const Gathered& whole, const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi)
      PSTN_REQUIRES(this);

  // errors.cc
  void IcmpError(const uint8_t* frame, const wire::Packet& p, uint32_t vi) PSTN_REQUIRES(this);
  void TooBig(Conn& c, uint32_t mtu) PSTN_REQUIRES(this);
  LearnedMtu& LearnedSlot(const pstn_addr& peer) PSTN_REQUIRES(this);
  void ApplyLearned(Conn& c, uint32_t& mtu) PSTN_REQUIRES(this);
  void ExpireLearned() PSTN_REQUIRES(this);
  void ForgetLearned() PSTN_REQUIRES(this);

  // transmit.cc
  bool FindPath(Conn& c, int& error) PSTN_REQUIRES(this);
  bool TakeFrame(uint32_t vi, uint32_t& frame) PSTN_REQUIRES(this);
  bool PutSegment(uint32_t vi, const wire::LinkOut& link, wire::IpOut& ip, const wire::Ports& ports,
                  const tcp::SegmentOut& s, Conn* payload_of) PSTN_REQUIRES(this);
  // transmit_row.cc
  bool PutRow(Conn& c, wire::IpOut& ip, const wire::Ports& ports, const tcp::SegmentOut& s)
      PSTN_REQUIRES(this);
  bool TakeFrames(uint32_t vi, uint32_t count) PSTN_REQUIRES(this);
  bool PutLargeRow(Conn& c, wire::IpOut& ip, const wire::Ports& ports, const tcp::SegmentOut& s)
      PSTN_REQUIRES(this);
  void PutLarge(Conn& c, const wire::IpOut& ip, const wire::Ports& ports, const tcp::SegmentOut& s)
      PSTN_REQUIRES(this);
  // The whole payload of `d`, which the caller knows to fit. False: no room now.
  bool PutDatagram(const Path& path, const udp::DatagramOut& d, wire::IpOut& ip)
      PSTN_REQUIRES(this);
  void Flush() PSTN_REQUIRES(this);
  void Refill() PSTN_REQUIRES(this);
  void TakeCompleted() PSTN_REQUIRES(this);

  // engine.cc
  void Hold(uint32_t idx) { StoreRelaxed(w_.current, idx + 1); }
  void LetGo() { StoreRelaxed(w_.current, 0u); }
  // After any call into TCP: its next deadline, or its end.
  void Touch(uint32_t idx) PSTN_REQUIRES(this);
  uint32_t RunReady() PSTN_REQUIRES(this);
  uint32_t RunTimers() PSTN_REQUIRES(this);
  bool IsMore() PSTN_REQUIRES(this);

  WireState& w_ PSTN_GUARDED_BY(this);
  Area& area_;
  Streams& streams_;
  Paths& paths_;
  Datagrams datagrams_{*this};
  Vi* vi_[kAreaVis] = {};
  uint32_t vi_end_ = 0;  // behind the last one that was ever set
  ViTx out_[kAreaVis][kViBatchMax];
  uint32_t out_count_[kAreaVis] = {};
  // Free frames, taken in batches that grow within a round: most rounds send one packet, and what
  // is left over has to be given back for others to have.
  uint32_t took_[kViBatchMax];
  uint32_t took_count_ = 0, take_next_ = 1;
  Run run_ PSTN_GUARDED_BY(this);
  tcp::Cursor behind_;   // what PutSegment() has copied
  bool full_ = false;    // a VI had more packets than are taken in one round
  bool closed_ = false;  // kClosed was reported in the present call
};

}  // namespace postern::stack
