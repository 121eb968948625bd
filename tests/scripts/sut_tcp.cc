// SPDX-License-Identifier: Apache-2.0
// sut_tcp.cc - packets and time of the scripts' system under test; the calls are in sut_calls.cc.
#include "sut_tcp.h"

#include <netinet/in.h>

#include <cerrno>
#include <cstdlib>

namespace postern::scripts {
namespace {

constexpr uint32_t HeaderBytes(bool is_v6) { return is_v6 ? 60 : 40; }

tcp::SegmentIn AsSegment(const TcpPacket& packet) {
  tcp::SegmentIn in;
  in.seq = tcp::Seq(packet.seq);
  in.ack = tcp::Seq(packet.ack);
  in.window = packet.window;
  in.urgent = packet.urgent;
  in.flags = packet.flags;
  in.ecn = static_cast<tcp::Ecn>(packet.tos & 3);
  in.options = ReadOptions(packet.options);
  in.bytes = static_cast<uint32_t>(packet.payload.size());
  return in;
}

// ICMP's answer as Linux maps it. `hard`: it may end a connection that is being opened.
int ErrorOf(const IcmpPacket& packet, bool& hard) {
  hard = false;
  if (packet.source.is_v6) {
    if (packet.type != 1) return packet.type == 4 ? EPROTO : 0;
    hard = packet.code == 1 || packet.code == 4;
    return packet.code == 4 ? ECONNREFUSED : packet.code == 1 ? EACCES : EHOSTUNREACH;
  }
  if (packet.type != 3) return packet.type == 11 ? EHOSTUNREACH : 0;
  hard = packet.code == 2 || packet.code == 3;
  switch (packet.code) {
    case 0:
      return ENETUNREACH;
    case 2:
      return ENOPROTOOPT;
    case 3:
      return ECONNREFUSED;
    default:
      return EHOSTUNREACH;
  }
}

}  // namespace

TcpSut::TcpSut(uint64_t seed) : sim::StreamHost({}), random_(seed) {
  now_ns = 1'000'000'000'000;
  settings_ = &sysctls_;
}

std::unique_ptr<Sut> MakeTcpSut(uint64_t seed) { return std::make_unique<TcpSut>(seed); }

// ---- time

uint64_t TcpSut::NextDeadlineNs() const {
  uint64_t next_ns = UINT64_MAX;
  for (const auto& conn : conns_) {
    if (!conn->closed) next_ns = std::min(next_ns, tcp::NextDeadline(*conn));
  }
  return next_ns;
}

void TcpSut::AdvanceTo(uint64_t ns) {
  constexpr uint32_t kSpinsMax = 1000;
  for (uint32_t spins = 0; problem().empty(); spins++) {
    const uint64_t next_ns = NextDeadlineNs();
    if (next_ns > ns) break;
    if (next_ns > now_ns) spins = 0;
    if (spins > kSpinsMax) StreamHost::Problem("Timer() leaves a deadline that has passed");
    now_ns = std::max(now_ns, next_ns);
    for (size_t i = 0; i < conns_.size(); i++) {
      SutConn& conn = *conns_[i];
      if (conn.closed || tcp::NextDeadline(conn) > now_ns) continue;
      tcp::Timer(conn, *this);
      Entered(conn);
    }
  }
  now_ns = std::max(now_ns, ns);
}

// ---- connections

SutConn* TcpSut::Find(const Flow& out) {
  for (const auto& conn : conns_) {
    if (!conn->closed && conn->out == out) return conn.get();
  }
  return nullptr;
}

SutConn& TcpSut::NewConn(const Flow& out, const SutSocket& socket) {
  conns_.push_back(std::make_unique<SutConn>());
  SutConn& conn = *conns_.back();
  conn.out = out;
  conn.tx.Reset(socket.send_buffer != 0 ? static_cast<size_t>(socket.send_buffer) : send_max_);
  conn.rx.Reset(socket.receive_buffer != 0 ? static_cast<size_t>(socket.receive_buffer)
                                           : receive_max_);
  conn.settings = socket.settings;
  return conn;
}

tcp::OpenArgs TcpSut::Args(bool is_v6, tcp::Seq iss_from) {
  tcp::OpenArgs args{};
  args.mss_max = args.mss_receive = mtu_ - HeaderBytes(is_v6);
  // Just below the wrap: each script that sends a few bytes crosses it.
  args.iss =
      iss_from != tcp::Seq() ? iss_from : tcp::Seq(0u - static_cast<uint32_t>(random_.Below(3000)));
  return args;
}

void TcpSut::Entered(SutConn& conn) {
  Check(conn);
  if (conn.closed && conn.fd < 0) {
    conn.tx.Free();
    conn.rx.Free();
  }
}

void TcpSut::Push(SutConn& conn) {
  if (conn.closed) return;
  tcp::Output(conn, *this);
  Entered(conn);
}

void TcpSut::OnReport(sim::Conn& base, tcp::Event event, int error) {
  SutConn& conn = static_cast<SutConn&>(base);
  if (event == tcp::Event::kConnected && conn.listener >= 0)
    sockets_[static_cast<size_t>(conn.listener)].accepts.push_back(&conn);
  if (event == tcp::Event::kReset && conn.fd >= 0)
    sockets_[static_cast<size_t>(conn.fd)].error = error;
}

// ---- the wire

bool TcpSut::Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& segment) {
  if (segment.size != 0)
    return tcp::EachOf(segment, [&](tcp::SegmentOut& one) {
      const bool out = Transmit(tcb, one);
      one.from = Skip(tcb, one.from, one.bytes);
      return out;
    });
  SutConn& conn = static_cast<SutConn&>(tcb);
  Bytes payload(segment.bytes);
  CopyPayload(conn, segment, payload.data());
  Queue(conn.out, segment, std::move(payload));
  return true;
}

