// screen.h - the terminal of `posternctl top`, by ncurses.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace postern::ctl_command {

// While it lives, the terminal shows what it is told; afterwards what was there before.
class Screen {
 public:
  Screen();  // throws AskError: this is no terminal that it knows
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  size_t lines() const;
  // Lines that are too long are cut, lines too many are left out.
  void Show(const std::vector<std::string>& page);
  // The next key that is pressed, waited for so long; 0: none was, or the size has changed.
  int Key(int wait_ms);
};

}  // namespace postern::ctl_command
