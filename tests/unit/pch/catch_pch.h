// catch_pch.h - compiled once for all unit tests: reading Catch2 takes most of their time.
// SPDX-License-Identifier: Apache-2.0

#include "../kit/catch.h"
