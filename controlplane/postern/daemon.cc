// daemon.cc - connects to posternd, or double-forks one and waits until its socket accepts.
// SPDX-License-Identifier: Apache-2.0
//
//   wrapper --fork--> child --setsid, fork--> posternd     The child leaves at once, so posternd
//      |                |                         |        belongs to init, has no terminal, and
//      |                |                         |        is not a child of the command.
//      |<----- wait ----+                         |
//      |<---- errno of a failed exec (pipe) ------+        The pipe is close-on-exec: its end says
//      |<---- connect() succeeds -----------------+        that exec succeeded.
#include "daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "say.h"

namespace postern::wrapper {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kStartWaitMax{2000};
constexpr milliseconds kStartWaitStep{2};
constexpr int kErrorPipeFd =
    3;  // where the pipe is moved to in the child; everything above is closed

// Whether posternd accepts. A full backlog (EAGAIN) is one that lives.
bool Accepts(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // RuntimeDir() checked that it fits.
  memcpy(address.sun_path, socket_path.data(), socket_path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool is_accepted =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;
  close(fd);
  return is_accepted;
}

// posternd must not hold what the wrapper inherited: a pipe that someone reads to its end, a
// terminal, a deleted directory.
void DetachFromCaller(const std::string& runtime_dir) {
  umask(077);
  const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  const std::string log = runtime_dir + "/posternd.log";
  const int log_fd =
      open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd >= 0 ? log_fd : null_fd, STDOUT_FILENO);
  dup2(log_fd >= 0 ? log_fd : null_fd, STDERR_FILENO);
  close_range(kErrorPipeFd + 1, ~0U, 0);
  if (chdir("/") != 0) _exit(kExitOurselves);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // A daemon accelerated by itself would wait for itself.
  unsetenv("LD_PRELOAD");
}

[[noreturn]] void BecomeDaemon(const std::string& posternd, const std::string& runtime_dir,
                               int error_fd) {
  // Out of the way of 0..3 first: any of them may have been closed by the caller.
  const int moved = fcntl(error_fd, F_DUPFD_CLOEXEC, 10);
  dup3(moved, kErrorPipeFd, O_CLOEXEC);
  DetachFromCaller(runtime_dir);
  execl(posternd.c_str(), "posternd", "--runtime-dir", runtime_dir.c_str(), nullptr);
  const int error = errno;
  if (write(kErrorPipeFd, &error, sizeof(error)) < 0) _exit(kExitOurselves);
  _exit(kExitNotExecutable);
}

// Starts the daemon; 0 or the errno of what failed.
int Start(const std::string& posternd, const std::string& runtime_dir) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    const pid_t daemon = fork();
    if (daemon == 0) BecomeDaemon(posternd, runtime_dir, ends[1]);
    _exit(daemon < 0 ? 1 : 0);
  }
  int error = child < 0 ? errno : 0;
  close(ends[1]);
  int wait_status = 0;
  if (child > 0 && waitpid(child, &wait_status, 0) == child && wait_status != 0) error = EAGAIN;
  if (error == 0 && read(ends[0], &error, sizeof(error)) < 0) error = errno;
  close(ends[0]);
  return error;
}

}  // namespace

std::string EnsureDaemon(const std::string& posternd, const std::string& runtime_dir) {
  const std::string socket_path = runtime_dir + "/posternd.sock";
  if (Accepts(socket_path)) return "";
  if (access(runtime_dir.c_str(), W_OK) != 0) return kReadOnly;
  if (const int error = Start(posternd, runtime_dir); error != 0) {
    if (error == EAGAIN) return kNoProcessLeft;
    return "cannot start " + posternd + ": " + ErrorText(error);
  }
  const auto deadline = steady_clock::now() + kStartWaitMax;
  while (steady_clock::now() < deadline) {
    if (Accepts(socket_path)) return "";
    std::this_thread::sleep_for(kStartWaitStep);
  }
  return "posternd does not answer at " + socket_path + " (see posternd.log beside it)";
}

}  // namespace postern::wrapper
