// screen.cc - see screen.h.
// SPDX-License-Identifier: Apache-2.0
#include "screen.h"

#include <algorithm>
#include <clocale>
#include <cstdlib>

#include "../line/ask.h"
#include "page.h"

// Its macros are common words.
#define NCURSES_NOMACROS
#include <curses.h>

namespace postern::ctl_command {

Screen::Screen() {
  setlocale(LC_ALL, "");
  if (newterm(nullptr, stdout, stdin) == nullptr) {
    const char* const term = getenv("TERM");
    throw AskError(std::string("the terminal '") + (term != nullptr ? term : "") +
                   "' is not known here: set TERM, or use --batch");
  }
  cbreak();
  noecho();
  curs_set(0);
}

Screen::~Screen() { endwin(); }

size_t Screen::lines() const { return static_cast<size_t>(std::max(LINES, 1)); }

void Screen::Show(const std::vector<std::string>& page) {
  erase();
  int row = 0;
  for (const std::string& line : page) {
    if (row >= LINES) break;
    const bool heading = !line.empty() && line.front() == kHeading;
    if (heading) attron(A_REVERSE);
    mvaddnstr(row, 0, line.c_str() + (heading ? 1 : 0), COLS);
    if (heading) attroff(A_REVERSE);
    row++;
  }
  refresh();
}

int Screen::Key(int wait_ms) {
  timeout(wait_ms);
  const int key = getch();
  return key == ERR || key == KEY_RESIZE ? 0 : key;
}

}  // namespace postern::ctl_command
