// here.h - whether a command can be accelerated where it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

// Empty, or which limit or sandbox is in the way of the library or of posternd, which inherits
// both. Not an error: the command then runs without either.
[[nodiscard]] std::string WhyNotHere(const std::string& library);

}  // namespace postern::wrapper
