// tcp_header.cc - parsing and building TCP headers and options.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/tcp_header.h"

#include "abi/syn_option.h"

namespace postern::wire {
namespace {

using tcp::SegmentIn;
using tcp::SegmentOptions;
using tcp::SegmentOut;
using tcp::Seq;

constexpr uint8_t kOptionEnd = 0, kOptionNop = 1, kOptionMss = 2, kOptionWindowScale = 3,
                  kOptionSackPermitted = 4, kOptionSack = 5, kOptionTimestamps = 8;
constexpr uint8_t kMssBytes = 4, kWindowScaleBytes = 3, kSackPermittedBytes = 2,
                  kTimestampsBytes = 10, kSackBytes = 2, kSackBlockBytes = 8;
// What nearly all segments of a connection have: two no-operations, then timestamps.
constexpr uint32_t kUsualOptions =
    kOptionNop << 24 | kOptionNop << 16 | kOptionTimestamps << 8 | kTimestampsBytes;
constexpr uint32_t kUsualBytes = 12;
constexpr uint8_t kSmcExid[4] = {PSTN_SYN_EXID_0, PSTN_SYN_EXID_1, PSTN_SYN_EXID_2,
                                 PSTN_SYN_EXID_3};

void TakeTimestamps(const uint8_t* data, SegmentOptions& out) {
  out.has_timestamps = true;
  out.ts_value = LoadBe32(data);
  out.ts_echo = LoadBe32(data + 4);
}

void TakeSack(const uint8_t* data, uint32_t bytes, SegmentOptions& out) {
  if (bytes == 0 || bytes % kSackBlockBytes != 0) return;
  out.sack_count = bytes / kSackBlockBytes;  // 38 bytes have room for four
  for (uint32_t i = 0; i < out.sack_count; i++) {
    const uint8_t* block = data + static_cast<size_t>(i) * kSackBlockBytes;
    out.sack[i] = {Seq(LoadBe32(block)), Seq(LoadBe32(block + 4))};
  }
}

// An option of which `bytes` follow its kind and length. One of the wrong length means nothing. The
// second four belong into a SYN: elsewhere they mean nothing either.
void TakeOption(uint8_t kind, const uint8_t* data, uint32_t bytes, bool is_syn,
                SegmentOptions& out) {
  switch (kind) {
    case kOptionTimestamps:
      if (bytes + 2 == kTimestampsBytes) TakeTimestamps(data, out);
      break;
    case kOptionSack:
      TakeSack(data, bytes, out);
      break;
    case kOptionMss:
      // 0 is no size: as if it were not there.
      if (is_syn && bytes + 2 == kMssBytes && LoadBe16(data) != 0) out.mss = LoadBe16(data);
      break;
    case kOptionWindowScale:
      if (!is_syn || bytes + 2 != kWindowScaleBytes) break;
      out.has_window_scale = true;
      out.window_scale = data[0];
      break;
    case kOptionSackPermitted:
      if (is_syn && bytes + 2 == kSackPermittedBytes) out.sack_permitted = true;
      break;
    case PSTN_SYN_KIND:
      if (is_syn && bytes + 2 == PSTN_SYN_LEN && memcmp(data, kSmcExid, sizeof kSmcExid) == 0)
        out.has_smc = true;
      break;
    default:
      //= rfc9293#3.1
      //# A TCP implementation MUST ignore without error any TCP Option it does not implement
      break;
  }
}

// Ends at the first option whose length is impossible: what has been read so far holds.
void ParseOptions(const uint8_t* at, uint32_t bytes, bool is_syn, SegmentOptions& out) {
  for (uint32_t i = 0; i < bytes && at[i] != kOptionEnd;) {
    if (at[i] == kOptionNop) {
      i++;
      continue;
    }
    if (bytes - i < 2 || at[i + 1] < 2 || at[i + 1] > bytes - i) return;
    TakeOption(at[i], at + i + 2, at[i + 1] - 2u, is_syn, out);
    i += at[i + 1];
  }
}

// ---------------------------------------------------------------- to be sent

uint32_t FixedOptionBytes(const SegmentOptions& options) {
  uint32_t bytes = 0;
  if (options.mss != 0) bytes += kMssBytes;
  if (options.has_timestamps) {
    bytes += kUsualBytes;
  } else if (options.sack_permitted) {
    bytes += 4;
  }
  if (options.has_window_scale) bytes += 4;
  if (options.has_smc) bytes += 2 + PSTN_SYN_LEN;
  return bytes;
}

uint32_t SackCount(const SegmentOptions& options) {
  const uint32_t used = FixedOptionBytes(options) + 2 + kSackBytes;
  const uint32_t room = used < kTcpOptionBytesMax ? (kTcpOptionBytesMax - used) / 8 : 0;
  const uint32_t count =
      options.sack_count < tcp::kSackBlocksMax ? options.sack_count : tcp::kSackBlocksMax;
  return count < room ? count : room;
}

class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}
  void Put(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
    at_[0] = a;
    at_[1] = b;
    at_[2] = c;
    at_[3] = d;
    at_ += 4;
  }
  void Put32(uint32_t value) {
    reinterpret_cast<Be32*>(at_)->set(value);
    at_ += 4;
  }
  const uint8_t* at() const { return at_; }

