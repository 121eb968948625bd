// SPDX-License-Identifier: Apache-2.0
// udp.h - UDP (RFC 768, 1122 4.1, 8085) without I/O: what a datagram socket does between its calls
// and the wire.
//
// Every entry takes the stack's Ports, the index of an endpoint, and the Host. None blocks,
// allocates or looks at a clock. Results are errno values, negative, as Linux's calls return them;
// 0 or a count of bytes else. Conflicts of ports are not found here: the kernel's socket, which
// each endpoint has, was bound first and has found them. docs/protocols/udp.md says what is done
// and what isn't.
#pragma once
#include "udp/udp_host.h"

namespace postern::udp {

void InitPorts(Ports& ports, const SipKey& secret);

// ---- the life of an endpoint
void Open(Endpoint& e, uint16_t family, uint32_t uid);
// The local name, known to be free and ours; an endpoint has one at most. -EINVAL.
int Bind(Ports& ports, uint32_t idx, const IpAddress& local, uint16_t port, Host& host);
// -EACCES (broadcast not allowed), -EAFNOSUPPORT, -EAGAIN (no port), or what Route() says.
int Connect(Ports& ports, uint32_t idx, const IpAddress& remote, uint16_t port, Host& host);
void Disconnect(Ports& ports, uint32_t idx, Host& host);  // AF_UNSPEC
void Close(Ports& ports, uint32_t idx, Host& host);       // gives back all that it has

// ---- multicast: IP_ADD_MEMBERSHIP and so on; -EINVAL, -EADDRINUSE, -EADDRNOTAVAIL, -ENOBUFS
int Join(uint32_t idx, const IpAddress& group, uint32_t ifindex, Host& host);
int Leave(uint32_t idx, const IpAddress& group, uint32_t ifindex, Host& host);
// `block`: all but this source (IP_BLOCK_SOURCE), of a group that was joined; else from this source
// (IP_ADD_SOURCE_MEMBERSHIP, which joins). Undo: IP_UNBLOCK_SOURCE, IP_DROP_SOURCE_MEMBERSHIP.
enum class SourceOp : uint8_t { kBlock, kUnblock, kAdd, kRemove };
int ChangeSource(uint32_t idx, const IpAddress& group, const IpAddress& source, uint32_t ifindex,
                 SourceOp op, Host& host);

// ---- what comes in
enum class Verdict : uint8_t {
  kDelivered,  // to one endpoint at least
  kNoPort,     // no socket is there: an ICMP "port unreachable" is due, if it was sent to us alone
  kDropped,    // there was, but it had no room
  kInvalid,    // its checksum
};
Verdict Input(Ports& ports, const DatagramIn& in, Host& host);
// Nothing that doesn't match an endpoint's names is believed (RFC 5927).
void Icmp(Ports& ports, const IcmpIn& in, Host& host);
// The endpoint that would get a unicast datagram with these names; kNone: none.
uint32_t Lookup(const Ports& ports, const DatagramIn& in, Host& host);

// ---- what goes out
struct SendArgs {
  const iovec* iov = nullptr;
  uint32_t iov_count = 0;
  IpAddress dest = {};  // any and port 0: the connected one
  uint16_t dest_port = 0;
  bool has_dest = false;
  bool confirm = false;  // MSG_CONFIRM
  // Control messages; what isn't set is the socket's.
  IpAddress source = {};  // IP_PKTINFO
  uint32_t ifindex = 0;
  int ttl = -1, tos = -1;
  int gso_bytes = -1;  // UDP_SEGMENT
};
// Bytes sent, all or none: -EAGAIN when the wire has no room (with UDP_SEGMENT: for the first of
// them; the others are lost as on a full queue). -EDESTADDRREQ, -EMSGSIZE, -EINVAL, -EACCES,
// -EPIPE, -EAFNOSUPPORT, -ENETUNREACH ..., or the endpoint's pending error.
int64_t Send(Ports& ports, uint32_t idx, const SendArgs& args, Host& host);

// ---- what the program receives
struct ReceiveArgs {
  const iovec* iov = nullptr;
  uint32_t iov_count = 0;
  bool peek = false;
};
struct ReceiveInfo {
  IpAddress source, dest;  // dest: IP_PKTINFO's ipi_addr
  uint16_t source_port;
  uint8_t tos, ttl;
  uint32_t ifindex;
  uint32_t bytes;       // that there were: more than returned means MSG_TRUNC
  uint32_t gro_bytes;   // UDP_GRO: size of each but the last; 0: it is one datagram
  uint32_t drops;       // SO_RXQ_OVFL; 0: not to be told
  uint64_t arrived_ns;  // SO_TIMESTAMPNS
};
// Bytes copied. The pending error first (and once), then what is queued; -EAGAIN: nothing, or 0
// after shutdown.
int64_t Receive(uint32_t idx, const ReceiveArgs& args, ReceiveInfo& info, Host& host);

struct ErrorInfo {
  IpAddress dest, from;  // msg_name; SO_EE_OFFENDER, any if it was us
  uint16_t dest_port;
  uint8_t origin, type, code;
  int32_t error;
  uint32_t info;  // MTU
  uint32_t ifindex;
  uint32_t bytes;
};
// MSG_ERRQUEUE. -EAGAIN: empty. The next one's error, if any, becomes the pending error.
int64_t ReceiveError(uint32_t idx, const ReceiveArgs& args, ErrorInfo& info, Host& host);

int TakeError(Endpoint& e);  // SO_ERROR: the pending error, which is over by that
inline bool IsReadable(const Endpoint& e) { return e.rx_count != 0; }
// Payload of the first datagram (FIONREAD, SIOCINQ); 0: none.
uint32_t NextBytes(uint32_t idx, Host& host);

// After the death of the lock's holder, perhaps in the middle of a call for this endpoint:
// tails, counts and charges are made anew. A queue of more than `limit` entries is none, and given
// up (its entries are the Host's to find).
void Mend(uint32_t idx, uint32_t limit, Host& host);
// The same for the look-up tables: `ports` has been made anew, and each endpoint comes back.
void Rechain(Ports& ports, uint32_t idx, Host& host);

}  // namespace postern::udp
