// SPDX-License-Identifier: Apache-2.0
// main.cc - entry of the unit tests; the same for Catch2 v2 (the runner is compiled here) and v3
// (it is in the library).
#define CATCH_CONFIG_RUNNER
#include "catch.h"

int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
