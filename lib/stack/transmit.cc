// SPDX-License-Identifier: Apache-2.0
// transmit.cc - a segment on its way out: path, frame, headers, payload copied and summed in one
// pass.
#include <cerrno>

#include "stack/engine.h"
#include "stack/names.h"
#include "wire/packet/tcp_header.h"
#include "wire/packet/udp_header.h"

namespace postern::stack {

// True: c.path is good. False: nothing can be sent now; `error` if that is for good.
bool Engine::FindPath(Conn& c, int& error) {
  error = 0;
  if (c.path.version != 0 && c.mtu_epoch == w_.mtu_epoch && paths_.IsFresh(c.path)) [[likely]]
    return true;
  Path path = {};
  const PathStatus status = paths_.Find(c.local, c.peer, path, error);
  constexpr uint32_t kMtuMax = kFrameBytes - kFrameHead - wire::kEthernetBytesMax;
  uint32_t mtu = path.mtu < kMtuMax ? path.mtu : kMtuMax;
  ApplyLearned(c, mtu);
  const uint32_t mss = mtu - IpBytes(c.local) - wire::kTcpHeaderBytes;
  if (status != PathStatus::kOk) {
    w_.counters.no_path++;
    // A handshake can begin before the neighbour has answered.
    if (status == PathStatus::kWait && path.mtu != 0 && c.path_mss == 0) c.path_mss = mss;
    return false;
  }
  c.path = path;
  const bool changed = c.path_mss != 0 && c.path_mss != mss;
  c.path_mss = mss;
  if (changed) c.flags |= kMtuChanged;
  return true;
}

bool Engine::Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& s) {
  Conn& c = Of(tcb);
  int error = 0;
  if (!FindPath(c, error)) {
    if (error == 0) {
      c.flags |= kNoRoom;
      return false;
    }
    // As if lost on the way: time decides. A handshake ends, as with the kernel.
    if (tcp::StateOf(tcb) == tcp::State::kSynSent) {
      c.flags |= kUnreachable;
      c.path_error = error;
      Wake(IdxOf(c));  // not from within TCP
    }
    return true;
  }
  wire::IpOut ip;
  ip.source = IpOf(c.local);
  ip.destination = IpOf(c.peer);
  ip.family = ip.source.IsV4() ? wire::Family::kIpv4 : wire::Family::kIpv6;
  ip.protocol = wire::kProtocolTcp;
  ip.tos = static_cast<uint8_t>((c.tos & 0xfcu) | static_cast<uint32_t>(s.ecn));
  ip.ttl = c.ttl != 0 ? static_cast<uint8_t>(c.ttl) : c.path.ttl;
  ip.id = c.ip_id++;
  ip.dont_fragment = (c.flags & kMayFragment) == 0;
  ip.flow_label = c.flow_label;
  const wire::Ports ports = {c.local.port, c.peer.port};
  const bool put =
      s.size != 0 ? PutRow(c, ip, ports, s) : PutSegment(c.path.vi, c.path.link, ip, ports, s, &c);
  if (!put) c.flags |= kNoRoom;
  return put;
}

// The frame is the caller's with the next `took_count_--`. False: there is no room now.
inline bool Engine::TakeFrame(uint32_t vi, uint32_t& frame) {
  if (out_count_[vi] == kViBatchMax) Flush();
  if (out_count_[vi] == kViBatchMax) return false;
  if (took_count_ == 0) {
    took_count_ = area_.Take(took_, take_next_);
    if (take_next_ < kViBatchMax) take_next_ *= 2;
  }
  if (took_count_ == 0) {
    w_.counters.no_frame++;
    return false;
  }
  frame = took_[took_count_ - 1];
  return true;
}

bool Engine::PutSegment(uint32_t vi, const wire::LinkOut& link, wire::IpOut& ip,
                        const wire::Ports& ports, const tcp::SegmentOut& s, Conn* payload_of) {
  if (vi >= kAreaVis || vi_[vi] == nullptr) return true;  // gone: as if lost
  uint32_t frame;
  if (!TakeFrame(vi, frame)) return false;
  uint8_t* const start = area_.At(frame, kFrameHead);
  const uint32_t payload = s.probe ? 1 : s.bytes;
  const uint32_t tcp_head = wire::TcpHeaderBytes(s.options);
  uint32_t off = wire::BuildEthernet(start, link, ip.family);
  off += wire::BuildIp(start + off, ip, tcp_head + payload);
  if (kFrameHead + off + tcp_head + payload > kFrameBytes) return true;  // TCP knows the MTU better
  uint8_t* const header = start + off;
  (void)wire::BuildTcp(header, ports, s);
  wire::Checksummer sum;
  if (s.probe) {
    header[tcp_head] = 0;
    sum.Add(header + tcp_head, 1);
  } else if (payload != 0 &&
             (payload_of == nullptr ||
              !streams_.Copy(*payload_of, behind_ = s.from, payload, header + tcp_head, sum))) {
    w_.counters.lost_payload++;
    return true;
  }
  const uint32_t pseudo =
      wire::PseudoSum(ip.family, ip.source, ip.destination, wire::kProtocolTcp, tcp_head + payload);
  took_count_--;
  ViTx& out = out_[vi][out_count_[vi]++];
  out = {frame, static_cast<uint16_t>(kFrameHead), static_cast<uint16_t>(off + tcp_head + payload),
         0, 0};
  if ((vi_[vi]->info().caps & kCapTxChecksum) != 0) {
    out.flags = kTxChecksum;
    out.l4_off = static_cast<uint16_t>(off);
    wire::CompleteTcpOffloaded(header, pseudo);
  } else {
    wire::CompleteTcp(header, tcp_head, pseudo, sum.sum());
  }
  return true;
}

