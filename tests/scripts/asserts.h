// SPDX-License-Identifier: Apache-2.0
// asserts.h - what a script's code block %{ ... }% asks of TCP_INFO: lines `assert CONDITION`, in
// the little of Python that scripts use (numbers, tcpi_ names, + - * /, comparisons, and, or, not).
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace postern::scripts {

// `info` as getsockopt() has filled it. False: `error` says which condition does not hold. What is
// understood not at all goes to `notes`.
bool CheckAsserts(const std::string& code, const void* info, size_t info_bytes, std::string& error,
                  std::vector<std::string>& notes);

}  // namespace postern::scripts
