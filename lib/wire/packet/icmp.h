// SPDX-License-Identifier: Apache-2.0
// icmp.h - ICMP and ICMPv6: what an error means to the connection whose packet it quotes; answers.
//
// Anybody can send one: what is told here of the quoted packet only says which connection to look
// for. The caller checks that there is one and that the sequence number is under way
// (RFC 5927, 4.1).
#pragma once
#include <cstdint>

#include "wire/be.h"
#include "wire/packet/packet.h"

namespace postern::wire {

struct IcmpHeader {
  uint8_t type, code;
  Be16 checksum;
  uint8_t rest[4];
};
static_assert(sizeof(IcmpHeader) == 8);

enum class IcmpKind : uint8_t {
  kIgnored,    // nothing for us: redirects, neighbour discovery, unknown types and codes
  kMalformed,  // an error that quotes too little, or what we cannot have sent
  kError,
  kEchoRequest,
  kEchoReply,
};

// A packet of ours, as far as the error has it: source is us.
struct IcmpQuote {
  IpAddress source, destination;
  uint8_t protocol;
  uint8_t has_seq;                         // 1: TCP, and `seq` is where the segment began
  uint16_t source_port, destination_port;  // TCP and UDP, else 0
  uint32_t seq;
  uint32_t packet_bytes;  // as its IP header said, that header included
};

struct IcmpIn {
  IcmpKind kind;
  // Of kError: as Linux reports it. Hard: it is reported even to a socket that did not ask for
  // errors (IP_RECVERR); TCP decides by its state (RFC 5927, 5.2).
  uint8_t is_hard;
  int32_t error;  // errno; EMSGSIZE: `mtu` is what the path takes
  uint32_t mtu;   // IP packet in bytes, at least what RFC 791 or 8200 promise; 0: not about that
  IcmpQuote quote;
};

// Of a frame that ParseFrame has not refused, ICMP in its own family; else kIgnored.
IcmpIn ParseIcmp(const uint8_t* frame, const Packet& packet);

// ---- answers. They are ICMP messages, to go behind BuildIp() of ReplyIp(), with their checksums.

// Back to where it came from: protocol ICMP, not to be fragmented.
IpOut ReplyIp(const Packet& packet);
// Whether an error may be sent because of it at all (RFC 1122, 3.2.2; RFC 4443, 2.4 (e)).
bool MayAnswerWithError(const Packet& packet);
// Longest message of those two: 576 and 1280 bytes with the IP header.
inline constexpr uint32_t kIcmpErrorBytesMax = 1240;
// Bytes written, 0: `room` is too small (556 for IPv4, 1240 for IPv6 is always enough).
uint32_t BuildPortUnreachable(uint8_t* to, uint32_t room, const uint8_t* frame,
                              const Packet& packet);
// 0: there is no room, or it is no echo request.
uint32_t BuildEchoReply(uint8_t* to, uint32_t room, const uint8_t* frame, const Packet& packet);

}  // namespace postern::wire
