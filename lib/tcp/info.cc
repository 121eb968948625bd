// SPDX-License-Identifier: Apache-2.0
// info.cc - fills in struct tcp_info: Linux's units, which are microseconds, milliseconds since,
// and segments where we count bytes.
//
// Not kept, and 0: how long the program has waited for room (the Host's), and rates of delivery.
#include "tcp/info.h"

#include <linux/tcp.h>

#include <cstring>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

constexpr uint32_t kLinuxClosed = 7, kLinuxSsthreshUnknown = 0x7fffffff;
constexpr uint64_t kUs = 1000;

uint32_t Capped(uint64_t v) { return v < UINT32_MAX ? static_cast<uint32_t>(v) : UINT32_MAX; }
uint8_t Capped8(uint64_t v) { return v < UINT8_MAX ? static_cast<uint8_t>(v) : UINT8_MAX; }
uint32_t Us(uint64_t ns) { return Capped(ns / kUs); }
uint32_t MsSince(uint64_t at_ns, uint64_t now_ns) {
  return at_ns != 0 && at_ns < now_ns ? Capped((now_ns - at_ns) / kMs) : 0;
}

uint8_t Options(const Tcb& t) {
  uint32_t o = 0;
  if (Has(t, kTimestamps)) o |= TCPI_OPT_TIMESTAMPS;
  if (Has(t, kSackOk)) o |= TCPI_OPT_SACK;
  if (Has(t, kWindowScale)) o |= TCPI_OPT_WSCALE;
  if (Has(t, kEcnOk)) o |= TCPI_OPT_ECN;
  return static_cast<uint8_t>(o);
}

void Flight(const Tcb& t, tcp_info& i) {
  const uint32_t mss = t.mss_bytes != 0 ? t.mss_bytes : 1;
  const auto segments = [&](uint32_t bytes) { return (bytes + mss - 1) / mss; };
  i.tcpi_unacked = t.tx_count;
  i.tcpi_sacked = t.sacked_count;
  i.tcpi_lost = segments(t.lost_bytes);
  i.tcpi_retrans = segments(t.retrans_bytes);
  i.tcpi_snd_cwnd = t.cc.cwnd_bytes != 0 ? segments(t.cc.cwnd_bytes) : kInitialSegments;
  i.tcpi_snd_ssthresh = t.cc.ssthresh_bytes == kSsthreshUnknown || t.cc.ssthresh_bytes == 0
                            ? kLinuxSsthreshUnknown
                            : segments(t.cc.ssthresh_bytes);
  i.tcpi_delivered = t.delivered;
  i.tcpi_snd_wnd = t.snd_wnd;
}

void Times(const Tcb& t, uint64_t now_ns, tcp_info& i) {
  i.tcpi_rto = Us(t.rtt.rto_ns);
  i.tcpi_ato = Us(t.ato_ns);
  i.tcpi_rtt = Us(Srtt(t.rtt));
  i.tcpi_rttvar = Us(t.rtt.mdev4_ns >> 2);  // as Linux: without the floor of the RTO's
  const uint64_t min_ns = MinRtt(t.rtt, now_ns);
  i.tcpi_min_rtt = min_ns != UINT64_MAX ? Us(min_ns) : UINT32_MAX;
  i.tcpi_rcv_rtt = Us(t.rcv_rtt_ns);
  i.tcpi_last_data_sent = MsSince(t.sent_ns, now_ns);
  i.tcpi_last_data_recv = MsSince(t.last_data_ns, now_ns);
  i.tcpi_last_ack_recv = MsSince(t.received_ns, now_ns);
  const uint64_t rate = CongestionPacingRate(t.cc, Srtt(t.rtt));
  i.tcpi_pacing_rate = rate != 0 ? rate : UINT64_MAX;
  i.tcpi_max_pacing_rate =
      t.settings.max_pacing_rate != 0 ? t.settings.max_pacing_rate : UINT64_MAX;
}

// Linux counts the SYN of an active end, and the FIN, as bytes.
uint32_t NumbersAcked(const Tcb& t) {
  const bool syn = IsSynchronized(t) && !Has(t, kPassive);
  const bool fin = Has(t, kFinSent) && t.snd_una == t.snd_nxt;
  return (syn ? 1u : 0u) + (fin ? 1u : 0u);
}

