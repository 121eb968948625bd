// SPDX-License-Identifier: Apache-2.0
// sim_host.cc - a host in the world: demultiplexing, timers, the calls of its programs.
#include <cstdio>
#include <cstdlib>

#include "world.h"

namespace postern::sim {
namespace {

constexpr uint32_t kHeaderBytes = 40;  // IPv4 and TCP without options
constexpr uint64_t kTimerSpinsMax = 16;
constexpr uint64_t kWireFullNs = 50 * kMicrosecond;
constexpr uint64_t kIssTickNs = 64;  // as lib/tcp/segment/isn.cc

// An event of a host: what, and the connection.
enum class What : uint64_t { kTimer, kWake, kWire, kTooBig, kGather };
constexpr uint64_t Word(What what, uint32_t conn) {
  return static_cast<uint64_t>(what) << 32 | conn;
}

uint64_t KeyOf(uint16_t local_port, uint32_t peer_host, uint16_t peer_port) {
  return uint64_t{peer_host} << 32 | uint64_t{local_port} << 16 | peer_port;
}

// As Linux lays them out.
uint32_t OptionBytes(const tcp::SegmentOptions& o) {
  uint32_t bytes = 0;
  if (o.mss != 0) bytes += 4;
  if (o.has_timestamps) bytes += 12;
  if (o.sack_permitted && !o.has_timestamps) bytes += 4;
  if (o.has_window_scale) bytes += 4;
  if (o.sack_count != 0) bytes += 4 + 8 * o.sack_count;
  return bytes;
}

// SIM_TRACE=1 shows each segment as it leaves.
void Trace(uint64_t now_ns, uint32_t host, const tcp::SegmentOut& s) {
  printf("%.6f host %u: flags %02x seq %u+%u ack %u win %u ecn %u",
         static_cast<double>(now_ns) / 1e9, host, s.flags, s.seq.value(), s.bytes, s.ack.value(),
         s.window, static_cast<unsigned>(s.ecn));
  for (uint32_t i = 0; i < s.options.sack_count; i++)
    printf(" sack %u:%u", s.options.sack[i].left.value(), s.options.sack[i].right.value());
  printf("\n");
}

tcp::SegmentIn AsReceived(const tcp::SegmentOut& out) {
  tcp::SegmentIn in;
  in.seq = out.seq;
  in.ack = out.ack;
  in.window = out.window;
  in.urgent = out.urgent;
  in.flags = out.flags;
  in.ecn = out.ecn;
  in.options = out.options;
  return in;
}

}  // namespace

SimHost::SimHost(World& world, uint32_t id, const HostSettings& settings, uint64_t seed)
    : StreamHost(settings.limits), world_(world), id_(id), settings_(settings), random_(seed) {
  row_max_ = settings.row_max;
  // Half of all hosts begin just below the wrap of sequence numbers.
  const uint32_t random = static_cast<uint32_t>(random_.Next());
  ts_offset_ = static_cast<uint32_t>(random_.Next());
  iss_base_ =
      (random & 1) != 0 ? 0u - (random >> 16) - static_cast<uint32_t>(now() / kIssTickNs) : random;
}

uint64_t SimHost::now() const { return world_.events().now_ns(); }

// ---- connections

tcp::OpenArgs SimHost::Args() {
  tcp::OpenArgs args{};
  args.mss_max = args.mss_receive = settings_.mss;
  args.iss = tcp::Seq(iss_base_ + static_cast<uint32_t>(now() / kIssTickNs));
  args.ts_offset = ts_offset_;
  args.ecn = settings_.ecn;
  return args;
}

SimConn& SimHost::NewConn(uint32_t peer_host, uint16_t peer_port, uint16_t local_port,
                          std::unique_ptr<App> app) {
  conns_.push_back(std::make_unique<SimConn>());
  SimConn& conn = *conns_.back();
  conn.id = static_cast<uint32_t>(conns_.size() - 1);
  conn.peer_host = peer_host;
  conn.local_port = local_port;
  conn.peer_port = peer_port;
  conn.tx.Reset(settings_.send_buffer);
  conn.rx.Reset(settings_.receive_buffer);
  conn.settings = settings_.tcp_settings;
  apps_.push_back(std::move(app));
  conn.app = apps_.back().get();
  by_key_[KeyOf(local_port, peer_host, peer_port)] = &conn;
  return conn;
}

SimConn* SimHost::Find(uint16_t local_port, uint32_t peer_host, uint16_t peer_port) {
  const auto found = by_key_.find(KeyOf(local_port, peer_host, peer_port));
  return found == by_key_.end() || found->second->closed ? nullptr : found->second;
}

SimConn& SimHost::Connect(uint32_t peer_host, uint16_t peer_port, uint16_t local_port,
                          std::unique_ptr<App> app) {
  SimConn& conn = NewConn(peer_host, peer_port, local_port, std::move(app));
  now_ns = now();
  tcp::Open(conn, Args(), *this);
  After(conn);
  return conn;
}

// ---- the calls of programs

size_t SimHost::Write(SimConn& conn, const uint8_t* data, size_t count) {
  if (conn.closed || conn.tx_ended || conn.error != 0) return 0;
  const size_t put = conn.tx.Put(data, count);
  conn.touched |= put != 0;
  return put;
}

size_t SimHost::Read(SimConn& conn, uint8_t* out, size_t count) {
  count = std::min<size_t>(count, conn.rx.size());
  if (count == 0) return 0;
  conn.rx.Peek(conn.rx.begin(), out, count);
  conn.rx.Drop(count);
  conn.touched = true;
  return count;
}

void SimHost::End(SimConn& conn) {
  if (conn.tx_ended) return;
  conn.tx_ended = conn.touched = true;
}

void SimHost::Close(SimConn& conn) {
  if (conn.unread_gone) return;
  conn.unread_gone = true;
  conn.tx_ended = true;
  if (conn.closed) return;
  now_ns = now();
  if (conn.rx.size() != 0) {
    tcp::Abort(conn, *this);
  } else {
    tcp::Closed(conn, *this);
  }
  conn.touched = true;
}

void SimHost::WakeAt(SimConn& conn, uint64_t at_ns) {
  world_.events().At(at_ns, *this, Word(What::kWake, conn.id));
}

// ---- TCP

// The program runs until it has nothing to do; then the timer is set.
void SimHost::After(SimConn& conn) {
  for (uint32_t rounds = 0;; rounds++) {
    if (conn.rto_count > conn.rto_count_seen) conn.rtos += conn.rto_count - conn.rto_count_seen;
    conn.rto_count_seen = conn.rto_count;
    conn.was_time_wait |= tcp::StateOf(conn) == tcp::State::kTimeWait;
    Check(conn);
    if (!problem().empty()) return;
    conn.touched = false;
    conn.app->Run(*this, conn);
    if (!conn.touched || conn.closed) break;
    if (rounds > 100'000) {
      Problem("the program and TCP keep each other busy");
      return;
    }
    now_ns = now();
    tcp::Output(conn, *this);
  }
  if (conn.closed) {
    conn.tx.Free();
    if (conn.rx.size() == 0) conn.rx.Free();
    return;
  }
  Arm(conn);
}

void SimHost::Arm(SimConn& conn) {
  const uint64_t deadline_ns = tcp::NextDeadline(conn);
  if (deadline_ns >= conn.timer_ns) return;  // what is set looks again
  const uint64_t late_ns = settings_.timer_late_ns;
  const uint64_t at_ns =
      std::max(deadline_ns, now()) + (late_ns == 0 ? 0 : random_.Next() % late_ns);
  conn.timer_ns = at_ns;
  world_.events().At(at_ns, *this, Word(What::kTimer, conn.id));
}

void SimHost::Happen(uint64_t what) {
  if (static_cast<What>(what >> 32) == What::kGather) return TakeGathered();
  SimConn& conn = *conns_[what & 0xffffffff];
  const What kind = static_cast<What>(what >> 32);
  if (kind == What::kTimer) {
    if (now() != conn.timer_ns) return;  // an earlier one was set since
    conn.timer_ns = UINT64_MAX;
  }
  if (conn.closed) {
    if (kind == What::kWake) conn.app->Run(*this, conn);
    return;
  }
  now_ns = now();
  if (kind == What::kTimer) {
    if (tcp::NextDeadline(conn) > now_ns) {
      Arm(conn);
      return;
    }
    tcp::Timer(conn, *this);
    conn.timer_spins = tcp::NextDeadline(conn) <= now_ns ? conn.timer_spins + 1 : 0;
    if (conn.timer_spins > kTimerSpinsMax) Problem("Timer() leaves a deadline that has passed");
  } else if (kind == What::kWire) {
    tcp::Output(conn, *this);
  } else if (kind == What::kTooBig) {
    tcp::PathMtu(conn, conn.told_mtu - kHeaderBytes, *this);
  }
  After(conn);
}

void SimHost::OpenAll() {
  for (auto& conn : conns_) {
    if (conn->closed) continue;
    now_ns = now();
    tcp::Output(*conn, *this);
    After(*conn);
  }
}

uint32_t SimHost::Deliver(tcp::Tcb& tcb, const uint8_t* data, uint32_t bytes) {
  const uint32_t taken = StreamHost::Deliver(tcb, data, bytes);
  bytes_delivered_ += taken;
  return taken;
}

// ---- the wire

void SimHost::Account(SimConn& conn, const tcp::SegmentOut& segment) {
  if (segment.bytes == 0) return;
  const tcp::Seq end = segment.seq + segment.bytes;
  conn.data_sent += segment.bytes;
  if (conn.data_sent == segment.bytes) conn.high_sent = segment.seq;
  const int32_t fresh = end - conn.high_sent;
  const uint32_t new_bytes = fresh <= 0 ? 0 : std::min(static_cast<uint32_t>(fresh), segment.bytes);
  conn.data_resent += segment.bytes - new_bytes;
  conn.high_sent = tcp::Later(conn.high_sent, end);
}

void SimHost::Put(SimConn* conn, const tcp::SegmentOut& segment, Segment&& out) {
  out.in = AsReceived(segment);
  out.in.bytes = segment.bytes;
  out.payload.resize(segment.bytes);
  out.ip_bytes = kHeaderBytes + OptionBytes(segment.options) + segment.bytes;
  if (conn != nullptr) CopyPayload(*conn, segment, out.payload.data());
  segments_out_++;
  if (getenv("SIM_TRACE") != nullptr) Trace(now(), id_, segment);
  const uint32_t to = out.to;
  world_.path(id_, to).Send(std::move(out));
}

bool SimHost::Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& segment) {
  SimConn& conn = static_cast<SimConn&>(tcb);
  if (settings_.wire_full > 0 &&
      static_cast<double>(random_.Next() % 1'000'000) < settings_.wire_full * 1e6) {
    world_.events().At(now() + kWireFullNs, *this, Word(What::kWire, conn.id));
    return false;
  }
  if (conn.closed) Problem("a segment is sent after kClosed");
  if (segment.size == 0) return Launch(conn, segment);
  if (segment.bytes > row_max() * segment.size) Problem("a row is too long");
  return tcp::EachOf(segment, [&](tcp::SegmentOut& one) {
    const bool out = Launch(conn, one);
    one.from = Skip(tcb, one.from, one.bytes);
    return out;
  });
}

