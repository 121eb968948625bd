// page.h - `posternctl top` as lines of text, and as a value for programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "sample.h"

namespace postern::ctl_command {

// At most `lines` of them: totals, a table of stacks, a table of the sockets with the most traffic.
// The headings of tables begin with '\1', which the screen shows in reverse.
inline constexpr char kHeading = '\1';
std::vector<std::string> PageLines(const Look& before, const Look& now, Order order, size_t lines);
Json PageJson(const Look& before, const Look& now, Order order);

// "950", "1.2k", "34M": of 1000s, in at most five characters.
std::string Short(double value);

}  // namespace postern::ctl_command
