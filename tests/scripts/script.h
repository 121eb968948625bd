// SPDX-License-Identifier: Apache-2.0
// script.h - a packet script, parsed: events at times, each a packet, a socket call or a command.
//
// The language is packetdrill's as its published grammar has it, as far as TCP needs it:
//
//   0      socket(..., SOCK_STREAM, IPPROTO_TCP) = 3    calls, with results and errno names
//   +.1    < S 0:0(0) win 32792 <mss 1000,nop,wscale 7> a packet that comes in
//   +0     > S. 0:0(0) ack 1 <...>                      one that has to go out; <...>: any options
//   +0...0.2 read(4, ..., 1000) = 1000                  a call that blocks until 0.2
//   1.0~1.2 > . 1:1(0) ack 1                            within a range of time;  *: at any time
//   +0     < [ce] . 1:1001(1000) ack 1 win 257          ECN bits, in ( ) or [ ]
//   +0     < icmp unreachable frag_needed mtu 1400 [1:1001(1000)]
//   +0     %{ assert ... }%                             skipped (and said so)
//   +0     `command`                                    never run: sysctl lines are understood
//
// Sequence numbers count from the first SYN of each side; so do timestamps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "script_packet.h"

namespace postern::scripts {

// An expression in a call's arguments.
struct Value {
  enum class Kind { kEllipsis, kNumber, kString, kList, kStruct, kWord };
  Kind kind = Kind::kEllipsis;
  int64_t number = 0;
  std::string text;          // kString, kWord; the name of a struct's member
  std::vector<Value> items;  // kList, kStruct; a member's value is its only item
  const Value* Member(const char* name) const;
};

struct PacketSpec {
  bool is_inbound = false;
  bool has_tos = false, ecn_only = false, any_ect = false;
  uint8_t tos = 0;
  uint16_t source_port = 0, destination_port = 0;  // 0: those of the connection
  uint8_t flags = 0;
  uint32_t seq = 0, bytes = 0;
  bool has_ack = false, has_window = false;
  uint32_t ack = 0;
  uint16_t window = 0, urgent = 0;
  bool any_options = false;
  Bytes options;  // numbers are the script's
  // ICMP
  bool is_icmp = false;
  std::string icmp_type, icmp_code;
  uint32_t mtu = 0;
};

struct CallSpec {
  bool blocks = false;
  int64_t end_us = 0;  // absolute, or relative as the event's time
  std::string name;
  std::vector<Value> arguments;
  Value result;
  int error = 0;
};

enum class TimeKind { kAbsolute, kRelative, kRange, kRelativeRange, kAny };

struct Event {
  enum class Kind { kPacket, kCall, kCommand, kCode };
  Kind kind = Kind::kCommand;
  int line = 0;
  TimeKind time = TimeKind::kAbsolute;
  int64_t time_us = 0, time_end_us = 0;
  PacketSpec packet;
  CallSpec call;
  std::string command;
};

struct Script {
  std::vector<std::pair<std::string, std::string>> options;  // --name=value
  std::vector<std::string> init_commands;                    // before the first event
  std::vector<Event> events;
};

// False: `error` says the line and what was expected there.
bool ParseScript(const std::string& text, Script& script, std::string& error);
// The value of a name as in <sys/socket.h>, <poll.h>, <errno.h> and so on.
bool SymbolValue(const std::string& name, int64_t& value);

}  // namespace postern::scripts
