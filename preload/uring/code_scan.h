// SPDX-License-Identifier: Apache-2.0
// code_scan.h - a program that makes io_urings by system calls in its own code.
//
// What its rings do can't be seen, so it steps aside (StepAside, leaving.h) before it has a socket
// of ours. It is found by its code: the number of io_uring_setup goes into the register of the
// system call's number, and a system call follows. Looked at are the program itself and what it
// was linked with, except for the system's own libraries: of those liburing alone makes rings, and
// its calls come by (liburing_calls.cc). A library that comes later, by dlopen(), is not looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace postern {

// Where the code is: at the start, when no other thread can have the loader's lock.
void LearnProgram();
// Before the first socket that may be accelerated.
void LookForRing(int domain);

// Whether this code has an io_uring_setup of its own.
bool HasRingSetup(std::span<const uint8_t> code);

}  // namespace postern