void TcpSut::Queue(const Flow& out, const tcp::SegmentOut& segment, Bytes payload) {
  TcpPacket packet;
  packet.flow = out;
  packet.tos = static_cast<uint8_t>(segment.ecn);
  packet.seq = segment.seq.value();
  packet.ack = segment.ack.value();
  packet.flags = segment.flags;
  packet.window = segment.window;
  packet.urgent = segment.urgent;
  packet.options = OptionBytes(segment.options);
  packet.payload = std::move(payload);
  out_.push_back({Encode(packet), now_ns});
}

bool TcpSut::PacketOut(Bytes& packet, uint64_t& sent_ns) {
  if (out_.empty()) return false;
  packet = std::move(out_.front().bytes);
  sent_ns = out_.front().at_ns;
  out_.pop_front();
  return true;
}

void TcpSut::PacketIn(const uint8_t* data, size_t bytes) {
  TcpPacket tcp;
  IcmpPacket icmp;
  std::string why;
  const Decoded kind = Decode(data, bytes, tcp, icmp, why);
  if (kind == Decoded::kTcp) TcpIn(tcp);
  if (kind == Decoded::kIcmp) IcmpIn(icmp);
}

void TcpSut::TcpIn(TcpPacket& packet) {
  const Flow out = packet.flow.Back();
  tcp::SegmentIn segment = AsSegment(packet);
  SutConn* conn = Find(out);
  tcp::Seq iss;
  if (conn != nullptr && tcp::MayReuse(*conn, segment, iss)) {
    tcp::Forget(*conn, *this);
    conn->closed = true;
    conn = nullptr;
  }
  if (conn == nullptr) {
    tcp::SegmentOut answer;
    if (!AtListenerIn(packet, segment, iss) && tcp::ResetFor(segment, answer))
      Queue(out, answer, {});
    return;
  }
  const uint32_t name = StreamHost::PacketIn(std::move(packet.payload));
  segment.data = this->packet(name).data();
  segment.packet = name;
  tcp::Input(*conn, segment, *this);
  PacketDone(name);
  Entered(*conn);
}