bool SimHost::Launch(SimConn& conn, const tcp::SegmentOut& segment) {
  Account(conn, segment);
  Segment out;
  out.from = id_;
  out.to = conn.peer_host;
  out.from_port = conn.local_port;
  out.to_port = conn.peer_port;
  Put(&conn, segment, std::move(out));
  return true;
}

void SimHost::TooBig(uint16_t local_port, uint32_t peer_host, uint16_t peer_port, uint32_t mtu) {
  SimConn* conn = Find(local_port, peer_host, peer_port);
  if (conn == nullptr) return;
  // Never from within Transmit(): TCP is not entered twice.
  conn->told_mtu = mtu;
  world_.events().At(now() + kMillisecond, *this, Word(What::kTooBig, conn->id));
}

bool SimHost::AcceptSyn(const Segment& segment, tcp::Seq iss_from) {
  const auto listener = listeners_.find(segment.to_port);
  if (listener == listeners_.end() || tcp::AtListener(segment.in) != tcp::ForListener::kOpens)
    return false;
  SimConn& conn =
      NewConn(segment.from, segment.from_port, segment.to_port, listener->second(segment));
  conn.is_passive = true;
  now_ns = now();
  tcp::OpenArgs args = Args();
  if (iss_from != tcp::Seq()) args.iss = iss_from;
  tcp::OpenPassive(conn, args, segment.in, *this);
  After(conn);
  return true;
}

