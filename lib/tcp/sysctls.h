// SPDX-License-Identifier: Apache-2.0
// sysctls.h - the host's settings that TCP follows, by the names that Linux gives them
// (Documentation/networking/ip-sysctl.rst), in its units. They may change at any time; each is
// looked at when it counts, as in Linux.
#pragma once
#include <cstdint>
#include <iterator>

namespace postern::tcp {

struct Sysctls {
  // ---- what is agreed on in a handshake
  uint32_t tcp_timestamps = 1;  // 2: without an offset of their own for each connection
  uint32_t tcp_sack = 1;
  uint32_t tcp_window_scaling = 1;
  uint32_t tcp_ecn_fallback = 1;  // 1: a SYN that is repeated does not ask for ECN
  // ---- how often, and how long, it is tried
  uint32_t tcp_syn_retries = 6;
  uint32_t tcp_synack_retries = 5;
  uint32_t tcp_syn_linear_timeouts = 0;  // SYNs more, before the pauses grow; 4 since Linux 6.5
  uint32_t tcp_retries1 = 3;             // time-outs before the path is suspected
  uint32_t tcp_retries2 = 15;
  uint32_t tcp_orphan_retries = 0;  // 0: 8
  uint32_t tcp_keepalive_time = 7200;
  uint32_t tcp_keepalive_intvl = 75;
  uint32_t tcp_keepalive_probes = 9;
  uint32_t tcp_fin_timeout = 60;
  uint32_t tcp_rfc1337 = 0;  // 1: a RST does not end TIME_WAIT
  // ---- loss, and how soon it is noticed
  uint32_t tcp_rto_min_us = 200000;
  uint32_t tcp_rto_max_ms = 120000;
  uint32_t tcp_early_retrans = 3;  // 3 and 4: TLP
  uint32_t tcp_recovery = 1;       // 2: RACK's window does not adapt; 4: nor does it close
  uint32_t tcp_frto = 2;           // 0: no F-RTO
  uint32_t tcp_reordering = 3;
  uint32_t tcp_max_reordering = 300;
  uint32_t tcp_thin_linear_timeouts = 0;
  uint32_t tcp_min_rtt_wlen = 300;  // s
  uint32_t tcp_retrans_collapse = 1;
  // 1: after time-outs, a smaller MSS; 2 counts as 1. Linux's own values are 0 and, for the floor,
  // 48; these are for a host that says nothing.
  uint32_t tcp_mtu_probing = 1;
  uint32_t tcp_base_mss = 1024;
  uint32_t tcp_mtu_probe_floor = 512;
  uint32_t tcp_min_snd_mss = 48;
  // ---- what is answered, and how fast
  uint32_t tcp_dsack = 1;
  uint32_t tcp_invalid_ratelimit = 500;  // ms
  uint32_t tcp_pingpong_thresh = 1;
  uint32_t tcp_comp_sack_delay_ns = 1000000;
  uint32_t tcp_comp_sack_nr = 44;
  uint32_t tcp_stdurg = 0;
  // ---- what is sent, and what is offered
  uint32_t tcp_slow_start_after_idle = 1;
  uint32_t tcp_pacing_ss_ratio = 200, tcp_pacing_ca_ratio = 120;
  uint32_t tcp_moderate_rcvbuf = 1;
  uint32_t tcp_workaround_signed_windows = 0;
  uint32_t tcp_rmem_default = 131072, tcp_rmem_max = 6291456;
  // ---- listeners
  uint32_t tcp_max_syn_backlog = 4096;
  uint32_t tcp_abort_on_overflow = 0;
};
inline constexpr Sysctls kSysctlsDefault = {};

struct NamedSysctl {
  const char* name;  // of the file in /proc/sys/net/ipv4
  uint32_t Sysctls::*value;
  uint32_t word = 0;  // which of the numbers in it
};
inline constexpr NamedSysctl kNamedSysctls[] = {
    {"tcp_timestamps", &Sysctls::tcp_timestamps},
    {"tcp_sack", &Sysctls::tcp_sack},
    {"tcp_window_scaling", &Sysctls::tcp_window_scaling},
    {"tcp_ecn_fallback", &Sysctls::tcp_ecn_fallback},
    {"tcp_syn_retries", &Sysctls::tcp_syn_retries},
    {"tcp_synack_retries", &Sysctls::tcp_synack_retries},
    {"tcp_syn_linear_timeouts", &Sysctls::tcp_syn_linear_timeouts},
    {"tcp_retries1", &Sysctls::tcp_retries1},
    {"tcp_retries2", &Sysctls::tcp_retries2},
    {"tcp_orphan_retries", &Sysctls::tcp_orphan_retries},
    {"tcp_keepalive_time", &Sysctls::tcp_keepalive_time},
    {"tcp_keepalive_intvl", &Sysctls::tcp_keepalive_intvl},
    {"tcp_keepalive_probes", &Sysctls::tcp_keepalive_probes},
    {"tcp_fin_timeout", &Sysctls::tcp_fin_timeout},
    {"tcp_rfc1337", &Sysctls::tcp_rfc1337},
    {"tcp_rto_min_us", &Sysctls::tcp_rto_min_us},
    {"tcp_rto_max_ms", &Sysctls::tcp_rto_max_ms},
    {"tcp_early_retrans", &Sysctls::tcp_early_retrans},
    {"tcp_recovery", &Sysctls::tcp_recovery},
    {"tcp_frto", &Sysctls::tcp_frto},
    {"tcp_reordering", &Sysctls::tcp_reordering},
    {"tcp_max_reordering", &Sysctls::tcp_max_reordering},
    {"tcp_thin_linear_timeouts", &Sysctls::tcp_thin_linear_timeouts},
    {"tcp_min_rtt_wlen", &Sysctls::tcp_min_rtt_wlen},
    {"tcp_retrans_collapse", &Sysctls::tcp_retrans_collapse},
    {"tcp_mtu_probing", &Sysctls::tcp_mtu_probing},
    {"tcp_base_mss", &Sysctls::tcp_base_mss},
    {"tcp_mtu_probe_floor", &Sysctls::tcp_mtu_probe_floor},
    {"tcp_min_snd_mss", &Sysctls::tcp_min_snd_mss},
    {"tcp_dsack", &Sysctls::tcp_dsack},
    {"tcp_invalid_ratelimit", &Sysctls::tcp_invalid_ratelimit},
    {"tcp_pingpong_thresh", &Sysctls::tcp_pingpong_thresh},
    {"tcp_comp_sack_delay_ns", &Sysctls::tcp_comp_sack_delay_ns},
    {"tcp_comp_sack_nr", &Sysctls::tcp_comp_sack_nr},
    {"tcp_stdurg", &Sysctls::tcp_stdurg},
    {"tcp_slow_start_after_idle", &Sysctls::tcp_slow_start_after_idle},
    {"tcp_pacing_ss_ratio", &Sysctls::tcp_pacing_ss_ratio},
    {"tcp_pacing_ca_ratio", &Sysctls::tcp_pacing_ca_ratio},
    {"tcp_moderate_rcvbuf", &Sysctls::tcp_moderate_rcvbuf},
    {"tcp_workaround_signed_windows", &Sysctls::tcp_workaround_signed_windows},
    {"tcp_rmem", &Sysctls::tcp_rmem_default, 1},
    {"tcp_rmem", &Sysctls::tcp_rmem_max, 2},
    {"tcp_max_syn_backlog", &Sysctls::tcp_max_syn_backlog},
    {"tcp_abort_on_overflow", &Sysctls::tcp_abort_on_overflow},
};
static_assert(sizeof(Sysctls) == sizeof(uint32_t) * std::size(kNamedSysctls));

}  // namespace postern::tcp
