// SPDX-License-Identifier: Apache-2.0
// tcp_info.cc - TCP_INFO, and TCP_INQ's message: of a connection that has no segments, or of one
// whose segments the engine knows.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/endpoint.h"
#include "offhost/wire_options.h"
#include "option/kernel_loopback.h"
#include "option/tcp_info.h"
#include "smcd/hold.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

// The fields that newer kernels have behind those of the C library's struct, by offset.
enum : size_t {
  kBytesAcked = 120,
  kBytesReceived = 128,
  kSegsOut = 136,
  kSegsIn = 140,
  kNotsentBytes = 144,
  kDataSegsIn = 152,
  kDataSegsOut = 156,
  kDelivered = 192,
  kBytesSent = 200,
  kEnd = 512
};

// `v` more than there is.
template <typename T>
void Add(uint8_t* info, size_t at, T v) {
  T had;
  memcpy(&had, info + at, sizeof had);
  v = static_cast<T>(v + had);
  memcpy(info + at, &v, sizeof v);
}

uint8_t StateOf(const ConnEnd& e) {
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  bool peer_fin = (peer & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0;
  bool own_fin = HasEnded(e);
  bool lost = (peer & PSTN_CF_RST) != 0 || (LoadRelaxed(e.ep->flags) & PSTN_EPF_HUNG) != 0;
  if (lost || (peer_fin && own_fin)) return TCP_CLOSE;
  if (own_fin) return TCP_FIN_WAIT2;
  return peer_fin ? TCP_CLOSE_WAIT : TCP_ESTABLISHED;
}

}  // namespace

// The kernel's socket, which has no connection, says how long the answer is on this kernel. What is
// known goes in; the rest is as over an idle loopback.
long GiveTcpInfo(Family& fam, int fd, pstn_ep& ep, void* value, socklen_t* len) {
  socklen_t room;
  if (!GetUser(room, len)) return -EFAULT;
  if (static_cast<int>(room) < 0) return -EINVAL;
  alignas(8) uint8_t all[kEnd] = {};
  socklen_t size = sizeof all;
  long r = sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP),
                     static_cast<long>(TCP_INFO), &all[0], &size);
  if (r < 0) return r;
  if (room > size) room = size;
  const auto give = [&](const uint8_t* from) -> long {
    return PutUser(len, room) && CopyUser(value, from, room) ? 0 : -EFAULT;
  };
  tcp::Info wire;
  if (WireInfo(fam, ep, wire)) return give(wire.bytes);
  ConnEnd e;
  const bool server = LoadRelaxed(ep.side) != 0;
  const Loopback* const said = LoopbackSays(fam);
  static_assert(sizeof said->info[0] == kEnd);
  if (said != nullptr) memcpy(all, said->info[server ? 1 : 0], size);
  tcp_info info;
  memcpy(&info, all, sizeof info);
  info.tcpi_state = Resolve(fam, ep, e) ? StateOf(e) : static_cast<uint8_t>(TCP_CLOSE);
  if (LoadAcquire(ep.state) == PSTN_EP_CONNECTING) info.tcpi_state = TCP_SYN_SENT;  // [E1]
  info.tcpi_rcv_mss = 536;
  const bool v4 = AddrIsV4(LoadAddr(ep.peer));
  info.tcpi_pmtu = v4 ? 65535 : 65536;
  info.tcpi_advmss = v4 ? 65483 : 65464;
  // Nothing has moved since it was connected, or it is not known when: then, it is not long ago.
  const uint64_t connected_ns =
      info.tcpi_state != TCP_CLOSE ? LoadRelaxed(e.conn->ctl[0].syn_ns) : 0;
  const uint64_t now_ns = MonotonicNs();
  const auto age_ms = static_cast<uint32_t>(
      connected_ns != 0 && connected_ns < now_ns ? (now_ns - connected_ns) / 1000000 : 0);
  const uint32_t held = info.tcpi_state != TCP_CLOSE ? HeldBytes(e) : 0;
  const uint64_t sent = LoadRelaxed(ep.tx.bytes) - held, received = LoadRelaxed(ep.rx.bytes);
  if (received != 0) info.tcpi_ato = 40000;
  info.tcpi_snd_mss = !server && (sent | received) == 0 ? info.tcpi_advmss / 2 : 32768;
  info.tcpi_last_data_sent = sent == 0 ? age_ms : 0;
  info.tcpi_last_data_recv = received == 0 ? age_ms : 0;
  info.tcpi_last_ack_recv = info.tcpi_last_data_sent;
  memcpy(all, &info, sizeof info);
  Add(all, kBytesAcked, sent);
  Add(all, kBytesSent, sent);
  Add(all, kBytesReceived, received);
  Add(all, kNotsentBytes, held);
  for (size_t at : {kSegsOut, kDataSegsOut, kDelivered})
    Add(all, at, uint32_t{LoadRelaxed(ep.tx.records)});
  // How many they were is not counted: as few as they can have been.
  const uint64_t came = (received + info.tcpi_advmss - 1) / info.tcpi_advmss;
  for (size_t at : {kSegsIn, kDataSegsIn}) Add(all, at, static_cast<uint32_t>(came));
  return give(all);
}

// Bytes that the call has left; 1 where the end is next, so that the program comes again.
void PutInq(Family& fam, pstn_ep& ep, msghdr& m, size_t room) {
  ConnEnd e;
  int v = 0;
  if (Resolve(fam, ep, e)) {
    {
      Guard g(e.ep->rx.lock);
      if (StillHere(e)) v = static_cast<int>(RingQueued(e, INT32_MAX));
    }
    // [C2]
    if (v == 0 && (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0) v = 1;
  }
  m.msg_controllen = room;
  PutControl(m, IPPROTO_TCP, 36 /* TCP_CM_INQ */, &v, sizeof v);
}

}  // namespace postern