void SimHost::Arrive(Segment&& segment) {
  if (segment.corrupt) return;  // the checksum says so
  if (settings_.gather_ns == 0) return Take(std::move(segment));
  if (gathered_.empty())
    world_.events().At(now() + settings_.gather_ns, *this, Word(What::kGather, 0));
  gathered_.push_back(std::move(segment));
}

// As lib/stack/input/runs.cc does it with what one Receive() has brought.
void SimHost::TakeGathered() {
  std::vector<Segment> all;
  all.swap(gathered_);
  for (size_t i = 0; i < all.size();) {
    SimConn* conn = Find(all[i].to_port, all[i].from, all[i].from_port);
    const tcp::SegmentIn& in = all[i].in;
    const uint32_t size = static_cast<uint32_t>(all[i].payload.size());
    tcp::SegmentIn run = in;
    run.bytes = size;
    size_t end = i + 1;
    const bool begins = conn != nullptr && tcp::MayRun(*conn, run);
    for (bool last = !begins; !last && end < all.size(); end++) {
      const Segment& s = all[end];
      tcp::SegmentIn next = s.in;
      next.bytes = static_cast<uint32_t>(s.payload.size());
      if (s.from != all[i].from || s.from_port != all[i].from_port || s.to_port != all[i].to_port ||
          !tcp::Follows(run, size, next))
        break;
      run.bytes += next.bytes;
      run.flags |= next.flags;
      last = next.bytes < size || (next.flags & tcp::kPsh) != 0;
    }
    if (end == i + 1) {
      Take(std::move(all[i]));
    } else {
      TakeRun(*conn, run, std::span(all).subspan(i, end - i));
    }
    i = end;
  }
}

