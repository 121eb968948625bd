// SPDX-License-Identifier: Apache-2.0
// congestion_parts.h - what congestion.cc asks of the algorithms; for lib/tcp alone.
//
// Each is a file: newreno.cc, cubic.cc, hystart.cc. None of them knows of recovery, of PRR or of
// whether the window was used: congestion.cc has all that.
#pragma once
#include "tcp/congestion/congestion.h"

namespace postern::tcp {

// ---- congestion avoidance: `bytes` were acknowledged, of a window that was used
void NewRenoAvoid(Congestion& cc, uint32_t bytes);
void CubicAvoid(Congestion& cc, const AckSample& ack, uint32_t bytes);

// ---- ssthresh after a congestion event
uint32_t NewRenoReduced(const Congestion& cc);
uint32_t CubicReduced(Congestion& cc);  // notes W_max

// ---- CUBIC's clock does not run while the program sends too little (RFC 9438, 4.2)
void CubicNotLimited(Congestion& cc, uint64_t now_ns);
void CubicIdle(Congestion& cc, uint64_t idle_ns);
void CubicNewStage(Congestion& cc);  // cwnd was given up, without a loss
void CubicReset(Congestion& cc);  // time-out: what was known of the path is not believed any more
void CubicScale(CubicState& cubic, uint32_t mss_old, uint32_t mss_new);
void CubicUndo(Congestion& cc);  // the last reduction was for nothing
uint32_t CubeRoot(uint64_t x);   // rounded down
// W_cubic(t) in bytes.
uint32_t CubicWindow(const Congestion& cc, uint64_t t_ns);

// ---- HyStart++: by how much cwnd grows for `bytes` in the initial slow start; may end it
void HyStartInit(HyStartState& h);
uint32_t HyStartGrowth(Congestion& cc, const AckSample& ack, uint32_t bytes);

}  // namespace postern::tcp