 private:
  uint8_t* at_;
};

// In Linux's order, and aligned as there: what looks like Linux meets no surprised middlebox.
void PutOptions(Writer& out, const SegmentOptions& options) {
  if (options.mss != 0)
    out.Put(kOptionMss, kMssBytes, static_cast<uint8_t>(options.mss >> 8),
            static_cast<uint8_t>(options.mss));
  if (options.has_timestamps) {
    if (options.sack_permitted) {
      out.Put(kOptionSackPermitted, kSackPermittedBytes, kOptionTimestamps, kTimestampsBytes);
    } else {
      out.Put32(kUsualOptions);
    }
    out.Put32(options.ts_value);
    out.Put32(options.ts_echo);
  } else if (options.sack_permitted) {
    out.Put(kOptionNop, kOptionNop, kOptionSackPermitted, kSackPermittedBytes);
  }
  if (options.has_window_scale)
    out.Put(kOptionNop, kOptionWindowScale, kWindowScaleBytes, options.window_scale);
  if (const uint32_t count = SackCount(options); count != 0) {
    out.Put(kOptionNop, kOptionNop, kOptionSack,
            static_cast<uint8_t>(kSackBytes + count * kSackBlockBytes));
    for (uint32_t i = 0; i < count; i++) {
      out.Put32(options.sack[i].left.value());
      out.Put32(options.sack[i].right.value());
    }
  }
  if (options.has_smc) {
    out.Put(kOptionNop, kOptionNop, PSTN_SYN_KIND, PSTN_SYN_LEN);
    out.Put(kSmcExid[0], kSmcExid[1], kSmcExid[2], kSmcExid[3]);
  }
}

}  // namespace

bool ParseTcp(const uint8_t* at, uint32_t bytes, SegmentIn& out) {
  if (bytes < kTcpHeaderBytes) return false;
  const auto& h = *reinterpret_cast<const TcpHeader*>(at);
  const uint32_t header_bytes = (h.data_off >> 4) * 4u;
  if (header_bytes < kTcpHeaderBytes || header_bytes > bytes) return false;
  out.seq = Seq(h.seq.get());
  out.ack = Seq(h.ack.get());
  out.window = h.window.get();
  out.urgent = h.urgent.get();
  out.flags = h.flags;
  out.data = at + header_bytes;
  out.bytes = bytes - header_bytes;
  out.options = SegmentOptions{};
  const uint8_t* options = at + kTcpHeaderBytes;
  if (header_bytes == kTcpHeaderBytes + kUsualBytes && LoadBe32(options) == kUsualOptions)
      [[likely]] {
    TakeTimestamps(options + 4, out.options);
  } else {
    ParseOptions(options, header_bytes - kTcpHeaderBytes, (h.flags & tcp::kSyn) != 0, out.options);
  }
  return true;
}

bool ParseTcp(const uint8_t* frame, const Packet& packet, SegmentIn& out) {
  out.ecn = static_cast<tcp::Ecn>(EcnOf(packet.ip.tos));
  return ParseTcp(frame + packet.ip.l4_off, packet.ip.l4_bytes, out);
}

uint32_t TcpHeaderBytes(const SegmentOptions& options) {
  const uint32_t count = SackCount(options);
  const uint32_t sack_bytes = count == 0 ? 0 : 2 + kSackBytes + count * kSackBlockBytes;
  return kTcpHeaderBytes + FixedOptionBytes(options) + sack_bytes;
}

uint32_t BuildTcp(uint8_t* to, Ports ports, const SegmentOut& segment) {
  Writer options(to + kTcpHeaderBytes);
  PutOptions(options, segment.options);
  const auto bytes = static_cast<uint32_t>(options.at() - to);
  auto& h = *reinterpret_cast<TcpHeader*>(to);
  h.source_port.set(ports.source);
  h.destination_port.set(ports.destination);
  h.seq.set(segment.seq.value());
  h.ack.set(segment.ack.value());
  h.data_off = static_cast<uint8_t>(bytes / 4 << 4);
  h.flags = segment.flags;
  h.window.set(segment.window);
  h.checksum.set(0);
  h.urgent.set(segment.urgent);
  return bytes;
}

void CompleteTcp(uint8_t* header, uint32_t header_bytes, uint32_t pseudo, uint32_t payload) {
  const uint32_t sum = Sum(header, header_bytes, AddSums(pseudo, payload));
  reinterpret_cast<TcpHeader*>(header)->checksum.set(ChecksumOf(sum));
}

void CompleteTcpOffloaded(uint8_t* header, uint32_t pseudo) {
  reinterpret_cast<TcpHeader*>(header)->checksum.set(SwapToBig(FoldSum(pseudo)));
}

}  // namespace postern::wire
