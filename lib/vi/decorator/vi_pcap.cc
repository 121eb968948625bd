// SPDX-License-Identifier: Apache-2.0
// vi_pcap.cc - see vi_pcap.h.
#include "vi/decorator/vi_pcap.h"

#include <sys/uio.h>

#include <cstring>

#include "base/sys.h"

namespace postern {
namespace {

constexpr uint32_t kSection = 0x0a0d0d0a, kInterface = 1, kPacket = 6;
constexpr uint32_t kByteOrder = 0x1a2b3c4d;
constexpr uint16_t kEthernet = 1;
constexpr uint16_t kOptionEnd = 0, kOptionName = 2, kOptionResolution = 9, kOptionFlags = 2;
constexpr uint32_t kInbound = 1, kOutbound = 2;
constexpr uint32_t kNameMax = 64;

constexpr uint32_t Padded(uint32_t bytes) { return (bytes + 3) & ~3u; }

struct OptionHead {
  uint16_t code, bytes;
};

struct SectionBlock {
  uint32_t type = kSection, bytes = sizeof(SectionBlock);
  uint32_t byte_order = kByteOrder;
  uint16_t major = 1, minor = 0;
  uint32_t length[2] = {0xffffffff, 0xffffffff};  // not known
  uint32_t bytes_again = sizeof(SectionBlock);
};
static_assert(sizeof(SectionBlock) == 28);

struct InterfaceHead {
  uint32_t type = kInterface, bytes = 0;
  uint16_t link = kEthernet, zero = 0;
  uint32_t snap_bytes = 0;  // no limit
};

struct InterfaceTail {
  OptionHead resolution = {kOptionResolution, 1};
  uint8_t nano[4] = {9, 0, 0, 0};
  OptionHead end = {kOptionEnd, 0};
};

struct PacketHead {
  uint32_t type = kPacket, bytes = 0;
  uint32_t interface = 0;
  uint32_t time_high = 0, time_low = 0;
  uint32_t captured_bytes = 0, original_bytes = 0;
};

struct PacketTail {
  OptionHead flags = {kOptionFlags, 4};
  uint32_t direction = 0;
  OptionHead end = {kOptionEnd, 0};
  uint32_t bytes = 0;
};
static_assert(sizeof(PacketHead) == 28 && sizeof(PacketTail) == 16);

// Whole, or -errno.
int WriteAll(int fd, iovec* iov, uint32_t count) {
  for (uint32_t at = 0; at < count;) {
    const long n = sys::Call(SYS_writev, fd, iov + at, count - at);
    if (n < 0) return static_cast<int>(n);
    size_t left = static_cast<size_t>(n);
    while (at < count && left >= iov[at].iov_len) left -= iov[at++].iov_len;
    if (at < count) {
      iov[at].iov_base = static_cast<uint8_t*>(iov[at].iov_base) + left;
      iov[at].iov_len -= left;
    }
  }
  return 0;
}

iovec Piece(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

}  // namespace

PcapVi::PcapVi(Vi& inner, Area& area, int fd, const char* name, Clock clock, void* context)
    : ForwardVi(inner), area_(area), fd_(fd), clock_(clock), context_(context) {
  WriteHeader(name);
}

void PcapVi::WriteHeader(const char* name) {
  char padded[kNameMax] = {};
  const auto length = static_cast<uint32_t>(strnlen(name, kNameMax));
  memcpy(padded, name, length);
  const SectionBlock section;
  InterfaceHead head;
  const OptionHead name_head = {kOptionName, static_cast<uint16_t>(length)};
  const InterfaceTail tail;
  head.bytes = static_cast<uint32_t>(sizeof head + sizeof name_head + Padded(length) + sizeof tail +
                                     sizeof head.bytes);
  iovec iov[] = {Piece(&section, sizeof section),     Piece(&head, sizeof head),
                 Piece(&name_head, sizeof name_head), Piece(padded, Padded(length)),
                 Piece(&tail, sizeof tail),           Piece(&head.bytes, sizeof head.bytes)};
  error_ = WriteAll(fd_, iov, 6);
}

void PcapVi::WritePacket(const Part* parts, uint32_t count, uint32_t direction) {
  static constexpr uint8_t kZero[4] = {};
  const uint64_t now_ns = clock_(context_);
  PacketHead head;
  PacketTail tail;
  iovec iov[kPartsMax + 3];
  uint32_t n = 1;
  for (uint32_t i = 0; i < count; i++) {
    if (parts[i].data == nullptr) continue;
    iov[n++] = Piece(parts[i].data, parts[i].bytes);
    head.captured_bytes += parts[i].bytes;
  }
  const uint32_t pad = Padded(head.captured_bytes) - head.captured_bytes;
  head.original_bytes = head.captured_bytes;
  head.time_high = static_cast<uint32_t>(now_ns >> 32);
  head.time_low = static_cast<uint32_t>(now_ns);
  head.bytes = static_cast<uint32_t>(sizeof head + head.captured_bytes + pad + sizeof tail);
  tail.direction = direction;
  tail.bytes = head.bytes;
  iov[0] = Piece(&head, sizeof head);
  iov[n++] = Piece(kZero, pad);
  iov[n++] = Piece(&tail, sizeof tail);
  if (const int failed = WriteAll(fd_, iov, n); failed != 0 && error_ == 0) error_ = failed;
}

uint32_t PcapVi::Receive(ViRx* rx, uint32_t max) {
  const uint32_t got = inner_.Receive(rx, max);
  Part parts[kPartsMax];
  uint32_t n = 0;
  for (uint32_t i = 0; i < got; i++) {
    parts[n++] = {area_.At(rx[i].frame, rx[i].off), rx[i].bytes};
    if ((rx[i].flags & kRxMore) != 0 && n < kPartsMax && i + 1 < got) continue;
    WritePacket(parts, n, kInbound);
    n = 0;
  }
  return got;
}

// Before it is handed on: a frame in the ring is not ours to read.
uint32_t PcapVi::Send(const ViTx* tx, uint32_t count) {
  uint32_t done = 0;
  // One packet at a time, since what is not taken must not be in the file.
  while (done < count) {
    Part parts[kPartsMax];
    uint32_t n = 0, end = done;
    do {
      parts[n++] = {area_.At(tx[end].frame, tx[end].off), tx[end].bytes};
    } while ((tx[end++].flags & kTxMore) != 0 && end < count && n < kPartsMax);
    if (inner_.SendRoom(tx[done].queue) < n) break;
    WritePacket(parts, n, kOutbound);
    if (inner_.Send(tx + done, end - done) != end - done) break;
    done = end;
  }
  return done;
}

}  // namespace postern
