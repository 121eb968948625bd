// SPDX-License-Identifier: Apache-2.0
// info.h - a connection as Linux's TCP_INFO shows it.
#pragma once
#include <cstdint>

#include "tcp/tcb.h"

namespace postern::tcp {

// struct tcp_info as far as this build's kernel headers know it; a longer one of a newer kernel
// goes on with zeroes.
inline constexpr uint32_t kInfoBytesMax = 512;
struct Info {
  alignas(8) uint8_t bytes[kInfoBytesMax];
};

// `head_bytes`: of the IP and TCP headers without options. `notsent_bytes`: what the Host has that
// TCP has not sent yet.
void FillInfo(const Tcb& tcb, uint64_t now_ns, uint32_t head_bytes, uint32_t notsent_bytes,
              Info& out);

}  // namespace postern::tcp