bool TcpSut::AtListenerIn(const TcpPacket& packet, const tcp::SegmentIn& segment,
                          tcp::Seq iss_from) {
  const tcp::ForListener use = tcp::AtListener(segment);
  if (use == tcp::ForListener::kReset) return false;
  for (size_t fd = 0; fd < sockets_.size(); fd++) {
    SutSocket& socket = sockets_[fd];
    if (!socket.used || !socket.listens || socket.port != packet.flow.destination_port) continue;
    if (use == tcp::ForListener::kDrop) return true;
    if (static_cast<int>(socket.accepts.size()) > socket.backlog) return true;  // no answer
    SutConn& conn = NewConn(packet.flow.Back(), socket);
    conn.listener = static_cast<int>(fd);
    tcp::OpenArgs args = Args(packet.flow.source.is_v6, iss_from);
    args.ecn = ecn_ != 0;
    tcp::OpenPassive(conn, args, segment, *this);
    Entered(conn);
    return true;
  }
  return false;
}

void TcpSut::IcmpIn(const IcmpPacket& packet) {
  SutConn* conn = Find(packet.quoted);
  if (conn == nullptr) return;
  const bool is_v6 = packet.source.is_v6;
  const tcp::Seq seq(packet.quoted_seq);
  const bool too_big = is_v6 ? packet.type == 2 : packet.type == 3 && packet.code == 4;
  if (too_big) {
    //= rfc5927#4.1
    //# the TCP sequence number in the payload ... is within the range of data already sent but not
    // yet acknowledged
    if (tcp::Before(seq, conn->snd_una) || tcp::AtOrAfter(seq, conn->snd_nxt)) return;
    tcp::PathMtu(*conn, packet.mtu - HeaderBytes(is_v6), *this);
  } else {
    bool hard = false;
    const int error = ErrorOf(packet, hard);
    if (error == 0) return;
    tcp::SoftError(*conn, seq, error, hard, *this);
  }
  Entered(*conn);
}

// ---- the configuration

namespace {

// The numbers of a setting, some have more than one.
bool TakeNumbers(const std::string& name, const std::string& text, tcp::Sysctls& all) {
  constexpr char kBefore[] = "net.ipv4.";
  if (name.rfind(kBefore, 0) != 0) return false;
  bool known = false;
  for (const tcp::NamedSysctl& s : tcp::kNamedSysctls) {
    if (name.compare(sizeof kBefore - 1, std::string::npos, s.name) != 0) continue;
    const char* at = text.c_str();
    for (uint32_t word = 0; *at != 0; word++) {
      char* end = nullptr;
      const unsigned long long number = strtoull(at, &end, 0);
      if (end == at) break;
      if (word == s.word) all.*s.value = static_cast<uint32_t>(number);
      at = end;
    }
    known = true;
  }
  return known;
}

}  // namespace

bool TcpSut::Sysctl(const std::string& name, const std::string& value) {
  const auto number = [&] { return atoi(value.c_str()); };
  if (TakeNumbers(name, value, sysctls_)) {
    receive_max_ = std::max(sysctls_.tcp_rmem_max, 4096u);
  } else if (name == "net.ipv4.tcp_wmem") {
    const size_t last = value.find_last_of(" \t");
    const int most = atoi(value.c_str() + (last == std::string::npos ? 0 : last + 1));
    if (most > 0) send_max_ = static_cast<uint32_t>(most);
  } else if (name == "net.ipv4.tcp_ecn") {
    ecn_ = number();
  } else if (name == "net.ipv4.tcp_congestion_control") {
    tcp::CongestionKind kind{};
    if (!tcp::CongestionByName(value.c_str(), static_cast<uint32_t>(value.size()), kind))
      return false;
    congestion_ = static_cast<uint32_t>(kind);
  } else {
    return false;
  }
  return true;
}

}  // namespace postern::scripts
