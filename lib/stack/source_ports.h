// SPDX-License-Identifier: Apache-2.0
// source_ports.h - ports of this host that a stack keeps to make connections from.
//
// Each is reserved at the kernel by posternd, and what comes for it is steered to the stack as long
// as it is kept. So a connect() that finds one asks no process. As in the kernel a port serves many
// connections, if their peers differ: what is taken is a pair of names (Engine::IsTaken), also by a
// connection in TIME_WAIT. Which one is tried first is random (RFC 6056, 3.3.2), but one that has
// just been used rests a while if it can: the kernel's, too, comes late to a port once more, and a
// reset leaves no TIME_WAIT.
//
// Neither a connection's owner nor its death matters here: there is no count to go wrong.
// What is done to the table is done under the engine's lock; but for `filter` and `epoch`, which
// are posternd's words for it, and change when there is a new one.
#pragma once
#include "abi/postern_abi.h"

namespace postern::stack {

class Engine;
struct WireState;

inline constexpr uint32_t kSourcePorts = 1024;
inline constexpr uint64_t kPortRestNs = 1'000'000'000;

struct SourcePort {
  uint32_t filter;  // (a) posternd's number; 0: the place is free
  uint32_t epoch;   // (a) of the grant that it is kept under
  pstn_addr local;  // at other addresses of this host programs may have it
  uint32_t vi, zero;
  uint64_t used_ns;  // when a connection was last begun from it
};

struct SourcePorts {
  uint32_t hw, zero;  // none was ever from `hw` on
  SourcePort at[kSourcePorts];
};

// A port of `from`'s address, for a connection to `to` by that VI, goes into it. False: there is
// none. kRested: none of a few that have all just been used either, so that there will be more.
enum class PortWish : uint8_t { kRested, kAny };
bool TakeSourcePort(Engine& engine, uint32_t vi, pstn_addr& from, const pstn_addr& to,
                    PortWish wish, uint64_t now) PSTN_REQUIRES(engine);
// False: there are as many as there may be.
bool AddSourcePort(WireState& w, const SourcePort& p);

// Without the lock: whether a connection has that port, or which ports connections have.
enum class TimeWait : uint8_t { kCounts, kDoesNot };
bool IsPortUsed(const WireState& w, uint16_t port, TimeWait time_wait);
struct UsedPorts {
  uint64_t bits[1024];
  bool Has(uint16_t port) const { return (bits[port / 64] >> (port % 64) & 1) != 0; }
};
void FindUsedPorts(const WireState& w, TimeWait time_wait, UsedPorts& used);
// Takes it out, unless a connection was begun from it since `used_ns`: so a thread that has found
// it unused then, is right now. What it was.
bool RemoveSourcePort(WireState& w, uint32_t idx, uint64_t used_ns, SourcePort& was);

}  // namespace postern::stack
