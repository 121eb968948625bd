// rights.h - what a daemon gives up before it serves (docs/adr/security/0020).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace postern::daemon {

enum class Role : uint8_t {
  kOneUser,  // a user's posternd
  kSystem,   // the broker
};

// Called once, by the main thread, when all threads that keep more than it are there. It warns of
// capabilities that the role needs and the process lacks. has_nics: it makes VIs (--vi).
//
// Capabilities beyond the role's go, those of other threads excepted (each has its own), and those
// of a user's posternd that makes VIs. For all threads: no new privileges, and system calls that no
// daemon makes say EPERM and are in the kernel's log. False: the kernel has no such filter, or
// refuses it; the log says so.
bool GiveUpRights(Role role, bool has_nics);

}  // namespace postern::daemon