void SimHost::TakeRun(SimConn& conn, tcp::SegmentIn& run, std::span<Segment> segments) {
  std::vector<tcp::RunPart> parts;
  std::vector<uint32_t> names;
  for (Segment& s : segments) names.push_back(PacketIn(std::move(s.payload)));
  for (const uint32_t name : names)
    parts.push_back({packet(name).data(), static_cast<uint32_t>(packet(name).size())});
  run.segments = run.parts = static_cast<uint32_t>(parts.size());
  run.size = parts.front().bytes;
  run.run = parts.data();
  now_ns = now();
  tcp::Input(conn, run, *this);
  for (const uint32_t name : names) PacketDone(name);
  After(conn);
}

void SimHost::Take(Segment&& segment) {
  SimConn* conn = Find(segment.to_port, segment.from, segment.from_port);
  tcp::Seq iss;
  if (conn != nullptr && tcp::MayReuse(*conn, segment.in, iss)) {
    tcp::Forget(*conn, *this);
    conn->closed = true;
    conn = nullptr;
  }
  if (conn == nullptr) {
    tcp::SegmentOut answer;
    if (AcceptSyn(segment, iss) || !tcp::ResetFor(segment.in, answer)) return;
    Segment out;
    out.from = id_;
    out.to = segment.from;
    out.from_port = segment.to_port;
    out.to_port = segment.from_port;
    Put(nullptr, answer, std::move(out));
    return;
  }
  const uint32_t name = PacketIn(std::move(segment.payload));
  segment.in.data = packet(name).data();
  segment.in.packet = name;
  now_ns = now();
  tcp::Input(*conn, segment.in, *this);
  PacketDone(name);
  After(*conn);
}

}  // namespace postern::sim