// As in Linux the time in which the window was shut is busy, too.
void Limits(const Tcb& t, uint64_t now_ns, tcp_info& i) {
  const auto spent = [&](HeldBy limit) {
    const uint32_t at = static_cast<uint32_t>(limit);
    return t.limit_ns[at] +
           (t.limit == at && now_ns > t.limit_since_ns ? now_ns - t.limit_since_ns : 0);
  };
  i.tcpi_rwnd_limited = spent(HeldBy::kWindow) / kUs;
  i.tcpi_busy_time = (spent(HeldBy::kBusy) + spent(HeldBy::kWindow)) / kUs;
}

void Counts(const Tcb& t, tcp_info& i) {
  // An accepted connection's SYN-ACK is nothing that it has sent, in Linux.
  const uint32_t not_sent = Has(t, kPassive) ? std::min(t.segments_out, 1u) : 0;
  i.tcpi_total_retrans = t.retransmits;
  i.tcpi_bytes_acked = t.bytes_acked + NumbersAcked(t);
  i.tcpi_bytes_received = t.bytes_received;
  i.tcpi_bytes_sent = t.bytes_sent;
  i.tcpi_bytes_retrans = t.bytes_retrans;
  i.tcpi_segs_out = t.segments_out - not_sent;
  i.tcpi_segs_in = t.segments_in;
  i.tcpi_data_segs_out = t.data_segments_out;
  i.tcpi_data_segs_in = t.data_segments_in;
  i.tcpi_dsack_dups = t.dsack_dups;
  i.tcpi_reord_seen = t.reorder_seen;
  i.tcpi_rcv_ooopack = t.out_of_order;
}

}  // namespace

namespace {

// What the headers of this build may not have yet (Linux 6.2 and 6.7).
void Later(const Tcb& t, uint64_t now_ns, Info& out) {
  constexpr size_t kRcvWnd = 232, kTotalRto = 240, kRtoRuns = 242, kRtoTime = 244;
  const auto put = [&](size_t off, auto v) { memcpy(out.bytes + off, &v, sizeof v); };
  const int32_t window = t.rcv_adv - t.rcv_nxt;
  put(kRcvWnd, static_cast<uint32_t>(std::max(window, 0)));
  put(kTotalRto, static_cast<uint16_t>(std::min(t.timeouts, 0xffffu)));
  put(kRtoRuns, static_cast<uint16_t>(std::min(t.timeout_runs, 0xffffu)));
  const uint64_t since_ns =
      t.rto_count != 0 && now_ns > t.timeout_run_ns ? now_ns - t.timeout_run_ns : 0;
  put(kRtoTime, Capped((t.timeout_runs_ns + since_ns) / kMs));
}

}  // namespace

void FillInfo(const Tcb& t, uint64_t now_ns, uint32_t head_bytes, uint32_t notsent_bytes,
              Info& out) {
  tcp_info i = {};
  static_assert(sizeof i <= sizeof out.bytes);
  i.tcpi_state = Capped8(StateOf(t) == State::kClosed ? kLinuxClosed : t.state);
  i.tcpi_ca_state = Capped8(t.recovery);
  i.tcpi_retransmits = Capped8(t.rto_count);
  i.tcpi_probes = Capped8(t.probes_out);
  i.tcpi_backoff = Capped8(std::max(t.backoff, t.rtt.backoff));
  i.tcpi_options = Options(t);
  i.tcpi_snd_wscale = t.snd_wscale & 15;
  i.tcpi_rcv_wscale = t.rcv_wscale & 15;
  i.tcpi_snd_mss = t.mss_bytes;
  i.tcpi_rcv_mss = t.rcv_mss;
  i.tcpi_pmtu = t.mss_path + head_bytes;
  i.tcpi_advmss = AdvertisedMss(t);
  i.tcpi_reordering = t.reordering;
  i.tcpi_rcv_ssthresh = t.rcv_limit;
  // Until it is measured, what Linux begins with.
  i.tcpi_rcv_space = t.rcv_space_bytes != 0
                         ? t.rcv_space_bytes
                         : std::min(t.rcv_limit, kInitialSegments * i.tcpi_advmss);
  i.tcpi_notsent_bytes = notsent_bytes;
  Flight(t, i);
  Times(t, now_ns, i);
  Limits(t, now_ns, i);
  Counts(t, i);
  memset(out.bytes, 0, sizeof out.bytes);
  memcpy(out.bytes, &i, sizeof i);
  Later(t, now_ns, out);
}

}  // namespace postern::tcp
