// SPDX-License-Identifier: Apache-2.0
// shell_calls.cc - system() and popen(): a shell that knows this process's sockets.
//
// libc starts the shell inside, with `environ`, so what the shell must know would have to be put
// there meanwhile, where all threads see it. These are made of posix_spawn instead, which takes an
// environment: several threads may be in them at once, and in fork() and exec() beside it. What
// they do to signals, to other pipes and for a thread that is cancelled is what libc does.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../real.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/local_lock.h"
#include "sock/own_family.h"
#include "spawning.h"

using namespace postern;

extern "C" int close(int fd);
extern "C" pid_t waitpid(pid_t pid, int* status, int options);

namespace {

constexpr char kShell[] = "/bin/sh";

int SpawnShell(pid_t* pid, const char* command, const posix_spawn_file_actions_t* actions,
               const posix_spawnattr_t* attr) {
  char name[] = "sh", option[] = "-c", end[] = "--";
  char* argv[] = {name, option, end, const_cast<char*>(command), nullptr};
  return SpawnBy(pid, kShell, false, environ, [&](pid_t* p, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    return PSTN_REAL(posix_spawn)(p, kShell, actions, &with, argv, env);
  });
}

// A wait() that a handler without SA_RESTART interrupts goes on.
int Await(pid_t pid) {
  int status = -1;
  pid_t r;
  do {
    r = waitpid(pid, &status, 0);
  } while (r < 0 && errno == EINTR);
  return r == pid ? status : -1;
}

// ---------------------------------------------------------------- system
// SIGINT and SIGQUIT are ignored while any thread of the process is in system().
PSTN_LOCK_WHOLE(quiet_lock);
uint32_t quiet_calls PSTN_GUARDED_BY(quiet_lock);
struct sigaction quiet_int PSTN_GUARDED_BY(quiet_lock), quiet_quit PSTN_GUARDED_BY(quiet_lock);

class Quiet {
 public:
  Quiet() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    Lock(quiet_lock);
    if (quiet_calls++ == 0) {
      (void)PSTN_REAL(sigaction)(SIGINT, &ignore, &quiet_int);
      (void)PSTN_REAL(sigaction)(SIGQUIT, &ignore, &quiet_quit);
    }
    before_int_ = quiet_int.sa_handler;
    before_quit_ = quiet_quit.sa_handler;
    Unlock(quiet_lock);
    (void)pthread_sigmask(SIG_BLOCK, &child, &mask_);
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  void Over() const {
    Lock(quiet_lock);
    if (--quiet_calls == 0) {
      (void)PSTN_REAL(sigaction)(SIGINT, &quiet_int, nullptr);
      (void)PSTN_REAL(sigaction)(SIGQUIT, &quiet_quit, nullptr);
    }
    Unlock(quiet_lock);
    (void)pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  // The shell has the signals as this process had them.
  void Pass(posix_spawnattr_t* attr) const {
    sigset_t reset;
    sigemptyset(&reset);
    if (before_int_ != SIG_IGN) sigaddset(&reset, SIGINT);
    if (before_quit_ != SIG_IGN) sigaddset(&reset, SIGQUIT);
    (void)posix_spawnattr_setsigdefault(attr, &reset);
    (void)posix_spawnattr_setsigmask(attr, &mask_);
    (void)posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }

 private:
  sigset_t mask_;
  sighandler_t before_int_, before_quit_;
};

struct Run {
  const Quiet* quiet;
  pid_t pid;
};
// The thread is cancelled while the shell runs.
void Abandon(void* p) {
  const Run& run = *static_cast<Run*>(p);
  (void)kill(run.pid, SIGKILL);
  int state;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  (void)Await(run.pid);
  (void)pthread_setcancelstate(state, nullptr);
  run.quiet->Over();
}

int RunShell(const char* command) {
  constexpr int kNoShell = 127 << 8;  // as if it had been one that exits with 127
  const Quiet quiet;
  posix_spawnattr_t attr;
  (void)posix_spawnattr_init(&attr);
  quiet.Pass(&attr);
  Run run = {&quiet, -1};
  const int failed = SpawnShell(&run.pid, command, nullptr, &attr);
  (void)posix_spawnattr_destroy(&attr);
  int status = kNoShell;
  if (failed == 0) {
    pthread_cleanup_push(Abandon, &run);
    status = Await(run.pid);
    pthread_cleanup_pop(0);
  }
  const int e = failed != 0 ? failed : errno;
  quiet.Over();
  if (status == -1 || failed != 0) errno = e;
  return status;
}

// ---------------------------------------------------------------- popen
struct Pipe {
  FILE* file;
  pid_t pid;
  Pipe* next;
};
// Held while a shell is started, for which no fork waits. The list is whole at each instruction.
void RenewPipes(Family&) {}
PSTN_LOCK_RENEWED(pipes_lock, RenewPipes);
Pipe* pipes PSTN_GUARDED_BY(pipes_lock);  // of this process, most recent first

// What popen() was asked for.
struct Mode {
  bool reads, cloexec;
};
bool ParseMode(const char* text, Mode* mode) {
  bool reads = false, writes = false;
  *mode = {};
  for (; *text != 0; text++) {
    if (*text == 'r') {
      reads = true;
    } else if (*text == 'w') {
      writes = true;
    } else if (*text == 'e') {
      mode->cloexec = true;
    } else {
      return false;
    }
  }
  mode->reads = reads;
  return reads != writes;
}

// The child has none of the pipes of earlier calls (POSIX), and `end` in the place of 0 or 1.
bool FillActions(posix_spawn_file_actions_t* actions, int end, int place)
    PSTN_REQUIRES(pipes_lock) {
  if (posix_spawn_file_actions_adddup2(actions, end, place) != 0) return false;
  for (const Pipe* p = pipes; p != nullptr; p = p->next) {
    const int fd = fileno(p->file);
    if (fd != place && posix_spawn_file_actions_addclose(actions, fd) != 0) return false;
  }
  return true;
}

// Under pipes_lock: the shell is started, not awaited.
FILE* OpenPipe(Pipe* made, const char* command, const Mode& mode) PSTN_REQUIRES(pipes_lock) {
  int ends[2];
  const Fresh fresh;
  int r = PSTN_REAL(pipe2)(ends, O_CLOEXEC);
  if (OutOfFds(r)) r = PSTN_REAL(pipe2)(ends, O_CLOEXEC);
  if (r != 0) return nullptr;
  const int ours = fresh.Fd(mode.reads ? ends[0] : ends[1]);
  const int theirs = fresh.Fd(mode.reads ? ends[1] : ends[0]);
  FILE* file = PSTN_REAL(fdopen)(ours, mode.reads ? "r" : "w");
  posix_spawn_file_actions_t actions;
  int failed = file == nullptr ? errno : posix_spawn_file_actions_init(&actions);
  if (failed == 0) {
    failed = FillActions(&actions, theirs, mode.reads ? 1 : 0)
                 ? SpawnShell(&made->pid, command, &actions, nullptr)
                 : ENOMEM;
    (void)posix_spawn_file_actions_destroy(&actions);
  }
  (void)close(theirs);
  if (failed == 0) {
    if (!mode.cloexec) (void)sys::Fcntl(ours, F_SETFD, 0);
    return file;
  }
  if (file != nullptr) {
    (void)PSTN_REAL(fclose)(file);
  } else {
    (void)close(ours);
  }
  errno = failed;
  return nullptr;
}

// The shell behind `file`, which is taken off the list. -1: it is no such file.
pid_t TakePipe(const FILE* file) {
  if (LoadAcquire(pipes) == nullptr) return -1;  // [U6]
  Guard g(pipes_lock);
  for (Pipe** at = &pipes; *at != nullptr; at = &(*at)->next) {
    Pipe* p = *at;
    if (p->file != file) continue;
    const pid_t pid = p->pid;
    StoreRelease(*at, p->next);  // [U6]
    free(p);                     // tidy-allow: stdio allocates as well
    return pid;
  }
  return -1;
}

int ClosePipe(FILE* file, pid_t pid) {
  (void)PSTN_REAL(fclose)(file);
  int state;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  const int status = Await(pid);
  (void)pthread_setcancelstate(state, nullptr);
  return status;
}

}  // namespace

PSTN_EXPORT int system(const char* command) {
  if (!g_family.attached) return PSTN_REAL(system)(command);
  if (command == nullptr) return RunShell("exit 0") == 0 ? 1 : 0;
  return RunShell(command);
}

PSTN_EXPORT FILE* popen(const char* command, const char* type) {
  if (!g_family.attached) return PSTN_REAL(popen)(command, type);
  Mode mode;
  if (!ParseMode(type, &mode)) {
    errno = EINVAL;
    return nullptr;
  }
  Pipe* made = static_cast<Pipe*>(malloc(sizeof *made));  // tidy-allow: stdio allocates as well
  if (made == nullptr) return nullptr;
  FILE* file;
  {
    Guard g(pipes_lock);
    file = OpenPipe(made, command, mode);
    if (file != nullptr) {
      *made = {file, made->pid, pipes};
      StoreRelease(pipes, made);  // [U6]
    }
  }
  if (file == nullptr) {
    const int e = errno;
    free(made);  // tidy-allow: stdio allocates as well
    errno = e;
  }
  return file;
}

PSTN_EXPORT int pclose(FILE* file) {
  const pid_t pid = TakePipe(file);
  return pid < 0 ? PSTN_REAL(pclose)(file) : ClosePipe(file, pid);
}
// libc's closes a pipe of popen() just so.
PSTN_EXPORT int fclose(FILE* file) {
  const pid_t pid = TakePipe(file);
  return pid < 0 ? PSTN_REAL(fclose)(file) : ClosePipe(file, pid);
}
