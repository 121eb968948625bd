// confine.h - what a reaper may do: what its family's memory needs, and no more.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace postern::reaper {

// No new privileges, no capabilities, no descriptors but the line and standard error, limits of
// memory, time and descriptors. False: that could not be had, and nothing may be done.
bool Confine();
// The system calls that the work takes; any other ends the process. Last, when all is set up.
bool FilterCalls();

}  // namespace postern::reaper
