// SPDX-License-Identifier: Apache-2.0
// stream_host.h - the half of a tcp::Host that is memory: streams, kept packets, tables; and the
// checks of how TCP uses them.
//
// What is left to the derived class is the wire, the time, the randomness, and what a report means.
// Everything is counted and bounded; a broken promise of TCP's is kept as the first problem, since
// code without exceptions has to be got out of first. Simulator and packet scripts build on it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "byte_ring.h"
#include "tcp/tcp.h"

namespace postern::sim {

// A connection and the program's side of it. Positions in its streams count from 0, without SYN.
struct Conn : tcp::Tcb {
  Conn() : tcp::Tcb{} {}

  ByteRing tx;  // begins with the first byte that is not released
  ByteRing rx;
  bool tx_ended = false;
  bool unread_gone = false;  // the program has closed: what is left in rx is nobody's

  // What TCP has reported.
  bool connected = false, fin = false, closed = false;
  uint64_t all_acked_count = 0;
  int error = 0, soft_error = 0;
  bool was_time_wait = false;
};

struct HostLimits {
  uint32_t tx_segs = 8192, rx_segs = 4096, packets = 8192;
};

class StreamHost : public tcp::Host {
 public:
  explicit StreamHost(const HostLimits& limits);

  // ---- what the derived class does with packets: one that comes in has a name until it is done
  uint32_t PacketIn(std::vector<uint8_t> bytes);
  const std::vector<uint8_t>& packet(uint32_t name) const { return packets_[name].bytes; }
  void PacketDone(uint32_t name);  // kept by TCP, or free now

  // Payload of an outgoing segment.
  void CopyPayload(Conn& conn, const tcp::SegmentOut& segment, uint8_t* out);

  // Called after each entry into TCP: what must hold between any two of them.
  void Check(Conn& conn);
  // All connections are CLOSED: everything has to be back.
  void CheckEmpty();
  const std::string& problem() const { return problem_; }
  void Problem(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  uint32_t tx_segs_most() const { return tx_segs_.most; }
  uint32_t rx_segs_most() const { return rx_segs_.most; }
  uint32_t packets_most() const { return packets_most_; }

  // ---- tcp::Host
  tcp::Cursor Begin(tcp::Tcb& tcb) override;
  uint32_t Available(tcp::Tcb& tcb, const tcp::Cursor& at, uint32_t limit) override;
  tcp::Cursor Skip(tcp::Tcb& tcb, const tcp::Cursor& at, uint32_t bytes) override;
  void Release(tcp::Tcb& tcb, uint32_t bytes) override;
  bool Ended(tcp::Tcb& tcb) override;
  uint32_t Room(tcp::Tcb& tcb) override;
  uint32_t RoomMax(tcp::Tcb& tcb) override;
  uint32_t Deliver(tcp::Tcb& tcb, const uint8_t* data, uint32_t bytes) override;
  void Report(tcp::Tcb& tcb, tcp::Event event, int error) override;
  bool Keep(uint32_t packet) override;
  void Drop(uint32_t packet) override;
  const uint8_t* PacketAt(uint32_t packet, uint32_t off) override;
  uint32_t TakeTxSeg() override { return tx_segs_.Take(); }
  void GiveTxSeg(uint32_t idx) override { GiveTo(tx_segs_, idx); }
  tcp::TxSeg& TxSegAt(uint32_t idx) override { return At(tx_segs_, idx); }
  uint32_t TakeRxSeg() override { return rx_segs_.Take(); }
  void GiveRxSeg(uint32_t idx) override { GiveTo(rx_segs_, idx); }
  tcp::RxSeg& RxSegAt(uint32_t idx) override { return At(rx_segs_, idx); }

 protected:
  ~StreamHost() = default;
  static Conn& Of(tcp::Tcb& tcb) { return static_cast<Conn&>(tcb); }
  // What the connection's program may want to know; after the fields of Conn were set.
  virtual void OnReport(Conn& conn, tcp::Event event, int error) = 0;

 private:
  template <typename Seg>
  struct Table {
    std::vector<Seg> segs;
    std::vector<uint32_t> free;
    std::vector<uint8_t> used;
    uint32_t most = 0;
    explicit Table(uint32_t count) : segs(count), used(count) {
      for (uint32_t i = count; i-- > 0;) free.push_back(i);
    }
    uint32_t taken() const { return static_cast<uint32_t>(segs.size() - free.size()); }
    uint32_t Take() {
      if (free.empty()) return tcp::kNone;
      const uint32_t idx = free.back();
      free.pop_back();
      used[idx] = 1;
      segs[idx] = Seg{};
      most = std::max(most, taken());
      return idx;
    }
  };
  template <typename Seg>
  void GiveTo(Table<Seg>& table, uint32_t idx) {
    if (idx >= table.segs.size() || table.used[idx] == 0) {
      Problem("a segment is given back that was not taken");
      return;
    }
    table.used[idx] = 0;
    table.free.push_back(idx);
  }
  template <typename Seg>
  Seg& At(Table<Seg>& table, uint32_t idx) {
    if (idx >= table.segs.size() || table.used[idx] == 0) {
      Problem("a segment is used that was not taken");
      return table.segs[0];
    }
    return table.segs[idx];
  }

  struct Packet {
    std::vector<uint8_t> bytes;
    uint32_t refs = 0;  // 1 while it comes in, 1 for each Keep
  };
  bool IsPacket(uint32_t name);
  void Unref(uint32_t name);

  Table<tcp::TxSeg> tx_segs_;
  Table<tcp::RxSeg> rx_segs_;
  std::vector<Packet> packets_;
  std::vector<uint32_t> packets_free_;
  uint32_t packets_limit_;
  uint32_t packets_most_ = 0;
  uint64_t checks_ = 0;
  std::string problem_;
};

}  // namespace postern::sim
