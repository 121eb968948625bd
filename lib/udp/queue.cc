// SPDX-License-Identifier: Apache-2.0
// queue.cc - what waits at an endpoint: datagrams and errors, both against SO_RCVBUF.
//
// An entry is complete before it is linked, and unlinked before it is given back. A death in
// between loses one entry; tail, count and charge may be those of before, which Mend() sees to.
#include <errno.h>
#include <algorithm>

#include "base/iov.h"
#include "udp/parts.h"

namespace postern::udp {
namespace {

constexpr uint32_t kGroCountMax = 64;  // UDP_GRO_CNT_MAX
constexpr uint32_t kGroBytesMax = 65535;
constexpr uint8_t kOriginIcmp = 2, kOriginIcmp6 = 3;  // SO_EE_ORIGIN_ICMP and _ICMP6

bool HasRoom(const Endpoint& e, uint32_t cost) {
  // One is taken however small the buffer is.
  return e.charged_bytes == 0 ||
         (cost <= e.rcvbuf_bytes && e.charged_bytes <= e.rcvbuf_bytes - cost);
}

// Copies a payload to where the program wants it.
uint32_t CopyTo(IovCursor& to, uint32_t packet, uint32_t off, uint32_t bytes, Host& host) {
  if (bytes == 0 || packet == kNone) return 0;
  return static_cast<uint32_t>(to.CopyIn(host.PacketAt(packet, off), bytes));
}

void DropFirst(Endpoint& e, Host& host) {
  const uint32_t idx = e.rx_head;
  const Received& r = host.ReceivedAt(idx);
  const uint32_t packet = r.packet;
  e.rx_head = r.next;
  if (e.rx_head == kNone) e.rx_tail = kNone;
  e.rx_count--;
  e.charged_bytes -= r.cost;
  host.GiveReceived(idx);
  host.Drop(packet);
}

void DropFirstError(Endpoint& e, Host& host) {
  const uint32_t idx = e.err_head;
  const Failed& f = host.FailedAt(idx);
  const uint32_t packet = f.packet;
  e.err_head = f.next;
  if (e.err_head == kNone) e.err_tail = kNone;
  e.charged_bytes -= f.cost;
  host.GiveFailed(idx);
  if (packet != kNone) host.Drop(packet);
}

bool SameFlow(const Received& a, const Received& b) {
  return a.source == b.source && a.dest == b.dest && a.source_port == b.source_port &&
         a.ifindex == b.ifindex && a.tos == b.tos && a.ttl == b.ttl;
}

// How many of the first datagrams UDP_GRO makes one of: of one flow and one size; the last may be
// shorter. Never more than the buffer takes, so nothing is cut off that would not have been.
uint32_t GroRun(const Endpoint& e, size_t room, Host& host) {
  const Received& first = host.ReceivedAt(e.rx_head);
  if (!Has(e, kGro) || first.bytes == 0) return 1;
  uint32_t count = 1;
  uint64_t total = first.bytes;
  for (uint32_t i = first.next; i != kNone && count < kGroCountMax; i = host.ReceivedAt(i).next) {
    const Received& r = host.ReceivedAt(i);
    total += r.bytes;
    if (!SameFlow(first, r) || r.bytes == 0 || r.bytes > first.bytes) break;
    if (total > room || total > kGroBytesMax) break;
    count++;
    if (r.bytes < first.bytes) break;
  }
  return count;
}

// Whether a chain ends within so many entries: no death makes it a ring, a stray store might.
template <typename NextFn>
bool Ends(uint32_t head, uint32_t limit, NextFn next) {
  for (; head != kNone && limit > 0; limit--) head = next(head);
  return head == kNone;
}

bool IsIcmp(const Failed& f) { return f.origin == kOriginIcmp || f.origin == kOriginIcmp6; }

}  // namespace

bool Enqueue(uint32_t idx, const DatagramIn& in, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  const uint32_t cost = DatagramCost(in.bytes);
  const uint32_t at = HasRoom(e, cost) ? host.TakeReceived() : kNone;
  if (at == kNone || !host.Keep(in.packet)) {
    if (at != kNone) host.GiveReceived(at);
    e.drops++;
    return false;
  }
  Received& r = host.ReceivedAt(at);
  r = {};
  r.source = in.source;
  r.dest = in.dest;
  r.source_port = in.source_port;
  r.tos = in.tos;
  r.ttl = in.ttl;
  r.ifindex = in.ifindex;
  r.packet = in.packet;
  r.off = in.off;
  r.bytes = in.bytes;
  r.cost = cost;
  r.drops = e.drops;
  r.next = kNone;
  r.arrived_ns = in.arrived_ns;
  (e.rx_tail == kNone ? e.rx_head : host.ReceivedAt(e.rx_tail).next) = at;
  e.rx_tail = at;
  e.rx_count++;
  e.charged_bytes += cost;
  host.Wake(idx, Event::kReadable);
  return true;
}

bool EnqueueError(uint32_t idx, const Failed& failed, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  const uint32_t cost = DatagramCost(failed.bytes);
  const uint32_t at = HasRoom(e, cost) ? host.TakeFailed() : kNone;
  if (at == kNone) return false;
  Failed& f = host.FailedAt(at);
  f = failed;
  f.cost = cost;
  f.next = kNone;
  if (f.packet != kNone && !host.Keep(f.packet)) {
    f.packet = kNone;
    f.bytes = 0;
  }
  (e.err_tail == kNone ? e.err_head : host.FailedAt(e.err_tail).next) = at;
  e.err_tail = at;
  e.charged_bytes += cost;
  return true;
}

void EmptyQueues(Endpoint& e, Host& host) {
  while (e.rx_head != kNone) DropFirst(e, host);
  while (e.err_head != kNone) DropFirstError(e, host);
}

int64_t Receive(uint32_t idx, const ReceiveArgs& args, ReceiveInfo& info, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  info = {};
  if (e.error != 0) return -TakeError(e);
  if (e.rx_head == kNone) return Has(e, kShutRead) ? 0 : -EAGAIN;
  IovCursor to(args.iov, args.iov_count);
  const Received first = host.ReceivedAt(e.rx_head);
  const uint32_t run = GroRun(e, to.left(), host);
  info.source = first.source;
  info.dest = first.dest;
  info.source_port = first.source_port;
  info.tos = first.tos;
  info.ttl = first.ttl;
  info.ifindex = first.ifindex;
  info.drops = first.drops;
  info.arrived_ns = first.arrived_ns;
  info.gro_bytes = run > 1 ? first.bytes : 0;
  int64_t copied = 0;
  uint32_t at = e.rx_head;
  for (uint32_t i = 0; i < run; i++) {
    const Received& r = host.ReceivedAt(at);
    copied += CopyTo(to, r.packet, r.off, r.bytes, host);
    info.bytes += r.bytes;
    at = r.next;
    if (!args.peek) DropFirst(e, host);
  }
  return copied;
}

// As Linux's sock_dequeue_err_skb: the pending error is that of the first in the queue that ICMP
// has brought, and over when the last of these was read.
int64_t ReceiveError(uint32_t idx, const ReceiveArgs& args, ErrorInfo& info, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  info = {};
  if (e.err_head == kNone) return -EAGAIN;
  const Failed f = host.FailedAt(e.err_head);
  info.dest = f.dest;
  info.from = f.from;
  info.dest_port = f.dest_port;
  info.origin = f.origin;
  info.type = f.type;
  info.code = f.code;
  info.error = f.error;
  info.info = f.info;
  info.ifindex = f.ifindex;
  info.bytes = f.bytes;
  IovCursor to(args.iov, args.iov_count);
  const uint32_t copied = CopyTo(to, f.packet, f.off, f.bytes, host);
  DropFirstError(e, host);
  const bool more = e.err_head != kNone && IsIcmp(host.FailedAt(e.err_head));
  if (more) {
    e.error = host.FailedAt(e.err_head).error;
  } else if (IsIcmp(f)) {
    e.error = 0;
  }
  return copied;
}

uint32_t NextBytes(uint32_t idx, Host& host) {
  const Endpoint& e = host.EndpointAt(idx);
  return e.rx_head == kNone ? 0 : host.ReceivedAt(e.rx_head).bytes;
}

void Mend(uint32_t idx, uint32_t limit, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  e.rx_tail = e.err_tail = kNone;
  e.rx_count = e.charged_bytes = 0;
  if (!Ends(e.rx_head, limit, [&](uint32_t i) { return host.ReceivedAt(i).next; }))
    e.rx_head = kNone;
  if (!Ends(e.err_head, limit, [&](uint32_t i) { return host.FailedAt(i).next; }))
    e.err_head = kNone;
  for (uint32_t i = e.rx_head; i != kNone; i = host.ReceivedAt(i).next) {
    e.rx_tail = i;
    e.rx_count++;
    e.charged_bytes += host.ReceivedAt(i).cost;
  }
  for (uint32_t i = e.err_head; i != kNone; i = host.FailedAt(i).next) {
    e.err_tail = i;
    e.charged_bytes += host.FailedAt(i).cost;
  }
}

}  // namespace postern::udp
