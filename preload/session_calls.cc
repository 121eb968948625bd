// SPDX-License-Identifier: Apache-2.0
// session_calls.cc - daemon, login_tty, forkpty: libc puts other files on 0, 1 and 2 inside, past
// our dup2.
#include <pty.h>
#include <unistd.h>
#include <utmp.h>

#include <initializer_list>

#include "real.h"

using namespace postern;

namespace {

void TakeStandard() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    TakeNumber(fd);
    (void)NoteStandard(fd, true);
  }
}

}  // namespace

PSTN_EXPORT int daemon(int nochdir, int noclose) noexcept {
  const int r = PSTN_REAL(daemon)(nochdir, noclose);
  if (r == 0 && noclose == 0) TakeStandard();
  return r;
}

PSTN_EXPORT int login_tty(int fd) noexcept {
  const int r = PSTN_REAL(login_tty)(fd);
  if (r == 0) TakeStandard();
  return r;
}

// Its child calls login_tty() inside.
PSTN_EXPORT int forkpty(int* master, char* name, const termios* mode,
                        const winsize* size) noexcept {
  const int child = PSTN_REAL(forkpty)(master, name, mode, size);
  if (child == 0) TakeStandard();
  return child;
}
