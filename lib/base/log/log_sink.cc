// SPDX-License-Identifier: Apache-2.0
// log_sink.cc - see log_sink.h.
#include "base/log/log_sink.h"

#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/sys.h"

namespace postern {
namespace {

constexpr uint64_t kLinesPerSecond = 10;
constexpr int kStderr = 2;
// systemd-journald's socket, and its protocol: lines of FIELD=value (systemd.journal-fields(7)).
constexpr char kJournal[] = "/run/systemd/journal/socket";

// A descriptor at a high number that ends with this.
class Opened {
 public:
  explicit Opened(long fd) {
    if (fd < 0) return;
    fd_ = sys::DupHigh(static_cast<int>(fd));
    sys::Close(static_cast<int>(fd));
  }
  ~Opened() {
    if (fd_ >= 0) sys::Close(fd_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

constexpr uint64_t SignalBit(int signal) { return uint64_t{1} << (signal - 1); }
constexpr uint64_t kRaised = SignalBit(SIGPIPE) | SignalBit(SIGXFSZ) | SignalBit(SIGTTOU);

// What a write may raise (a reader that has gone, a limit, a terminal of another job) stays ours.
class Unsignalled {
 public:
  Unsignalled() {
    (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_BLOCK), &kRaised, &before_, 8L);
    (void)sys::Call(SYS_rt_sigpending, &pending_, 8L);
  }
  ~Unsignalled() {
    const uint64_t raised = raised_ & ~pending_;
    const timespec now = {0, 0};
    if (raised != 0) (void)sys::Call(SYS_rt_sigtimedwait, &raised, nullptr, &now, 8L);
    (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &before_, nullptr, 8L);
  }
  Unsignalled(const Unsignalled&) = delete;
  Unsignalled& operator=(const Unsignalled&) = delete;
  void Wrote(long result) {
    if (result == -EPIPE) raised_ = SignalBit(SIGPIPE);
    if (result == -EFBIG) raised_ = SignalBit(SIGXFSZ);
  }

 private:
  uint64_t before_ = 0, pending_ = 0, raised_ = 0;
};

void Put(int fd, const char* text, size_t bytes) {
  Unsignalled quiet;
  quiet.Wrote(sys::Call(SYS_write, fd, text, bytes));
}

bool IsUnixSocket(int fd) {
  int domain = 0;
  socklen_t len = sizeof domain;
  return sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_DOMAIN),
                   &domain, &len) == 0 &&
         domain == AF_UNIX;
}

bool Identify(uint64_t& dev, uint64_t& ino, mode_t& mode) {
  struct stat st {};
  if (sys::Call(SYS_fstat, kStderr, &st) != 0) return false;
  dev = st.st_dev;
  ino = st.st_ino;
  mode = st.st_mode;
  return true;
}

void PutToStderr(const LogState& log, const LogLine& line) {
  uint64_t dev = 0, ino = 0;
  mode_t mode = 0;
  if (!Identify(dev, ino, mode) || dev != log.stderr_dev || ino != log.stderr_ino) return;
  if (S_ISSOCK(mode) && !IsUnixSocket(kStderr)) return;
  pollfd room = {kStderr, POLLOUT, 0};
  if (sys::Call(SYS_poll, &room, 1L, 0L) != 1 || room.revents != POLLOUT) return;
  Put(kStderr, line.data(), line.size());
}

// RFC 3339, from the days since 1970 as a calendar of years that begin in March.
void AddTime(LogLine& line) {
  timespec now = {0, 0};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  const auto seconds = static_cast<uint64_t>(now.tv_sec);
  constexpr uint64_t kEraDays = 146097, kFromMarch = 719468;
  const uint64_t days = seconds / 86400 + kFromMarch, of_era = days % kEraDays;
  const uint64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const uint64_t of_year = of_era - (365 * year + year / 4 - year / 100);
  const uint64_t march = (5 * of_year + 2) / 153;  // 0: March
  const uint64_t month = march < 10 ? march + 3 : march - 9;
  line.Digits(year + days / kEraDays * 400 + (month <= 2 ? 1 : 0), 4) << "-";
  line.Digits(month, 2) << "-";
  line.Digits(of_year - (153 * march + 2) / 5 + 1, 2) << "T";
  line.Digits(seconds / 3600 % 24, 2) << ":";
  line.Digits(seconds / 60 % 60, 2) << ":";
  line.Digits(seconds % 60, 2) << "Z ";
}

void PutToFile(const char* path, const LogLine& line) {
  constexpr long kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  if (path[0] != '/') return;  // it would be another file after chdir()
  const Opened file(sys::MakeOurs(
      [path] { return sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), path, kFlags, 0600L); }));
  if (file.ok()) Put(file.get(), line.data(), line.size());
}

