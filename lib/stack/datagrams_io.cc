// SPDX-License-Identifier: Apache-2.0
// datagrams_io.cc - datagrams on their way: from a frame into a socket's queue, from a program into
// a frame, and what ICMP says of them.
#include <cerrno>

#include <sys/socket.h>

#include "stack/engine.h"

namespace postern::stack {
// ---------------------------------------------------------------- in

void Datagrams::Frame(const wire::Packet& p, const ViRx& rx, uint32_t vi) {
  udp::DatagramIn in;
  in.source = p.ip.source;
  in.dest = p.ip.destination;
  in.source_port = p.source_port;
  in.dest_port = p.destination_port;
  in.ifindex = engine_.vi_[vi]->info().ifindex;
  if (p.l4_state == wire::L4State::kNoChecksum) in.checksum = udp::Checksum::kZero;
  in.tos = p.ip.tos;
  in.ttl = p.ip.ttl;
  in.packet = rx.frame;
  in.off = rx.off + p.payload_off;
  in.bytes = p.payload_bytes;
  in.arrived_ns = engine_.now_ns;
  DatagramCounters& c = Tables().counters;
  switch (udp::Input(Tables().ports, in, *this)) {
    case udp::Verdict::kDelivered:
      c.in++;
      break;
    case udp::Verdict::kDropped:
      c.full++;
      break;
    default:
      c.not_ours++;
      break;
  }
}

void Datagrams::Icmp(const uint8_t* frame, const wire::Packet& p, const wire::IcmpIn& in,
                     uint32_t vi) {
  udp::IcmpIn icmp;
  icmp.v6 = p.ip.family == wire::Family::kIpv6;
  icmp.type = frame[p.ip.l4_off];
  icmp.code = frame[p.ip.l4_off + 1];
  icmp.info = in.mtu;
  icmp.from = p.ip.source;
  icmp.source = in.quote.source;
  icmp.dest = in.quote.destination;
  icmp.source_port = in.quote.source_port;
  icmp.dest_port = in.quote.destination_port;
  icmp.ifindex = engine_.vi_[vi]->info().ifindex;
  engine_.w_.counters.icmp_in++;
  udp::Icmp(Tables().ports, icmp, *this);
  if (in.mtu == 0) return;
  // A path that takes less than the interface: the kernel fragments, and has to hear of it. This
  // one it does not, the next one it does.
  udp::DatagramIn answer;
  answer.source = icmp.dest;
  answer.dest = icmp.source;
  answer.source_port = icmp.dest_port;
  answer.dest_port = icmp.source_port;
  answer.ifindex = icmp.ifindex;
  const uint32_t idx = udp::Lookup(Tables().ports, answer, *this);
  if (idx != udp::kNone) Leave(idx);
}

int64_t Datagrams::Receive(uint32_t idx, const udp::ReceiveArgs& args, udp::ReceiveInfo& info) {
  return At(idx).use != 0 ? udp::Receive(idx, args, info, *this) : -EAGAIN;
}

// ---------------------------------------------------------------- out

// True: s.path leads there, from s.path_from.
bool Datagrams::FindPath(DatagramSocket& s, const IpAddress& from, const IpAddress& to,
                         uint16_t to_port) {
  const bool same =
      SameName(s.path_to, NameOf(to, to_port)) &&
      (from.IsAny() ? s.is_from_any != 0 : SameName(s.path_from, NameOf(from, s.e.local_port)));
  if (same && s.path.version != 0 && engine_.paths_.IsFresh(s.path)) [[likely]]
    return true;
  s.path = {};
  s.path_from = NameOf(from, s.e.local_port);
  s.path_to = NameOf(to, to_port);
  s.is_from_any = from.IsAny() ? 1 : 0;
  Path path = {};
  int error = 0;
  if (engine_.paths_.FindDatagram(s.path_from, s.path_to, path, error) != PathStatus::kOk)
    return false;
  s.path = path;
  return true;
}

int64_t Datagrams::Send(uint32_t idx, const udp::SendArgs& args) {
  DatagramSocket& s = At(idx);
  DatagramCounters& c = Tables().counters;
  c.by_kernel++;
  if (s.use == 0 || s.is_left != 0) return kByKernel;
  if (!args.has_dest && (s.e.flags & udp::kConnected) == 0) return kByKernel;
  const IpAddress& to = args.has_dest ? args.dest : s.e.remote;
  const uint16_t to_port = args.has_dest ? args.dest_port : s.e.remote_port;
  if (to.IsAny() || to.IsMulticast() || to_port == 0) return kByKernel;
  if (s.e.family == AF_INET && !to.IsV4()) return kByKernel;
  const IpAddress& from = args.source.IsAny() ? s.e.local : args.source;
  if (!FindPath(s, from, to, to_port)) return kByKernel;
  if (args.ifindex != 0) {
    const Vi* vi = s.path.vi < kAreaVis ? engine_.vi_[s.path.vi] : nullptr;
    if (vi == nullptr || engine_.area_.ViAt(s.path.vi)->ifindex != args.ifindex) return kByKernel;
  }
  if (s.e.family != AF_INET && to.IsV4() && (s.e.tos != 0 || s.e.ttl != 0)) return kByKernel;
  uint64_t bytes = udp::kHeaderBytes + (to.IsV4() ? udp::kIpv4HeaderBytes : udp::kIpv6HeaderBytes);
  for (uint32_t i = 0; i < args.iov_count; i++) bytes += args.iov[i].iov_len;
  if (bytes > s.path.mtu) return kByKernel;  // fragments, or EMSGSIZE
  sending_ = &s;
  const int64_t r = udp::Send(Tables().ports, idx, args, *this);
  sending_ = nullptr;
  if (r == -EAGAIN) return kByKernel;  // no frame, no room: there it may wait
  c.by_kernel--;
  if (r >= 0) c.out++;
  return r;
}

int Datagrams::Route(const udp::RouteQuery&, udp::RouteAnswer& answer) {
  if (sending_ == nullptr) return ENETUNREACH;
  answer.source = IpOf(sending_->path_from);
  answer.mtu_bytes = answer.path_mtu_bytes = sending_->path.mtu;
  answer.cast = udp::Cast::kUnicast;
  return 0;
}

bool Datagrams::Transmit(const udp::DatagramOut& out) {
  if (sending_ == nullptr) return false;
  wire::IpOut ip;
  ip.source = out.source;
  ip.destination = out.dest;
  ip.family = out.dest.IsV4() ? wire::Family::kIpv4 : wire::Family::kIpv6;
  ip.protocol = wire::kProtocolUdp;
  ip.tos = out.tos;
  ip.ttl = sending_->e.ttl != 0 ? out.ttl : sending_->path.ttl;
  ip.dont_fragment = out.dont_fragment;
  ip.id = static_cast<uint32_t>(engine_.Random());
  return engine_.PutDatagram(sending_->path, out, ip);
}

}  // namespace postern::stack
