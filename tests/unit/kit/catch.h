// catch.h - Catch2, whichever major version the distribution has: v2 (Debian 12) or v3 (Debian 13).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // as in v2
#else
#include <catch2/catch.hpp>
#endif
