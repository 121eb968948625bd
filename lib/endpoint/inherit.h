// SPDX-License-Identifier: Apache-2.0
// inherit.h - options that the kernel's socket keeps, on to accepted connections.
#pragma once

#include "family/family.h"

namespace postern {

// The program sets one: sockets accepted from this one will have it.
void NoteKernelOption(pstn_ep& ep, int level, int name);
// What the kernel's socket `fd` of an accepted endpoint has of those.
void InheritKernelOptions(int listener_fd, const pstn_ep& listener, int fd, pstn_ep& ep);

}  // namespace postern
