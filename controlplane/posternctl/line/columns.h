// columns.h - text for a terminal: columns, and names that programs have given themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>
#include <string>
#include <vector>

namespace postern::ctl_command {

using Row = std::vector<std::string>;

// Each column as wide as its widest cell; the last one may have lines of its own.
void ShowTable(std::ostream& out, const std::vector<Row>& rows);

// Programs name themselves. What is no text would be a command to the terminal: control
// characters, and those that UTF-8 has above 0x7f (C1), become '?'.
std::string Plain(std::string text);

}  // namespace postern::ctl_command
