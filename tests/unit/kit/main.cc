// SPDX-License-Identifier: Apache-2.0
// main.cc - entry of all tests that are Catch2's; the same for Catch2 v2 (the runner is compiled
// here, once: it takes long) and v3 (it is in the library).
#define CATCH_CONFIG_RUNNER
#include "catch.h"
#include "own_arguments.h"

namespace postern::test {
__attribute__((weak)) int TakeOwnArguments(int argc, char** argv) {
  (void)argv;
  return argc;
}
}  // namespace postern::test

int main(int argc, char** argv) {
  argc = postern::test::TakeOwnArguments(argc, argv);
  return Catch::Session().run(argc, argv);
}
