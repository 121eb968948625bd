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
  // ---- how often, and how long, it is tried
  uint32_t tcp_syn_retries = 6;
  uint32_t tcp_synack_retries = 5;
  uint32_t tcp_syn_linear_timeouts = 0;  // SYNs more, before the pauses grow; 4 since Linux 6.5
  uint32_t tcp_retries2 = 15;
  uint32_t tcp_orphan_retries = 0;  // 0: 8
  uint32_t tcp_keepalive_time = 7200;
  uint32_t tcp_keepalive_intvl = 75;
  uint32_t tcp_keepalive_probes = 9;
  uint32_t tcp_fin_timeout = 60;
  uint32_t tcp_rfc1337 = 0;  // 1: a RST does not end TIME_WAIT
  // ---- what is answered, and how fast
  uint32_t tcp_dsack = 1;
  uint32_t tcp_invalid_ratelimit = 500;  // ms
  uint32_t tcp_slow_start_after_idle = 1;
  uint32_t tcp_moderate_rcvbuf = 1;
};
inline constexpr Sysctls kSysctlsDefault = {};

struct NamedSysctl {
  const char* name;  // of the file in /proc/sys/net/ipv4
  uint32_t Sysctls::*value;
};
inline constexpr NamedSysctl kNamedSysctls[] = {
    {"tcp_timestamps", &Sysctls::tcp_timestamps},
    {"tcp_sack", &Sysctls::tcp_sack},
    {"tcp_window_scaling", &Sysctls::tcp_window_scaling},
    {"tcp_syn_retries", &Sysctls::tcp_syn_retries},
    {"tcp_synack_retries", &Sysctls::tcp_synack_retries},
    {"tcp_syn_linear_timeouts", &Sysctls::tcp_syn_linear_timeouts},
    {"tcp_retries2", &Sysctls::tcp_retries2},
    {"tcp_orphan_retries", &Sysctls::tcp_orphan_retries},
    {"tcp_keepalive_time", &Sysctls::tcp_keepalive_time},
    {"tcp_keepalive_intvl", &Sysctls::tcp_keepalive_intvl},
    {"tcp_keepalive_probes", &Sysctls::tcp_keepalive_probes},
    {"tcp_fin_timeout", &Sysctls::tcp_fin_timeout},
    {"tcp_rfc1337", &Sysctls::tcp_rfc1337},
    {"tcp_dsack", &Sysctls::tcp_dsack},
    {"tcp_invalid_ratelimit", &Sysctls::tcp_invalid_ratelimit},
    {"tcp_slow_start_after_idle", &Sysctls::tcp_slow_start_after_idle},
    {"tcp_moderate_rcvbuf", &Sysctls::tcp_moderate_rcvbuf},
};
static_assert(sizeof(Sysctls) == sizeof(uint32_t) * std::size(kNamedSysctls));

}  // namespace postern::tcp