int PriorityOf(LogLevel level) {
  constexpr int kOfSyslog[] = {5, 3, 4, 6, 7};
  return kOfSyslog[static_cast<size_t>(level)];
}

void PutToJournal(LogLevel level, const LogLine& text) {
  FixedText<kLogLineBytes + 128> entry;
  entry << "SYSLOG_IDENTIFIER=postern\nPRIORITY=" << static_cast<uint64_t>(PriorityOf(level))
        << "\nMESSAGE=";
  entry.Add(text.data(), text.size());
  entry.EndLine();
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  memcpy(to.sun_path, kJournal, sizeof kJournal);
  const Opened line(sys::MakeOurs(
      [] { return long{sys::Socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)}; }));
  if (!line.ok()) return;
  (void)sys::Call(SYS_sendto, line.get(), entry.data(), entry.size(),
                  static_cast<long>(MSG_NOSIGNAL | MSG_DONTWAIT), &to, sizeof to);
}

// False: this second has had its lines.
bool MayWrite(LogState& log) {
  const uint64_t second = MonotonicNs() / 1'000'000'000;
  uint64_t seen = LoadRelaxed(log.written);
  for (;;) {
    const uint64_t lines = seen >> 32 == (second & UINT32_MAX) ? seen & UINT32_MAX : 0;
    if (lines >= kLinesPerSecond) {
      FetchAdd(log.left_out, 1u);
      return false;
    }
    if (CompareExchange(log.written, seen, second << 32 | (lines + 1))) return true;
  }
}

}  // namespace

LogLevel LogLevelOf(const Options& options) {
  if (OptionGiven(options, *OptionFind("log.level")) || options.log_file[0] != 0)
    return static_cast<LogLevel>(options.log_level);
  return options.strict != 0 ? LogLevel::kError : LogLevel::kNone;
}

void LogBegin(LogState& log, const Options& options) {
  log = {};
  log.level = LogLevelOf(options);
  mode_t mode = 0;
  if (log.level != LogLevel::kNone) (void)Identify(log.stderr_dev, log.stderr_ino, mode);
}

void LogWrite(LogState& log, const Options& options, LogLevel level, const LogLine& text) {
  if (!MayWrite(log)) return;
  LogLine line;
  const char* const file = options.log_file;
  const bool to_stderr = file[0] == 0 || strcmp(file, kLogToStderr) == 0;
  const bool to_journal = strcmp(file, kLogToJournal) == 0;
  if (!to_stderr && !to_journal) AddTime(line);
  if (!to_journal) line << "postern: ";
  line << "process " << static_cast<uint64_t>(sys::Pid()) << " ";
  line.Add(text.data(), text.size());
  if (const uint32_t missing = Exchange(log.left_out, 0u); missing != 0)
    line << " (" << uint64_t{missing} << " lines before this one were left out)";
  if (to_journal) return PutToJournal(level, line);
  line.EndLine();
  if (to_stderr) return PutToStderr(log, line);
  PutToFile(file, line);
}

}  // namespace postern
