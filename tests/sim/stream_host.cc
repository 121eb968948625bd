// SPDX-License-Identifier: Apache-2.0
// stream_host.cc - streams, kept packets and tables of a tcp::Host, in plain vectors.
#include "stream_host.h"

#include "tcp/validate.h"

namespace postern::sim {

StreamHost::StreamHost(const HostLimits& limits)
    : tx_segs_(limits.tx_segs), rx_segs_(limits.rx_segs), packets_limit_(limits.packets) {}

// ---- packets

uint32_t StreamHost::PacketIn(std::vector<uint8_t> bytes) {
  if (packets_free_.empty()) {
    packets_free_.push_back(static_cast<uint32_t>(packets_.size()));
    packets_.emplace_back();
  }
  const uint32_t name = packets_free_.back();
  packets_free_.pop_back();
  packets_[name].bytes = std::move(bytes);
  packets_[name].refs = 1;
  return name;
}

void StreamHost::PacketDone(uint32_t name) { Unref(name); }

bool StreamHost::IsPacket(uint32_t name) {
  if (name < packets_.size() && packets_[name].refs != 0) return true;
  Problem("a packet is used that is not there");
  return false;
}

void StreamHost::Unref(uint32_t name) {
  if (!IsPacket(name) || --packets_[name].refs != 0) return;
  std::vector<uint8_t>().swap(packets_[name].bytes);
  packets_free_.push_back(name);
}

bool StreamHost::Keep(uint32_t packet) {
  const uint32_t held = static_cast<uint32_t>(packets_.size() - packets_free_.size());
  if (!IsPacket(packet) || held > packets_limit_) return false;
  packets_[packet].refs++;
  packets_most_ = std::max(packets_most_, held);
  return true;
}

void StreamHost::Drop(uint32_t packet) { Unref(packet); }

const uint8_t* StreamHost::PacketAt(uint32_t packet, uint32_t off) {
  static const uint8_t kNothing = 0;
  if (!IsPacket(packet) || off > packets_[packet].bytes.size()) {
    Problem("a packet is read behind its end");
    return &kNothing;
  }
  return packets_[packet].bytes.data() + off;
}

// ---- the program's stream

tcp::Cursor StreamHost::Begin(tcp::Tcb& tcb) {
  tcp::Cursor at;
  at.ring = Of(tcb).tx.begin();
  return at;
}

uint32_t StreamHost::Available(tcp::Tcb& tcb, const tcp::Cursor& at, uint32_t limit) {
  const ByteRing& tx = Of(tcb).tx;
  if (at.ring < tx.begin() || at.ring > tx.end()) {
    Problem("a cursor points to bytes that were released, or never written");
    return 0;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(limit, tx.end() - at.ring));
}

tcp::Cursor StreamHost::Skip(tcp::Tcb& tcb, const tcp::Cursor& at, uint32_t bytes) {
  if (Available(tcb, at, bytes) != bytes) Problem("a cursor skips bytes that are not there");
  tcp::Cursor next = at;
  next.ring += bytes;
  return next;
}

void StreamHost::Release(tcp::Tcb& tcb, uint32_t bytes) {
  Conn& conn = Of(tcb);
  if (bytes > conn.tx.size()) Problem("more is released than was written");
  conn.tx.Drop(bytes);
}

bool StreamHost::Ended(tcp::Tcb& tcb) { return Of(tcb).tx_ended; }

void StreamHost::CopyPayload(Conn& conn, const tcp::SegmentOut& segment, uint8_t* out) {
  if (segment.bytes == 0) return;
  if (segment.probe) {
    memset(out, 0, segment.bytes);
  } else if (Available(conn, segment.from, segment.bytes) != segment.bytes) {
    Problem("a segment is sent of bytes that are not there");
    memset(out, 0, segment.bytes);
  } else {
    conn.tx.Peek(segment.from.ring, out, segment.bytes);
  }
}

// ---- what was received

uint32_t StreamHost::Room(tcp::Tcb& tcb) { return static_cast<uint32_t>(Of(tcb).rx.room()); }
uint32_t StreamHost::RoomMax(tcp::Tcb& tcb) { return static_cast<uint32_t>(Of(tcb).rx.capacity()); }

uint32_t StreamHost::Deliver(tcp::Tcb& tcb, const uint8_t* data, uint32_t bytes) {
  Conn& conn = Of(tcb);
  if (conn.fin) Problem("data are delivered after the peer's FIN");
  if (conn.closed) Problem("data are delivered after the end");
  return static_cast<uint32_t>(conn.rx.Put(data, bytes));
}

void StreamHost::Report(tcp::Tcb& tcb, tcp::Event event, int error) {
  Conn& conn = Of(tcb);
  if (conn.closed) Problem("something is reported after kClosed");
  switch (event) {
    case tcp::Event::kConnected:
      if (conn.connected) Problem("kConnected twice");
      conn.connected = true;
      break;
    case tcp::Event::kFin:
      if (conn.fin) Problem("kFin twice");
      if (!conn.connected) Problem("kFin before kConnected");
      conn.fin = true;
      break;
    case tcp::Event::kReset:
      if (conn.error != 0) Problem("kReset twice");
      if (error == 0) Problem("kReset without a reason");
      conn.error = error;
      break;
    case tcp::Event::kSoftError:
      conn.soft_error = error;
      break;
    case tcp::Event::kAllAcked:
      conn.all_acked_count++;
      if (conn.snd_una != conn.snd_nxt) Problem("kAllAcked, and something is under way");
      break;
    case tcp::Event::kUrgent:
      break;
    case tcp::Event::kClosed:
      conn.closed = true;
      break;
  }
  OnReport(conn, event, error);
}

// ---- checks

// Validate() walks all that is under way: with long chains only now and then, so that a run stays
// linear in what it sends.
void StreamHost::Check(Conn& conn) {
  constexpr uint32_t kShort = 32;
  if (checks_++ % 64 == 0 || conn.tx_count + conn.rx_count < kShort) {
    if (const char* wrong = tcp::Validate(conn, *this); wrong != nullptr) Problem(wrong);
  }
  const bool is_closed = tcp::StateOf(conn) == tcp::State::kClosed;
  if (conn.closed && !is_closed) Problem("kClosed was reported, but the state is another");
  if (is_closed) {
    if (conn.tx_count != 0 || conn.rx_count != 0) Problem("CLOSED, and segments are still held");
    if (tcp::NextDeadline(conn) != UINT64_MAX) Problem("CLOSED, and a timer runs");
    return;
  }
  if (tcp::After(conn.snd_una, conn.snd_nxt)) Problem("snd_una is behind snd_nxt");
  if (conn.tx_count > tcp::kTxSegsMax) Problem("too many segments under way");
  if (conn.rx_count > tcp::kRxSegsMax) Problem("too many segments kept");
  const uint32_t flight = static_cast<uint32_t>(conn.snd_nxt - conn.snd_una);
  if (conn.sacked_bytes > flight || conn.lost_bytes > flight || conn.retrans_bytes > flight)
    Problem("more is SACKed, lost or sent again than is under way");
  if (conn.sacked_bytes + conn.lost_bytes > flight) Problem("SACKed and lost at once");
  if (conn.cc.cwnd_bytes == 0 && conn.mss_bytes != 0 && conn.connected)
    Problem("a congestion window of nothing");
  if (tcp::StateOf(conn) == tcp::State::kTimeWait && tcp::NextDeadline(conn) == UINT64_MAX)
    Problem("TIME_WAIT for ever");
}

void StreamHost::CheckEmpty() {
  if (tx_segs_.taken() != 0) Problem("TxSegs were not given back");
  if (rx_segs_.taken() != 0) Problem("RxSegs were not given back");
  if (packets_.size() != packets_free_.size()) Problem("packets were not given back");
}

}  // namespace postern::sim
