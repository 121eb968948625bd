// SPDX-License-Identifier: Apache-2.0
// own_arguments.h - what a program with Catch2's runner (main.cc) may define.
#pragma once

namespace postern::test {

// Takes its own arguments out of argv, before Catch2 sees it. Returns how many are left.
int TakeOwnArguments(int argc, char** argv);

}  // namespace postern::test