bool Engine::PutDatagram(const Path& path, const udp::DatagramOut& d, wire::IpOut& ip) {
  const uint32_t vi = path.vi;
  if (vi >= kAreaVis || vi_[vi] == nullptr) return false;
  uint32_t frame;
  if (!TakeFrame(vi, frame)) return false;
  uint8_t* const start = area_.At(frame, kFrameHead);
  const uint32_t l4_bytes = wire::kUdpHeaderBytes + d.bytes;
  uint32_t off = wire::BuildEthernet(start, path.link, ip.family);
  off += wire::BuildIp(start + off, ip, l4_bytes);
  if (kFrameHead + off + l4_bytes > kFrameBytes) return false;
  uint8_t* const header = start + off;
  (void)wire::BuildUdp(header, {d.source_port, d.dest_port}, d.bytes);
  wire::Checksummer sum;
  uint8_t* to = header + wire::kUdpHeaderBytes;
  for (size_t i = 0, left = d.bytes; i < d.iov_count && left != 0; i++) {
    const size_t n = d.iov[i].iov_len < left ? d.iov[i].iov_len : left;
    sum.Copy(to, static_cast<const uint8_t*>(d.iov[i].iov_base), n);
    to += n;
    left -= n;
  }
  wire::CompleteUdp(
      header, wire::PseudoSum(ip.family, ip.source, ip.destination, wire::kProtocolUdp, l4_bytes),
      sum.sum());
  took_count_--;
  out_[vi][out_count_[vi]++] = {frame, static_cast<uint16_t>(kFrameHead),
                                static_cast<uint16_t>(off + l4_bytes), 0, 0};
  return true;
}

void Engine::AnswerReset(const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi) {
  tcp::SegmentOut out;
  if (!tcp::ResetFor(s, out)) return;
  const pstn_addr local = NameOf(p.ip.destination, 0), peer = NameOf(p.ip.source, 0);
  Path path = {};
  int error = 0;
  if (paths_.Find(local, peer, path, error) != PathStatus::kOk) return;
  (void)vi;
  wire::IpOut ip;
  ip.source = p.ip.destination;
  ip.destination = p.ip.source;
  ip.family = p.ip.family;
  ip.protocol = wire::kProtocolTcp;
  ip.ttl = path.ttl;
  w_.counters.resets_out++;
  (void)PutSegment(path.vi, path.link, ip, {p.destination_port, p.source_port}, out, nullptr);
}

// ---------------------------------------------------------------- frames

void Engine::TakeCompleted() {
  for (uint32_t v = 0; v < vi_end_; v++) {
    Vi* const vi = vi_[v];
    if (vi == nullptr) continue;
    uint32_t frames[kViBatchMax];
    uint32_t n;
    do {
      n = vi->Completed(frames, kViBatchMax);
      if (n != 0) area_.Give(frames, n);
    } while (n == kViBatchMax);
  }
}

void Engine::Refill() {
  for (uint32_t v = 0; v < vi_end_; v++) {
    Vi* const vi = vi_[v];
    if (vi == nullptr) continue;
    uint32_t room = vi->RefillRoom();
    constexpr uint32_t kEnough = 32;  // not for each frame
    while (room >= kEnough) {
      uint32_t frames[kViBatchMax];
      const uint32_t n = area_.Take(frames, room < kViBatchMax ? room : kViBatchMax);
      if (n == 0) break;
      const uint32_t took = vi->Refill(frames, n);
      if (took < n) area_.Give(frames + took, n - took);
      if (took == 0) break;
      room -= took;
    }
  }
}

void Engine::Flush() {
  for (uint32_t v = 0; v < vi_end_; v++) {
    const uint32_t n = out_count_[v];
    if (n == 0 || vi_[v] == nullptr) continue;
    const uint32_t sent = vi_[v]->Send(out_[v], n);
    w_.counters.packets_out += sent;
    for (uint32_t i = sent; i < n; i++) area_.Give(out_[v][i].frame);  // lost, as on any full queue
    w_.counters.no_tx_room += n - sent;
    out_count_[v] = 0;
    (void)vi_[v]->Kick();
  }
  if (took_count_ != 0) area_.Give(took_, took_count_);
  took_count_ = 0;
  take_next_ = 1;
}

}  // namespace postern::stack
